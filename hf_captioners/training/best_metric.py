"""The metric of the best model: which names an evaluation computes."""

from collections.abc import Sequence
from typing import Any

from hf_captioners.metrics.registry import METRICS, find_metrics, metric_of
from hf_captioners.names import did_you_mean

STATISTICS = ("distinct", "length", "length_ratio", "bad_endings")
"""Statistics of captions that every evaluation reports."""


def require_best_metric(name: str, metrics: Sequence[Any]) -> None:
    """Check that evaluations compute a metric.

    Args:
        name: `metric_for_best_model`, with or without `eval_`.
        metrics: `eval_metrics`.

    Raises:
        ValueError: they do not. The message has the nearest name, or the metric to add.
    """
    best = name.removeprefix("eval_")
    found = find_metrics(metrics)
    known = {score: metric for metric, one in METRICS.items() for score in (one.titles or [metric])}
    computed = [score for score, metric in known.items() if metric in found]
    needed = metric_of(best)
    if needed is not None and needed not in found:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, which `eval_metrics` ({', '.join(found)}) does not compute: "
            f"add {needed} to `eval_metrics`, or choose the best model by another metric."
            f"{did_you_mean(best, [*computed, 'loss'])}"
        )
    has_own = any(one not in METRICS for one in found)  # which may compute scores of any name
    if best not in (*computed, "loss", *STATISTICS) and not has_own:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, expected one of {', '.join([*computed, 'loss', *STATISTICS])}."
            f"{did_you_mean(best, [*computed, 'loss'])}"
        )
