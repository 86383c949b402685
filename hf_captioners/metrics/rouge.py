"""ROUGE-L, computed as in coco-caption."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BETA_SQUARED = 1.2**2


def rouge_l(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Return ROUGE-L of the predicted caption of each image. The corpus score is the mean over images.

    Recall and precision of the longest common subsequence are maximised over the references independently. Words are
    separated by single blanks, so that an empty caption is one empty word.

    Args:
        predictions: one tokenised caption per image.
        references: the tokenised reference captions of each image.

    Returns:
        `[images]` scores between 0 and 1.

    Source: Lin 2004, section 3; beta = 1.2.

    Examples:
        >>> from hf_captioners.metrics import rouge_l
        >>> rouge_l(["a man rides a horse", "a cat"], [["a man riding a horse"], ["two dogs"]]).round(4).tolist()
        [0.8, 0.0]
    """
    pairs = zip(predictions, references, strict=True)
    return np.array([_rouge_l(prediction, captions) for prediction, captions in pairs])


def _rouge_l(prediction: str, captions: Sequence[str]) -> float:
    words = prediction.split(" ")
    places: dict[str, int] = {}  # word -> bit set of its positions
    for position, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << position
    everything = (1 << len(words)) - 1
    precision = recall = 0.0
    for caption in captions:
        others = caption.split(" ")
        length = _longest_common_subsequence(places, everything, others)
        precision = max(precision, length / len(words))
        recall = max(recall, length / len(others))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA_SQUARED) * precision * recall / (recall + _BETA_SQUARED * precision)


def _longest_common_subsequence(places: dict[str, int], everything: int, words: list[str]) -> int:
    """Return the length of the longest common subsequence as the zeros of the bit-parallel `row` (Hyyro 2004)."""
    row = everything
    for word in words:
        if here := places.get(word):
            matched = row & here
            row = (row + matched) | (row - matched)
    return (~row & everything).bit_count()
