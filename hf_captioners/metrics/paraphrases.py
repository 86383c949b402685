"""Index of METEOR's paraphrase table: sorted arrays on disk, built once and memory-mapped afterwards."""

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .integer_map import Integers, distinct, occur_in

if TYPE_CHECKING:
    import pyarrow

_MAX_PHRASE = 7  # words
_WORD_BITS = 24
_LINES = 3  # of an entry: probability, phrase, paraphrase
_CHUNK = 1 << 23  # bytes per read
_MAX_COMPARED = 1 << 20  # pairs of phrases per look-up


class PhraseMatch(NamedTuple):
    """Pair of paraphrases: a phrase of the reference and a phrase of the hypothesis."""

    reference_start: int
    reference_length: int
    hypothesis_start: int
    hypothesis_length: int


class _Phrases(NamedTuple):
    """Phrases of captions that METEOR's paraphrase table contains, and their positions."""

    captions: Integers
    starts: Integers
    lengths: Integers
    numbers: Integers


class ParaphraseIndex:
    """Look-up of phrases of one caption whose paraphrase, by METEOR's table, is in another caption.

    Args:
        folder: the folder of an index that `build` has written.
    """

    def __init__(self, folder: Path) -> None:
        words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")
        self._words = {word: number for number, word in enumerate(words)}
        # Phrases are looked up word by word: level n holds the keys (number of the first n words, next word).
        self._levels = [np.load(folder / f"level_{n}.npy", mmap_mode="r") for n in range(_MAX_PHRASE)]
        self._first = np.cumsum([0, *map(len, self._levels)])
        self._pairs = np.load(folder / "pairs.npy", mmap_mode="r")

    def match(
        self, captions: Sequence[Sequence[str]], pairs: Sequence[tuple[int, int]]
    ) -> Iterator[list[PhraseMatch]]:
        """Yield the paraphrases between the hypothesis and the reference of each pair of captions.

        Args:
            captions: the words of each caption.
            pairs: (hypothesis, reference) as positions in `captions`.

        Yields:
            The matches of each pair: first the phrases of the reference whose paraphrase is in the hypothesis, then
            the phrases of the hypothesis whose paraphrase is in the reference. A match in both directions is listed
            twice.
        """
        phrases = self._find_phrases(captions)
        counts = np.bincount(phrases.captions, minlength=len(captions))
        firsts = np.cumsum(counts) - counts
        sizes = np.array([counts[hypothesis] * counts[reference] for hypothesis, reference in pairs])
        start = 0
        while start < len(pairs):
            stop = start + max(1, int(np.searchsorted(np.cumsum(sizes[start:]), _MAX_COMPARED)))
            yield from self._match_some(phrases, counts, firsts, np.array(pairs[start:stop], dtype=np.int64))
            start = stop

    def _match_some(
        self, phrases: _Phrases, counts: Integers, firsts: Integers, pairs: Integers
    ) -> list[list[PhraseMatch]]:
        hypotheses, references = pairs[:, 0], pairs[:, 1]
        sizes = counts[hypotheses] * counts[references]
        pair_of = np.repeat(np.arange(len(pairs)), sizes)
        inside = np.arange(len(pair_of)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        in_reference, in_hypothesis = np.divmod(inside, counts[hypotheses][pair_of])
        in_reference += firsts[references][pair_of]
        in_hypothesis += firsts[hypotheses][pair_of]
        theirs, mine = phrases.numbers[in_reference], phrases.numbers[in_hypothesis]
        matches: list[list[PhraseMatch]] = [[] for _ in range(len(pairs))]
        for keys in (theirs << 32 | mine, mine << 32 | theirs):
            for hit in np.flatnonzero(_contains(self._pairs, keys)):
                there, here = in_reference[hit], in_hypothesis[hit]
                match = PhraseMatch(
                    int(phrases.starts[there]),
                    int(phrases.lengths[there]),
                    int(phrases.starts[here]),
                    int(phrases.lengths[here]),
                )
                matches[pair_of[hit]].append(match)
        return matches

    def _find_phrases(self, captions: Sequence[Sequence[str]]) -> _Phrases:
        lengths = np.fromiter(map(len, captions), dtype=np.int64, count=len(captions))
        words = np.array([self._words.get(word, -1) for caption in captions for word in caption], dtype=np.int64)
        caption_of = np.repeat(np.arange(len(captions)), lengths)
        place = np.arange(len(words)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        words_left = lengths[caption_of] - place  # words from here to the end of the caption
        starts = np.flatnonzero(words >= 0)
        nodes = np.zeros(len(starts), dtype=np.int64)
        phrases: list[_Phrases] = []
        for level, keys in enumerate(self._levels):
            inside = (words_left[starts] > level) & (words[np.minimum(starts + level, len(words) - 1)] >= 0)
            starts, nodes = starts[inside], nodes[inside]
            wanted = nodes << _WORD_BITS | words[starts + level]
            nodes = np.searchsorted(keys, wanted)
            there = keys[np.minimum(nodes, len(keys) - 1)] == wanted if len(keys) else np.zeros(len(wanted), bool)
            starts, nodes = starts[there], nodes[there]
            size = np.full(len(starts), level + 1)
            phrases.append(_Phrases(caption_of[starts], place[starts], size, nodes + self._first[level]))
        joined = _Phrases(*map(np.concatenate, zip(*phrases, strict=True)))
        order = np.lexsort((joined.lengths, joined.starts, joined.captions))
        return _Phrases(*(part[order] for part in joined))


def _contains(keys: Integers, wanted: Integers) -> np.ndarray:
    """Return True for each of `wanted`, many of which repeat, that is among the keys of a large sorted file."""
    once = distinct(wanted)
    return occur_in(once[occur_in(keys, once)], wanted)


def build(table: Path, folder: Path) -> None:
    """Build the index of METEOR's paraphrase table in `folder`.

    Args:
        table: `paraphrase-en.gz` with three lines per entry: probability, phrase, paraphrase.
        folder: the folder of the index. It appears only when it is complete.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        words, phrases, pairs = _read(table)
        (scratch / "words.txt").write_text("\n".join(words), encoding="utf-8")
        numbers = np.empty(len(phrases), dtype=np.int64)
        first = 0
        for level, (keys, places) in enumerate(_levels(phrases)):
            np.save(scratch / f"level_{level}.npy", keys)
            whole = places >= 0
            numbers[whole] = places[whole] + first
            first += len(keys)
        np.save(scratch / "pairs.npy", distinct(numbers[pairs[0]] << 32 | numbers[pairs[1]]))
        _publish(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, folder: Path) -> None:
    try:
        os.replace(scratch, folder)
    except OSError:
        if not folder.is_dir():  # otherwise a concurrent process has written the same index
            raise


def _read(table: Path) -> tuple[list[str], Integers, tuple[Integers, Integers]]:
    """Read METEOR's paraphrase table: its words, phrases and pairs of paraphrases.

    Returns:
        All words; `[phrases, 8]` the words of each phrase as positions in them, then -1; and for each entry the
        positions of the phrase and of its paraphrase.
    """
    import pyarrow
    import pyarrow.compute

    columns = list(_columns(table))
    entries = sum(len(phrases) for phrases, _ in columns)
    encoded = pyarrow.chunked_array([part for side in zip(*columns, strict=True) for part in side])
    encoded = encoded.dictionary_encode().combine_chunks()
    pairs = encoded.indices.to_numpy()
    text = pyarrow.compute.utf8_rtrim(encoded.dictionary.cast(pyarrow.large_string()), characters="\n")
    split = pyarrow.compute.split_pattern(text, " ")
    words = split.flatten().dictionary_encode()
    lengths = np.diff(split.offsets.to_numpy())
    phrases = np.full((len(lengths), _MAX_PHRASE + 1), -1, dtype=np.int64)
    phrase = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(phrase)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    phrases[phrase, place] = words.indices.to_numpy()
    return words.dictionary.to_pylist(), phrases, (pairs[:entries], pairs[entries:])


def _columns(table: Path) -> "Iterator[tuple[pyarrow.Array, pyarrow.Array]]":
    """Yield the phrases, then the paraphrases, of one block of the table after the other, with line ends."""
    import pyarrow
    from tqdm.auto import tqdm  # needed only when the index is built

    rest = b""
    with (
        gzip.open(table, "rb") as file,
        tqdm(desc="Indexing METEOR's paraphrases (once)", unit=" entries", unit_scale=True, disable=None) as progress,
    ):
        while content := file.read(_CHUNK):
            rest += content
            ends = np.flatnonzero(np.frombuffer(rest, dtype=np.uint8) == ord("\n")) + 1
            ends = np.concatenate([[0], ends[: len(ends) // _LINES * _LINES]])
            buffers = [None, pyarrow.py_buffer(ends.astype(np.int64)), pyarrow.py_buffer(rest)]
            lines = pyarrow.Array.from_buffers(pyarrow.large_binary(), len(ends) - 1, buffers)
            yield lines.take(np.arange(1, len(lines), _LINES)), lines.take(np.arange(2, len(lines), _LINES))
            progress.update(len(lines) // _LINES)
            rest = rest[ends[-1] :]
    if rest:
        raise ValueError(f"{table} ends within an entry, after {rest[:80]!r}.")


def _levels(rows: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Yield the sorted keys of each level (1 to 7 words), and the key position of phrases that end there, else -1."""
    nodes = np.zeros(len(rows), dtype=np.int64)
    for level in range(_MAX_PHRASE):
        open_rows = np.flatnonzero(rows[:, level] >= 0)
        keys, inverse = np.unique(nodes[open_rows] << _WORD_BITS | rows[open_rows, level], return_inverse=True)
        nodes[open_rows] = inverse
        places = np.full(len(rows), -1, dtype=np.int64)
        ends = open_rows[rows[open_rows, level + 1] < 0]
        places[ends] = nodes[ends]
        yield keys, places
