"""Divergence: a loss or weights that are not finite end training, before they replace good weights."""

import math
from typing import Any

from torch import Tensor

from hf_captioners.loading import weight_that_is_not_finite
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL

from .checkpoints import last_complete_checkpoint


class DivergenceError(FloatingPointError):
    """The loss or the weights of a training run are not finite."""


def require_finite_loss(loss: float, name: str, trainer: Any) -> None:
    """Check a loss.

    Args:
        loss: its value.
        name: what it is the loss of, for the message.
        trainer: the trainer, for its step and arguments.

    Raises:
        DivergenceError: it is not finite.
    """
    if not math.isfinite(loss):
        raise DivergenceError(f"{name} is {loss}, expected a finite number. {remedy(trainer)}")


def require_targets(labels: Tensor | None, step: int) -> None:
    """Check the labels of a batch whose loss is not finite.

    Raises:
        ValueError: all labels are ignored, so that the loss is a mean over nothing.
    """
    if labels is not None and not bool((labels != IGNORED_LABEL).any()):
        raise ValueError(
            f"All labels of a batch {list(labels.shape)} at step {step} are {IGNORED_LABEL}, which the loss ignores: "
            "expected at least one token, for example the end token. Check the data collator."
        )


def require_finite_weights(trainer: Any) -> None:
    """Check the weights of a trainer before they are saved.

    Raises:
        DivergenceError: a weight is not finite.
    """
    if name := weight_that_is_not_finite(trainer.model):
        raise DivergenceError(
            f"The weight {name} is not finite at step {trainer.state.global_step}, so it is not saved. "
            f"{remedy(trainer)}"
        )


def remedy(trainer: Any) -> str:
    """Return what to try, and where the last good weights are, as text.

    The weights of the current step are those that diverged, so the last good ones are of an earlier step.
    """
    args = trainer.args
    kept = last_complete_checkpoint(args.output_dir, before=trainer.state.global_step)
    where = f"The last good weights are in {kept}: start again with `--model {kept}`," if kept else "Start again with"
    clip = "" if args.max_grad_norm or args.max_grad_value else ", `--max_grad_norm 1`"
    precision = ", `--bf16` instead of `--fp16`" if args.fp16 else ""
    return (
        f"Training has diverged and stops. {where} a different `--output_dir` and a lower `--learning_rate` (now "
        f"{args.learning_rate:g}) or `--warmup_steps`{clip}{precision}."
    )
