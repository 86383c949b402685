"""Choice of the best evaluation: by the metric, and by the loss while the metric never changes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

LOSS = "eval_loss"


def best_evaluation(
    history: Sequence[Mapping[str, Any]], metric: str, greater_is_better: bool
) -> tuple[int, dict[str, Any] | None]:
    """Find the best evaluation of a run.

    Of several with the best value the first is the best. While the metric is equal in all evaluations, as one that is
    zero, it chooses nothing: the one with the lowest loss is the best.

    Args:
        history: the log.
        metric: key in the log, such as `eval_cider_d`.
        greater_is_better: whether larger values are better.

    Returns:
        The number of evaluations after the best one, and the best one's entry in the log. 0 and None: there are none.

    Example:

    ```python
    from hf_captioners.training.choosing import best_evaluation

    log = [{"eval_cider_d": 0.0, "eval_loss": loss} for loss in (6.7, 4.9, 5.1)]
    assert best_evaluation(log, "eval_cider_d", True) == (1, log[1])
    ```
    """
    evaluations = [entry for entry in history if metric in entry]
    if not evaluations:
        return 0, None
    sign = 1 if greater_is_better else -1
    best, is_flat = 0, True
    for place, entry in enumerate(evaluations):
        lead = sign * (entry[metric] - evaluations[best][metric])
        is_flat = is_flat and not lead
        loss, smallest = entry.get(LOSS, math.inf), evaluations[best].get(LOSS, math.inf)
        if lead > 0 or (is_flat and loss < smallest):
            best = place
    return len(evaluations) - 1 - best, dict(evaluations[best])


def equal_metric(history: Sequence[Mapping[str, Any]], metric: str) -> str | None:
    """Return a sentence about a metric with the same value in all evaluations; None if the values differ."""
    evaluations = [entry for entry in history if metric in entry]
    values = {entry[metric] for entry in evaluations}
    if len(evaluations) < 2 or len(values) > 1 or metric == LOSS:
        return None
    name, value, number = metric.removeprefix("eval_"), values.pop(), len(evaluations)
    chosen = "the loss chose the best one"
    if not any(LOSS in entry for entry in evaluations):
        chosen = "the first one was kept. Pass `evaluate_loss=true`, so that the loss chooses"
    return (
        f"`metric_for_best_model` is {name}, which was {value:.4f} in all {number} evaluations: {chosen}. "
        "See the captions in the folder `captions`, and whether `caption_tokenizer` fits their language."
    )
