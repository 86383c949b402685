"""Significance of the difference between two systems, by the paired bootstrap.

Source: Koehn, "Statistical Significance Tests for Machine Translation Evaluation", EMNLP 2004.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_CHUNK = 1 << 22  # random numbers per draw


class Comparison(NamedTuple):
    """Difference of two systems' mean scores on the same images, with confidence interval and p-value.

    Attributes:
        difference: mean score of the first system minus mean score of the second.
        low: lower bound of the 95 % confidence interval of the difference.
        high: upper bound of the interval.
        p_value: two-sided p-value of the difference.
        significant: whether `p_value` is below 0.05.
    """

    difference: float
    low: float
    high: float
    p_value: float
    significant: bool


def compare_systems(
    first: Sequence[float], second: Sequence[float], n_samples: int = 10_000, seed: int = 0
) -> Comparison:
    """Compare two systems with the paired bootstrap: the same images are drawn with replacement for both.

    The test suits metrics whose corpus score is the mean over images (ROUGE-L, CIDEr, SPICE). For BLEU and METEOR,
    whose corpus scores are not means, it compares the means of the image scores.

    Args:
        first: scores of the first system, one per image.
        second: scores of the second system for the same images.
        n_samples: number of bootstrap samples.
        seed: seed of the random numbers.

    Returns:
        The difference with its confidence interval and p-value.

    Raises:
        ValueError: the lengths differ, or there are fewer than two images.

    Examples:
        >>> from hf_captioners.metrics import compare_systems
        >>> comparison = compare_systems([0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.4, 0.6])
        >>> round(comparison.difference, 2), comparison.significant
        (0.3, True)
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(
            f"{len(first)} scores of the first system and {len(second)} of the second, expected equally many, two or "
            f"more."
        )
    gains = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    draw = np.random.default_rng(seed)
    means = np.empty(n_samples)
    step = max(1, _CHUNK // len(gains))
    for start in range(0, n_samples, step):
        size = min(step, n_samples - start)
        means[start : start + size] = gains[draw.integers(len(gains), size=(size, len(gains)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    p_value = min(1.0, 2 * (tail + 1) / (n_samples + 1))
    return Comparison(float(gains.mean()), float(low), float(high), p_value, p_value < 0.05)
