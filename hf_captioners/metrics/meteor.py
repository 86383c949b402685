"""METEOR 1.5 for English with the options of the COCO caption evaluation (`-l en -norm`), without Java.

Source: Denkowski and Lavie, "Meteor Universal", WMT 2014; parameters of the "rank" task.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .integer_map import Integers, occur_in
from .meteor_alignment import HYPOTHESIS_LENGTH, REFERENCE_LENGTH, STAGE, Matches, align, count_chunks
from .meteor_normalizer import MeteorNormalizer
from .meteor_tables import FUNCTION_WORDS, MeteorTables
from .paraphrases import PhraseMatch
from .registry import Score
from .snowball_english import stem

STAGES = ("exact", "stem", "synonym", "paraphrase")
"""The matching stages in the order of their application."""

_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.20, 0.60, 0.75
_STAGE_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
_N_STATISTICS = 23
_CELLS = 1 << 18  # pairs of words that are compared at once
# Used without tables: single capitals and the most common titles keep their full stop.
_PREFIXES = frozenset([*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "Mr", "Mrs", "Ms", "Dr", "St", "Prof", "vs", "e.g", "i.e"])

Statistics = NDArray[np.float64]


class MeteorResult(NamedTuple):
    """METEOR of a corpus and of each image, with the match statistics.

    Attributes:
        corpus: the score of the summed statistics, which is not the mean over images.
        per_image: `[images]` scores.
        statistics: `[images, 23]` statistics of the best reference: the numbers of words of hypothesis and reference;
            of function words of both; for each stage, of matched content words and matched function words of both;
            of chunks; of matched words of both.
    """

    corpus: float
    per_image: NDArray[np.float64]
    statistics: Statistics


class Meteor:
    """Scorer of METEOR 1.5 for English.

    Args:
        stages: the matching stages, a prefix of `STAGES`. Scores with fewer stages are not comparable with published
            scores.
        tables: the tables of synonyms and paraphrases. By default they are read from the installed pycocoevalcap.

    Raises:
        ValueError: `stages` is not a prefix of `STAGES`.
        FileNotFoundError: the stages require tables that are not installed.

    Examples:
        >>> from hf_captioners.metrics import Meteor
        >>> meteor = Meteor(stages=("exact", "stem"))  # without tables
        >>> result = meteor.score(["a man rides a horse", "a cat"], [["a man riding a horse"], ["two dogs run"]])
        >>> result.per_image.round(4).tolist()
        [0.8909, 0.0]
    """

    def __init__(self, stages: Sequence[str] = STAGES, tables: MeteorTables | None = None) -> None:
        self.stages = tuple(stages)
        if not self.stages or self.stages != STAGES[: len(self.stages)]:
            raise ValueError(f"`stages` is {stages!r}, expected a prefix of {STAGES}.")
        if tables is None and len(self.stages) > 2:
            tables = MeteorTables()
        self._tables = tables
        prefixes = (_PREFIXES, frozenset(["No"])) if tables is None else tables.prefixes
        self._normalize = MeteorNormalizer(*prefixes).normalize

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> MeteorResult:
        """Score each tokenised caption against its best-matching reference.

        Args:
            predictions: one tokenised caption per image.
            references: the tokenised reference captions of each image.

        Returns:
            The corpus score, the image scores and their statistics.
        """
        captions: dict[tuple[str, ...], int] = {}
        pairs: list[tuple[int, int]] = []
        for prediction, others in zip(predictions, references, strict=True):
            clean = prediction.replace("|||", "").replace("  ", " ")
            hypothesis = captions.setdefault(self._words(clean), len(captions))
            pairs += [(hypothesis, captions.setdefault(self._words(reference), len(captions))) for reference in others]
        statistics = self._pair_statistics(list(captions), pairs)
        scores = _scores(statistics)
        best, start = [], 0
        for others in references:
            best.append(start + int(np.argmax(scores[start : start + len(others)])))
            start += len(others)
        chosen = statistics[best]
        return MeteorResult(_corpus_score(chosen), scores[best], chosen)

    def _words(self, caption: str) -> tuple[str, ...]:
        normal = self._normalize(caption)
        return tuple(normal.split(" ")) if normal else ()

    def _pair_statistics(self, captions: list[tuple[str, ...]], pairs: list[tuple[int, int]]) -> Statistics:
        if not pairs:
            return np.empty((0, _N_STATISTICS))
        distinct, places = np.unique(np.array(pairs, dtype=np.int64), axis=0, return_inverse=True)
        phrases: list[list[PhraseMatch]] = [[]] * len(distinct)
        if "paraphrase" in self.stages and self._tables is not None:
            phrases = list(self._tables.paraphrases.match(captions, list(map(tuple, distinct.tolist()))))
        words = _Words(captions, self.stages, self._tables)
        cells = np.cumsum(words.lengths[distinct].prod(axis=1))
        parts, start = [], 0
        while start < len(distinct):
            done = cells[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(cells, done + _CELLS, side="right")))
            parts.append(_statistics(words, distinct[start:stop], phrases[start:stop]))
            start = stop
        return np.concatenate(parts)[places.ravel()]


class _Words:
    """The words of captions as integers, and the pairs of words that match by stem or synonym.

    Args:
        captions: the words of each caption.
        stages: the matching stages.
        tables: the synonyms; None: no stage reads them.
    """

    def __init__(
        self, captions: Sequence[tuple[str, ...]], stages: Sequence[str], tables: MeteorTables | None
    ) -> None:
        numbers: dict[str, int] = {}
        flat = [numbers.setdefault(word, len(numbers)) for caption in captions for word in caption]
        self.words = np.array(flat, dtype=np.int64)
        self.lengths = np.array([len(caption) for caption in captions], dtype=np.int64)
        self.firsts = np.cumsum(self.lengths) - self.lengths
        is_function = np.array([word in FUNCTION_WORDS for word in numbers], dtype=np.int64)[self.words]
        self.function_words = np.concatenate([[0], np.cumsum(is_function)])
        """Number of function words before a word of all captions."""
        stems: dict[str, int] = {}
        self.stems = np.array([stems.setdefault(stem(word), len(stems)) for word in numbers], dtype=np.int64)
        self.compared = stages
        self.synonyms = np.empty(0, dtype=np.int64)  # number of one word x number of words + number of the other
        if "synonym" in stages and tables is not None:
            self.synonyms = _synonyms(list(numbers), tables)

    def matches(self, pairs: Integers, phrases: Sequence[Sequence[PhraseMatch]]) -> Matches:
        """Return all possible matches of words and phrases between the two captions of each pair.

        Args:
            pairs: `[pairs, 2]` hypothesis and reference as positions in the captions.
            phrases: the paraphrases of each pair.
        """
        heights, widths = self.lengths[pairs[:, 1]], self.lengths[pairs[:, 0]]
        sizes = heights * widths
        pair = np.repeat(np.arange(len(pairs)), sizes)
        there, here = np.divmod(np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes), widths[pair])
        theirs = self.words[self.firsts[pairs[:, 1]][pair] + there]
        mine = self.words[self.firsts[pairs[:, 0]][pair] + here]
        equal = theirs == mine
        differs = ~equal & self._differ(pairs)[pair]  # equal words are matched already
        stages = [equal]
        if "stem" in self.compared:
            stages.append(differs & (self.stems[theirs] == self.stems[mine]))
        if "synonym" in self.compared:
            stages.append(differs & occur_in(self.synonyms, theirs * len(self.stems) + mine))
        pairs_of_matches, spans = [], []
        for stage, matched in enumerate(stages):
            rows = np.flatnonzero(matched)
            one = np.ones(len(rows), dtype=np.int64)
            pairs_of_matches.append(pair[rows])
            spans.append(np.stack([stage * one, there[rows], one, here[rows], one], axis=1))
        differ = self._differ(pairs)
        rest = [(number, 3, *match) for number, some in enumerate(phrases) if differ[number] for match in some]
        of_phrases = np.array(rest, dtype=np.int64).reshape(-1, 6)
        pair = np.concatenate([*pairs_of_matches, of_phrases[:, 0]])
        order = np.argsort(pair, kind="stable")
        return Matches(pair[order], np.concatenate([*spans, of_phrases[:, 1:]])[order])

    def _differ(self, pairs: Integers) -> NDArray[np.bool_]:
        """Return True for each pair whose two captions differ."""
        return pairs[:, 0] != pairs[:, 1]


def _synonyms(words: Sequence[str], tables: MeteorTables) -> Integers:
    """Return the sorted pairs of words that share a synset, each as one integer, see `_Words.synonyms`."""
    words_of: dict[int, list[int]] = {}
    for number, word in enumerate(words):
        for synset in tables.synonyms.find(word):
            words_of.setdefault(synset, []).append(number)
    pairs = {first * len(words) + second for group in words_of.values() for first in group for second in group}
    return np.array(sorted(pairs), dtype=np.int64)


def _statistics(words: _Words, pairs: Integers, phrases: Sequence[Sequence[PhraseMatch]]) -> Statistics:
    """Align the captions of each pair and return their match statistics, see `MeteorResult`."""
    lengths, firsts, functions = words.lengths[pairs], words.firsts[pairs], words.function_words
    chosen = align(words.matches(pairs, phrases), lengths[:, 1], lengths[:, 0])
    rows = np.zeros((len(pairs), _N_STATISTICS))
    rows[:, 0:2] = lengths
    rows[:, 2:4] = functions[firsts + lengths] - functions[firsts]
    for side, length in ((0, HYPOTHESIS_LENGTH), (1, REFERENCE_LENGTH)):
        sizes = chosen.spans[:, length]
        start = firsts[chosen.pairs, side] + chosen.spans[:, length - 1]
        function = functions[start + sizes] - functions[start]
        stage = 4 + 4 * chosen.spans[:, STAGE] + side
        np.add.at(rows, (chosen.pairs, stage), sizes - function)
        np.add.at(rows, (chosen.pairs, stage + 2), function)
        np.add.at(rows[:, 21 + side], chosen.pairs, sizes)
    rows[:, 20] = count_chunks(chosen, len(pairs))
    return rows


def _scores(statistics: Statistics) -> NDArray[np.float64]:
    """Return the METEOR score of each row of match statistics."""
    words, function_words = statistics[:, 0:2], statistics[:, 2:4]
    stages = statistics[:, 4:20].reshape(-1, 4, 2, 2)  # row, stage, content or function, hypothesis or reference
    counted = np.einsum("s,rscx->rcx", _STAGE_WEIGHTS, stages)
    matched = _DELTA * counted[:, 0] + (1 - _DELTA) * counted[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = matched / (_DELTA * (words - function_words) + (1 - _DELTA) * function_words)
        precision, recall = shares[:, 0], shares[:, 1]
        mean = 1.0 / ((1.0 - _ALPHA) / precision + _ALPHA / recall)
        fragmentation = statistics[:, 20] / (statistics[:, 21:23].mean(axis=1))
        fragmentation[_perfect(statistics)] = 0.0
        scores = mean * (1.0 - _GAMMA * fragmentation**_BETA)
    return np.nan_to_num(scores, nan=0.0)


def _perfect(statistics: Statistics) -> NDArray[np.bool_]:
    """Return True for each row of statistics in which all words of both captions match, in one chunk."""
    return (statistics[:, 21:23] == statistics[:, 0:2]).all(axis=1) & (statistics[:, 20] == 1)


def _corpus_score(statistics: Statistics) -> float:
    summed = statistics.copy()
    summed[_perfect(statistics), 20] = 0.0
    return float(_scores(summed.sum(axis=0, keepdims=True))[0])


def score_meteor(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    meteor: Meteor | None = None,
    tables: MeteorTables | None = None,
) -> list[Score]:
    """Compute the metric `meteor`: the corpus score and the score of each image."""
    scorer = meteor or Meteor(STAGES, tables)
    result = scorer.score(predictions, references)
    variant = f"METEOR 1.5, English, stages {', '.join(scorer.stages)}"
    return [Score("meteor", result.corpus, variant, result.per_image.tolist())]
