"""Measures of confidence: ranking (AUROC), calibration error, and risk-coverage."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .estimator import Array
from .fitting import Predicted

BINS = 10
BOOTSTRAP_SAMPLES = 500


def auroc(scores: Array, is_right: Array) -> float:
    """Return the area under the ROC curve: how often a right word scores higher than a wrong word.

    Args:
        scores: `[N]`; equal ones count half.
        is_right: `[N]`, booleans.

    Returns:
        0 to 1; NaN if all are right or all wrong.

    Examples:
        >>> import numpy as np
        >>> from hf_captioners.confidence.measures import auroc
        >>> auroc(np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, True, False, False]))
        0.875
    """
    chosen = np.asarray(is_right, dtype=bool)
    right = int(chosen.sum())
    wrong = len(chosen) - right
    if not right or not wrong:
        return float("nan")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[places]
    return float((ranks[chosen].sum() - right * (right + 1) / 2) / (right * wrong))


def reliability(confidences: Array, is_right: Array, bins: int = BINS) -> list[dict[str, float]]:
    """Return `count`, mean `confidence` and share of right words for each non-empty bin of equal width."""
    places = np.minimum((np.asarray(confidences) * bins).astype(int), bins - 1)
    return [
        {
            "low": bin_ / bins,
            "count": int(inside.sum()),
            "confidence": round(float(confidences[inside].mean()), 4),
            "right": round(float(is_right[inside].mean()), 4),
        }
        for bin_ in range(bins)
        if (inside := places == bin_).any()
    ]


def calibration_error(confidences: Array, is_right: Array, bins: int = BINS) -> float:
    """Return the expected calibration error: the mean difference between confidence and accuracy of bins."""
    places = np.minimum((np.asarray(confidences) * bins).astype(int), bins - 1)
    gaps = np.bincount(places, np.asarray(confidences) - np.asarray(is_right, dtype=float), minlength=bins)
    return float(np.abs(gaps).sum() / len(confidences))


def surest(predicted: Predicted) -> NDArray[np.intp]:
    """Return the order of captions by the mean confidence of their words, highest first."""
    return np.argsort([-values.mean() for values in predicted.words], kind="stable")


def risk_coverage(predicted: Predicted, parts: int = 10) -> list[dict[str, float]]:
    """Return support and minimum mean confidence for each share of the most confident captions."""
    order = surest(predicted)
    shares = np.array([row.mean() for row in predicted.supported])[order]
    means = np.array([values.mean() for values in predicted.words])[order]
    counts = [max(1, round(len(order) * part / parts)) for part in range(1, parts + 1)]
    return [
        {
            "coverage": round(part / parts, 4),
            "support": round(float(shares[:count].mean()), 4),
            "least_confidence": round(float(means[count - 1]), 4),
        }
        for part, count in enumerate(counts, 1)
    ]


def gain_of_surest_half(predicted: Predicted) -> float:
    """Return the support of the most confident half divided by that of all captions; NaN if no word is right."""
    shares = np.array([row.mean() for row in predicted.supported])
    if not shares.any() or len(shares) < 2:
        return float("nan")
    return float(shares[surest(predicted)[: len(shares) // 2]].mean() / shares.mean())


FIGURES: dict[str, Callable[[Predicted], float]] = {
    "auroc_words": lambda data: auroc(np.concatenate(data.words), np.concatenate(data.supported)),
    "auroc_captions": lambda data: auroc(data.captions, np.array([row.all() for row in data.supported])),
    "calibration_error_words": lambda data: calibration_error(
        np.concatenate(data.words), np.concatenate(data.supported)
    ),
    "calibration_error_captions": lambda data: calibration_error(
        data.captions, np.array([row.all() for row in data.supported])
    ),
    "surest_half": gain_of_surest_half,
}
"""Figures of confidences over images."""


def intervals(predicted: Predicted, seed: int = 0) -> dict[str, list[float]]:
    """Return the 95 % bootstrap interval, over images, of each measure."""
    draw, count = np.random.default_rng(seed), len(predicted.words)
    values: dict[str, list[float]] = {name: [] for name in FIGURES}
    for _ in range(BOOTSTRAP_SAMPLES):
        places = draw.integers(count, size=count)
        drawn = Predicted(
            [predicted.words[place] for place in places],
            [predicted.supported[place] for place in places],
            predicted.captions[places],
        )
        for name, figure in FIGURES.items():
            values[name].append(figure(drawn))
    return {
        name: [round(float(bound), 4) for bound in np.nanquantile(samples, [0.025, 0.975])]
        for name, samples in values.items()
    }


def measured(predicted: Predicted) -> dict[str, Any]:
    """Return all measures with intervals, the bins of words, and the risk-coverage curve of captions."""
    bounds = intervals(predicted)
    results: dict[str, Any] = {
        name: {"value": round(figure(predicted), 4), "interval": bounds[name]} for name, figure in FIGURES.items()
    }
    words, supported = np.concatenate(predicted.words), np.concatenate(predicted.supported)
    return results | {
        "captions": len(predicted.words),
        "words": len(words),
        "right_words": round(float(supported.mean()), 4),
        "right_captions": round(float(np.mean([row.all() for row in predicted.supported])), 4),
        "reliability": reliability(words, supported),
        "risk_coverage": risk_coverage(predicted),
    }
