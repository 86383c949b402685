"""Metrics of detected words: average precision, and the precision of the most probable words."""

from collections.abc import Mapping

import numpy as np


def average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the average precision of one word over images, ranked by score; labels mark images with the word.

    Images with equal scores share the precision of the last of them, so that their order does not matter.

    Args:
        scores: `[N]`.
        labels: `[N]` bool, at least one True.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, has_word = scores[order], labels[order]
    last = np.searchsorted(-ranked, -ranked, side="right")  # ranks of the last image with the same score, from 1
    precision = np.cumsum(has_word)[last - 1] / last
    return float(precision[has_word].mean())


def mean_average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the average precision of attribute words, averaged over the words that any image has.

    Args:
        scores: `[N, W]`, of N images and W words.
        labels: `[N, W]` bool, True where a caption of the image has the word.

    Raises:
        ValueError: the shapes differ, or no image has a word.
    """
    if scores.shape != labels.shape or scores.ndim != 2:
        raise ValueError(f"`scores` {scores.shape} and `labels` {labels.shape} differ, expected both [images, words].")
    present = labels.any(0)
    if not present.any():
        raise ValueError("No caption has one of the words.")
    return float(np.mean([average_precision(scores[:, word], labels[:, word]) for word in np.flatnonzero(present)]))


def precision_of_likeliest(scores: np.ndarray, labels: np.ndarray, number: int) -> float:
    """Return the share of the `number` most probable words of each image that its captions have."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :number]
    return float(np.take_along_axis(labels, best, axis=1).mean())


def word_metrics(scores: np.ndarray, labels: np.ndarray, number: int = 10) -> Mapping[str, float]:
    """Return the metrics of an attribute detector, and of two baselines that do not depend on the image.

    Args:
        scores: `[N, W]`; the words are sorted by their frequency in the training captions, most frequent first.
        labels: `[N, W]` bool.
        number: of likeliest words.

    Returns:
        `mean_average_precision`; `mean_average_precision_shuffled` of the scores of the next image;
        `precision_at_NUMBER`; `precision_at_NUMBER_of_frequent`, that of the most frequent words.
    """
    return {
        "mean_average_precision": mean_average_precision(scores, labels),
        "mean_average_precision_shuffled": mean_average_precision(np.roll(scores, 1, axis=0), labels),
        f"precision_at_{number}": precision_of_likeliest(scores, labels, number),
        f"precision_at_{number}_of_frequent": float(labels[:, :number].mean()),
    }
