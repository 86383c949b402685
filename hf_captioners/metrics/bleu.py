"""BLEU-1 to BLEU-4, computed as in coco-caption."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .integer_map import Integers
from .ngrams import ORDERS, Caption, NGramTable, count, split_captions
from .registry import Score

_CHUNK = 1_000  # images per pass: the n-grams of one pass fit into the CPU cache
_TINY, _SMALL = 1e-15, 1e-9  # smoothing constants of the original program; they are visible in published digits


class BleuCounts(NamedTuple):
    """Sufficient statistics of BLEU. The counts of a corpus are the sums over its images.

    Attributes:
        correct: `[images, 4]` matched n-grams of the candidate. An n-gram matches at most as often as it occurs in any
            single reference.
        total: `[images, 4]` n-grams of the candidate.
        length: `[images]` number of words of the candidate.
        closest: `[images]` number of words of the reference with the closest length; the shorter one on a tie.
    """

    correct: Integers
    total: Integers
    length: Integers
    closest: Integers


def bleu_counts(predictions: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> BleuCounts:
    """Count, for each image, the words and n-grams of its prediction and those that match its references.

    Args:
        predictions: one tokenised caption per image, as strings or lists of token ids.
        references: the tokenised reference captions of each image.

    Returns:
        The counts, as input of `corpus_bleu` and `bleu_from_counts`.

    Examples:
        >>> from hf_captioners.metrics import bleu_counts
        >>> counts = bleu_counts(["a dog runs on grass"], [["a dog runs", "the dog runs on the grass"]])
        >>> counts.correct.tolist(), counts.total.tolist()
        ([[5, 3, 2, 0]], [[5, 4, 3, 2]])
    """
    chunks = [
        _count_some(predictions[start : start + _CHUNK], references[start : start + _CHUNK])
        for start in range(0, len(predictions), _CHUNK)
    ]
    return BleuCounts(*map(np.concatenate, zip(*chunks, strict=True)))


def _count_some(predictions: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> BleuCounts:
    n_references = np.fromiter(map(len, references), dtype=np.int64, count=len(references))
    images = np.repeat(np.arange(len(references)), n_references)
    theirs = split_captions([caption for captions in references for caption in captions])
    mine = split_captions(predictions)
    table = NGramTable(theirs)
    correct = _clipped(NGramTable(mine, base=table), table, images, len(predictions))
    total = np.maximum(0, mine.lengths[:, None] - np.arange(ORDERS))
    return BleuCounts(correct, total, mine.lengths, _closest(mine.lengths, theirs.lengths, n_references, images))


def _clipped(table: NGramTable, reference_table: NGramTable, images: Integers, n_images: int) -> Integers:
    """Return the `[images, orders]` numbers of n-grams of the captions in `table` that match the references."""
    size = max(1, ORDERS * table.size)
    keys, counts = count(table.captions * size + table.grams)
    if not len(keys):
        return np.zeros((n_images, ORDERS), dtype=np.int64)
    reference_keys, reference_counts = count(reference_table.captions * size + reference_table.grams)
    captions, grams = np.divmod(reference_keys, size)
    needed = images[captions] * size + grams
    at = np.minimum(np.searchsorted(keys, needed), len(keys) - 1)
    hits = np.flatnonzero(keys[at] == needed)
    best = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(best, at[hits], reference_counts[hits])
    slots = keys // size * ORDERS + keys % ORDERS
    sums = np.bincount(slots, np.minimum(counts, best), minlength=n_images * ORDERS)
    return sums.astype(np.int64).reshape(n_images, ORDERS)


def _closest(lengths: Integers, references: Integers, n_references: Integers, images: Integers) -> Integers:
    if not len(references):
        return np.zeros_like(lengths)
    distance = np.abs(references - lengths[images])
    rank = np.lexsort((references, distance, images))
    return references[rank[np.cumsum(n_references) - n_references]]


def bleu_from_counts(counts: BleuCounts, brevity_penalty: bool = True) -> NDArray[np.float64]:
    """Return BLEU-1 to BLEU-4 of each image.

    Args:
        counts: the counts of the images.
        brevity_penalty: whether to penalise captions that are shorter than the closest reference. Show, Attend and
            Tell reports BLEU without this penalty.

    Returns:
        `[4, images]` scores between 0 and 1.

    Source: Papineni et al. 2002, section 2.3.

    Examples:
        >>> from hf_captioners.metrics import bleu_counts, bleu_from_counts
        >>> counts = bleu_counts(["a dog runs", "a cat"], [["a dog runs fast"], ["a cat"]])
        >>> bleu_from_counts(counts)[0].round(4).tolist()
        [0.7165, 1.0]
    """
    precisions = (counts.correct + _TINY) / (counts.total + _SMALL)
    scores = (np.cumprod(precisions, axis=1) ** (1.0 / np.arange(1, ORDERS + 1))).T
    if not brevity_penalty:
        return scores
    ratio = (counts.length + _TINY) / (counts.closest + _SMALL)
    return scores * np.exp(np.minimum(0.0, 1 - 1 / ratio))


def corpus_bleu(counts: BleuCounts, brevity_penalty: bool = True) -> NDArray[np.float64]:
    """Return BLEU-1 to BLEU-4 of the whole corpus, computed from the summed counts of its images.

    Args:
        counts: the counts of the images.
        brevity_penalty: see `bleu_from_counts`.

    Returns:
        `[4]` scores between 0 and 1.

    Examples:
        >>> from hf_captioners.metrics import bleu_counts, corpus_bleu
        >>> predictions = ["a man rides a horse on the beach", "two dogs run on grass"]
        >>> references = [["a man riding a horse on the beach"], ["two dogs run on green grass", "dogs playing"]]
        >>> corpus_bleu(bleu_counts(predictions, references)).round(4).tolist()
        [0.8547, 0.7587, 0.6665, 0.5855]
    """
    sums = BleuCounts(*(part.sum(axis=0, keepdims=True) for part in counts))
    return bleu_from_counts(sums, brevity_penalty)[:, 0]


def score_bleu(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Iterator[Score]:
    """Yield the scores of the metric `bleu`: BLEU-1 to BLEU-4 with the brevity penalty."""
    return _scores(predictions, references, True, "", "closest reference length")


def score_bleu_without_penalty(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Iterator[Score]:
    """Yield the scores of the metric `bleu_no_penalty`: BLEU-1 to BLEU-4 without the brevity penalty."""
    return _scores(predictions, references, False, "_no_penalty", "without brevity penalty")


def _scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], brevity_penalty: bool, suffix: str, variant: str
) -> Iterator[Score]:
    counts = bleu_counts(predictions, references)
    corpus, per_image = corpus_bleu(counts, brevity_penalty), bleu_from_counts(counts, brevity_penalty)
    for order in range(ORDERS):
        name = f"bleu_{order + 1}{suffix}"
        yield Score(name, corpus[order], f"BLEU-{order + 1}, {variant}", per_image[order].tolist())
