"""Learning rate schedules of papers and their programs, in addition to those of transformers."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_utils import SchedulerType

Factor = Callable[[int], float]


@dataclass(frozen=True)
class RunLength:
    """Lengths and sizes of a run that schedules depend on.

    Args:
        steps_per_epoch: optimisation steps per epoch.
        warmup_steps: `warmup_steps` of the arguments, in steps.
        hidden_size: d, width of the captioner; None if its configuration has none.
    """

    steps_per_epoch: int
    warmup_steps: int
    hidden_size: int | None


def noam(run: RunLength, model_dim: int | None = None, step_at_epoch_start: bool = False) -> Factor:
    """Return the factor `d^-0.5 min(s^-0.5, s warmup^-1.5)` at step s = 1, 2, ... (Vaswani et al., 2017, Eq. 3).

    It multiplies `learning_rate`, which is 1 where a paper gives no factor (M2, ETA, ZoDIAC's Transformer).

    Args:
        run: the run; its `warmup_steps` are required (M2: 10,000; ZoDIAC's Transformer: 20,000).
        model_dim: d; default: the captioner's width.
        step_at_epoch_start: advance s once more at the start of each epoch, as the released M2 does: its first batch
            is trained at s = 2.

    Raises:
        ValueError: the warm-up or the width is missing.
    """
    width = run.hidden_size if model_dim is None else model_dim
    if not width or width < 1:
        raise ValueError("`lr_scheduler_type='noam'` needs a width: lr_scheduler_kwargs={'model_dim': 512}.")
    if run.warmup_steps < 1:
        raise ValueError("`lr_scheduler_type='noam'` needs `warmup_steps` (M2: 10000).")

    def factor(step: int) -> float:
        extra = step // run.steps_per_epoch + 1 if step_at_epoch_start else 0
        number = step + 1 + extra
        return float(width**-0.5 * min(number**-0.5, number * run.warmup_steps**-1.5))

    return factor


def step_decay(run: RunLength, factor: float = 0.8, every_epochs: int = 3, start_epoch: int = 0) -> Factor:
    """Return the factor `factor^floor((epoch - start) / every)`, after a linear warm-up if `warmup_steps` is set.

    The defaults are those of AoANet, Image Transformer (with 2,000 steps of warm-up) and ZoDIAC's AoA models.

    Args:
        run: the run.
        factor: multiplier of the rate, above 0 and at most 1.
        every_epochs: epochs between two multiplications.
        start_epoch: first epoch that counts.

    Raises:
        ValueError: a value is outside its range.
    """
    if not 0 < factor <= 1 or every_epochs < 1 or start_epoch < 0:
        raise ValueError(
            f"`lr_scheduler_type='step_decay'` with factor={factor}, every_epochs={every_epochs}, "
            f"start_epoch={start_epoch}: expected a factor above 0 and at most 1, and epochs of at least 1 and 0."
        )

    def multiple(step: int) -> float:
        epochs = max(0, step // run.steps_per_epoch - start_epoch)
        warm = min(1.0, (step + 1) / run.warmup_steps) if run.warmup_steps else 1.0
        return float(warm * factor ** (epochs // every_epochs))

    return multiple


SCHEDULES: dict[str, Callable[..., Factor]] = {"noam": noam, "step_decay": step_decay}
SCHEDULE_NAMES = (*SCHEDULES, *(kind.value for kind in SchedulerType))


def make_schedule(name: str, optimizer: Optimizer, run: RunLength, options: Mapping[str, Any] | None) -> LambdaLR:
    """Return the schedule with a name.

    Args:
        name: one of `SCHEDULES`.
        optimizer: the optimizer.
        run: the run.
        options: `lr_scheduler_kwargs`.

    Raises:
        ValueError: an option is unknown or outside its range.
    """
    known = list(inspect.signature(SCHEDULES[name]).parameters)[1:]
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        raise ValueError(
            f"`lr_scheduler_kwargs` has {unknown[0]!r}, and `lr_scheduler_type={name!r}` knows {', '.join(known)}."
        )
    return LambdaLR(optimizer, SCHEDULES[name](run, **(options or {})))


def sampling_probability(epoch: float, increase: float, every_epochs: int, largest: float) -> float:
    """Return the share of words that scheduled sampling replaces: `min(increase floor(epoch / every), largest)`."""
    return min(increase * (int(epoch) // every_epochs), largest)
