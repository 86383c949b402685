"""Training callbacks: epoch of the sampler, gradient clipping, early stopping, interruption."""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .choosing import best_evaluation
from .images import CaptionSampler


class EpochCallback(TrainerCallback):
    """Callback that tells the sampler the current epoch.

    Accelerate sets it too, except where several processes resume in the middle of an epoch: there the loader wraps the
    sampler once more than Accelerate expects.

    Args:
        sampler: the sampler of the pairs.
    """

    def __init__(self, sampler: CaptionSampler) -> None:
        self.sampler = sampler

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the sampler's epoch."""
        self.sampler.set_epoch(int(state.epoch or 0))


class ElementClipping(TrainerCallback):
    """Callback that clips every element of the gradient, as the programs of AoANet and ZoDIAC do (at 0.1).

    Args:
        largest: maximum absolute value of an element, above 0.
    """

    def __init__(self, largest: float) -> None:
        self.largest = largest

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Clip the gradient accumulated over all batches of the step."""
        torch.nn.utils.clip_grad_value_(model.parameters(), self.largest)


class StopWithoutProgress(TrainerCallback):
    """Callback that stops training after a number of evaluations without improvement.

    It counts in the log, which checkpoints store: a resumed run stops where an uninterrupted one would, and you may
    change the patience when you resume. (`EarlyStoppingCallback` restarts its count, or restores its old patience.)

    Args:
        patience: evaluations without improvement before training stops, at least 1.
        metric: key in the log, such as `eval_cider_d`.
        greater_is_better: whether larger values are better.
    """

    def __init__(self, patience: int, metric: str, greater_is_better: bool) -> None:
        self.patience, self.metric, self.greater_is_better = patience, metric, greater_is_better

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop training if the patience is exhausted."""
        if self.is_due(state):
            control.should_training_stop = True

    def is_due(self, state: TrainerState) -> bool:
        """Return whether the best value is at least `patience` evaluations old."""
        age, best = best_evaluation(state.log_history, self.metric, self.greater_is_better)
        return best is not None and age >= self.patience


class CheckpointAtInterruption(TrainerCallback):
    """Callback that writes a checkpoint after the current step and then stops training with an error.

    A step that ends an epoch is saved after the evaluation of the epoch, which a resumed run would not make up for.
    Runs of several processes, which are not interrupted at the same step, and runs with `save_only_model` end at once.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.is_training = False

    def end_by(self, error: BaseException) -> bool:
        """Request a checkpoint, and an error after it.

        Returns:
            Whether the run will raise the error: False outside of training, and after an earlier error.
        """
        if self.error is not None or not self.is_training:
            return False
        self.error = error
        return True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Defer errors until the next checkpoint from now on."""
        self.is_training = args.world_size == 1 and not args.save_only_model

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Request a checkpoint from the trainer if an error is pending."""
        if not float(state.epoch or 0.5).is_integer():
            self._ask_for_checkpoint(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Request a checkpoint from the trainer if an error is pending."""
        self._ask_for_checkpoint(control)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Request a checkpoint from the trainer if an error is pending."""
        self._ask_for_checkpoint(control)

    def _ask_for_checkpoint(self, control: TrainerControl) -> None:
        if self.error is not None:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Raise the pending error, now that the checkpoint is written."""
        self._raise()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise an error that became pending after the last checkpoint."""
        self.is_training = False
        self._raise()

    def _raise(self) -> None:
        if self.error is not None:
            self.is_training = False
            raise self.error
