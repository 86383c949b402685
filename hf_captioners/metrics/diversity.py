"""How varied and how healthy captions are: figures that need no references, or only the training captions.

Sources: Shetty et al., ICCV 2017, section 4.2 (Div-n, mBLEU, novel captions); Luo et al., CVPR 2018 (captions that
break off after training with CIDEr).
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
"""Words with which a finished caption does not end."""


def caption_health(captions: Sequence[str], training_captions: Collection[str] | None = None) -> dict[str, float]:
    """Describe the captions of many images, one per image.

    Args:
        captions: tokenised captions.
        training_captions: tokenised captions of the training set, best as a set.

    Returns:
        `distinct`, the share of captions that differ from all others; `div_1` and `div_2`, distinct words and pairs of
        words divided by their number; `vocabulary`, distinct words; `length`, mean words; `bad_endings`, the share of
        captions that break off; `empty`, the share without a word; with training captions also `novel`, the share that
        is not among them.

    Raises:
        TypeError: a caption is not a string.
        ValueError: there is no caption.
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
    """Describe how different the captions of each image are from one another.

    Args:
        caption_sets: for each image two or more tokenised captions.

    Returns:
        `distinct`, `div_1` and `div_2` within an image's captions, and `m_bleu_4`, BLEU-4 of each caption against the
        others of its image (low is varied); each the mean over images, but mBLEU one figure over all.

    Raises:
        ValueError: there are no sets, or one has fewer than two captions.
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
