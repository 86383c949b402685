"""What happens at the edges of a run: epochs told to the sampler, stopping when nothing improves."""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .images import CaptionSampler


class EpochCallback(TrainerCallback):
    """Tells the sampler which epoch begins.

    Accelerate does so too, except where several processes resume in the middle of an epoch: there the loader wraps the
    sampler once more than it looks.

    Args:
        sampler: draws the pairs.
    """

    def __init__(self, sampler: CaptionSampler) -> None:
        self.sampler = sampler

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass on the number of the epoch."""
        self.sampler.set_epoch(int(state.epoch or 0))


class ElementClipping(TrainerCallback):
    """Clips every element of the gradient by itself, as AoANet's and ZoDIAC's programs do (0.1).

    Args:
        largest: size of an element, above 0.
    """

    def __init__(self, largest: float) -> None:
        self.largest = largest

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Clip what all batches of the step have added up to."""
        torch.nn.utils.clip_grad_value_(model.parameters(), self.largest)


class StopWithoutProgress(TrainerCallback):
    """Stops after a number of evaluations that were not better than an earlier one.

    It counts in the log, which checkpoints hold: a resumed run stops where an uninterrupted one would, and another
    patience may be given when resuming. (`EarlyStoppingCallback` begins to count anew, or brings back its old
    patience.)

    Args:
        patience: evaluations to wait, at least 1.
        metric: key of the log, as `eval_cider_d`.
        greater_is_better: whether larger figures are better.
    """

    def __init__(self, patience: int, metric: str, greater_is_better: bool) -> None:
        self.patience, self.metric, self.greater_is_better = patience, metric, greater_is_better

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop if that is due."""
        if self.is_due(state):
            control.should_training_stop = True

    def is_due(self, state: TrainerState) -> bool:
        """Whether the best figure is `patience` evaluations old."""
        figures = [entry[self.metric] for entry in state.log_history if self.metric in entry]
        if not figures:
            return False
        best = max(figures) if self.greater_is_better else min(figures)
        return len(figures) - 1 - figures.index(best) >= self.patience
