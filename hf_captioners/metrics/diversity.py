"""Diversity and well-formedness of captions: metrics that need no references.

Sources: Shetty et al., ICCV 2017, section 4.2 (Div-n, mBLEU, novel captions); Luo et al., CVPR 2018 (truncated
captions after training with CIDEr).
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import fmean

from .bleu import bleu_counts, corpus_bleu
from .input_checks import check_predictions

BAD_ENDINGS = frozenset(
    [
        "a",
        "an",
        "the",
        "in",
        "for",
        "at",
        "of",
        "with",
        "before",
        "after",
        "on",
        "upon",
        "near",
        "to",
        "is",
        "are",
        "am",
    ]
    + ["and", "or"]
)
"""Last words that mark a truncated caption."""


def caption_health(captions: Sequence[str], training_captions: Collection[str] | None = None) -> dict[str, float]:
    """Compute diversity and well-formedness of captions, one caption per image.

    Args:
        captions: tokenised captions.
        training_captions: tokenised captions of the training set, preferably as a set.

    Returns:
        A dictionary with `distinct`, the number of distinct captions divided by the number of captions; `div_1` and
        `div_2`, the numbers of distinct words and word pairs divided by the numbers of all of them; `vocabulary`, the
        number of distinct words; `length`, the mean number of words; `bad_endings`, the share of truncated captions;
        `empty`, the share of empty captions; and, if training captions are given, `novel`, the share of captions that
        are not among them.

    Raises:
        TypeError: a caption is not a string.
        ValueError: there is no caption.

    Examples:
        >>> from hf_captioners.metrics import caption_health
        >>> results = caption_health(["a man on a", "a dog", "a dog"], training_captions={"a dog"})
        >>> round(results["distinct"], 2), round(results["bad_endings"], 2), round(results["novel"], 2)
        (0.67, 0.33, 0.33)
    """
    check_predictions(captions)
    rows = [caption.split() for caption in captions]
    figures = {
        "distinct": len(set(map(tuple, rows))) / len(rows),
        "div_1": _distinct_share([(word,) for row in rows for word in row]),
        "div_2": _distinct_share([pair for row in rows for pair in pairwise(row)]),
        "vocabulary": float(len({word for row in rows for word in row})),
        "length": fmean(map(len, rows)),
        "bad_endings": fmean(bool(row) and row[-1] in BAD_ENDINGS for row in rows),
        "empty": fmean(not row for row in rows),
    }
    if training_captions is not None:
        seen = training_captions if isinstance(training_captions, set | frozenset) else frozenset(training_captions)
        figures["novel"] = fmean(" ".join(row) not in seen for row in rows)
    return figures


def set_diversity(caption_sets: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute the diversity among several captions of the same image.

    Args:
        caption_sets: two or more tokenised captions of each image.

    Returns:
        A dictionary with `distinct`, `div_1` and `div_2` (see `caption_health`), computed among the captions of each
        image and averaged over images, and `m_bleu_4`, the corpus BLEU-4 of each caption against the other captions of
        its image. A low mBLEU means diverse captions.

    Raises:
        ValueError: there are no sets, or one has fewer than two captions.

    Examples:
        >>> from hf_captioners.metrics import set_diversity
        >>> results = set_diversity([["a man rides", "a man on a horse"], ["two dogs", "two dogs"]])
        >>> results["distinct"], results["div_1"]
        (0.75, 0.5625)
    """
    if not len(caption_sets) or min(map(len, caption_sets)) < 2:
        raise ValueError("`caption_sets` needs two or more captions for each image.")
    rows = [[caption.split() for caption in captions] for captions in caption_sets]
    others = [
        [*captions[:place], *captions[place + 1 :]] for captions in caption_sets for place in range(len(captions))
    ]
    counts = bleu_counts([caption for captions in caption_sets for caption in captions], others)
    return {
        "distinct": fmean(len(set(map(tuple, captions))) / len(captions) for captions in rows),
        "div_1": fmean(_distinct_share([(word,) for row in captions for word in row]) for captions in rows),
        "div_2": fmean(_distinct_share([pair for row in captions for pair in pairwise(row)]) for captions in rows),
        "m_bleu_4": float(corpus_bleu(counts)[3]),
    }


def _distinct_share(grams: Sequence[tuple[str, ...]]) -> float:
    return len(set(grams)) / len(grams) if grams else 0.0
