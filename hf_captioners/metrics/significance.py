"""Whether one system is better than another by more than chance: the paired bootstrap.

Source: Koehn, "Statistical Significance Tests for Machine Translation Evaluation", EMNLP 2004.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_CHUNK = 1 << 22  # numbers drawn at a time


class Comparison(NamedTuple):
    """The difference of two systems over the same images.

    Attributes:
        difference: mean of the first minus mean of the second.
        low: lower end of the 95 % interval of the difference.
        high: upper end.
        p_value: two-sided; how often a difference at least this large would come from drawing images.
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
    """Compare two systems by drawing images with replacement, the same ones for both.

    For figures that are means over images (ROUGE-L, CIDEr, SPICE). For BLEU and METEOR, whose corpus figures are not
    means, this compares the means of the images' figures.

    Args:
        first: figures of the first system, one per image.
        second: figures of the second system for the same images.
        n_samples: how often to draw.
        seed: of the random numbers.

    Raises:
        ValueError: the lengths differ, or there are fewer than two images.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(
            f"{len(first)} figures of the first system and {len(second)} of the second, expected two or more of the "
            f"same images."
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
