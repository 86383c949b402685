"""Optimizers and learning rate schedules of published training programs, and weight averaging (WiSE-FT)."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adadelta, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_utils import SchedulerType

Factor = Callable[[int], float]


@dataclass(frozen=True)
class RunLength:
    """Lengths and sizes of a training run on which schedules depend.

    Args:
        steps_per_epoch: optimisation steps per epoch.
        warmup_steps: `warmup_steps` of the arguments, in steps.
        hidden_size: d, width of the captioner; None if its configuration has none.
    """

    steps_per_epoch: int
    warmup_steps: int
    hidden_size: int | None


def noam(run: RunLength, model_dim: int | None = None, step_at_epoch_start: bool = False) -> Factor:
    """Return the Noam factor `d^-0.5 min(s^-0.5, s warmup^-1.5)` at step s = 1, 2, ... (Vaswani et al., 2017, Eq. 3).

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
    """Return the named learning rate schedule.

    Args:
        name: one of `SCHEDULES`.
        optimizer: the optimizer.
        run: the run.
        options: `lr_scheduler_kwargs`.

    Raises:
        ValueError: an option is unknown or outside its range.
    """
    supported = list(inspect.signature(SCHEDULES[name]).parameters)[1:]
    unknown = sorted(set(options or {}) - set(supported))
    if unknown:
        raise ValueError(
            f"`lr_scheduler_kwargs` has {unknown[0]!r}, and `lr_scheduler_type={name!r}` knows {', '.join(supported)}."
        )
    return LambdaLR(optimizer, SCHEDULES[name](run, **(options or {})))


def sampling_probability(epoch: float, increase: float, every_epochs: int, largest: float) -> float:
    """Return the probability of scheduled sampling: `min(increase floor(epoch / every), largest)`."""
    return min(increase * (int(epoch) // every_epochs), largest)


class _UpdateRule(Optimizer):
    """Base class of optimizers that update one parameter at a time.

    Args:
        params: the parameters.
        lr: learning rate.
        weight_decay: L2 penalty that is added to the gradient.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def _update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], rate: float) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    decay = group["weight_decay"]
                    gradient = parameter.grad + decay * parameter if decay else parameter.grad
                    self._update(parameter, gradient, self.state[parameter], group["lr"])
        return loss


class ArcticAdam(_UpdateRule):
    """Adam (Kingma & Ba, 2015) as the program of Show, Attend and Tell (arctic-captions) computes it.

    The bias correction is `sqrt(1 - 0.001^t) / (1 - 0.1^t)`, with the complements of both betas, so it hardly corrects
    the first steps. The learning rate is 2e-4.
    """

    def _update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], rate: float) -> None:
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        state["mean"].lerp_(gradient, 0.1)
        state["square"].lerp_(gradient * gradient, 0.001)
        corrected = rate * (1 - 0.001 ** state["step"]) ** 0.5 / (1 - 0.1 ** state["step"])
        parameter.sub_(corrected * state["mean"] / (state["square"].sqrt() + 1e-8))


class ArcticRMSprop(_UpdateRule):
    """RMSProp (Graves, 2013, Eq. 38-45) as the program of Show, Attend and Tell uses it for Flickr8k.

    PyTorch's centred RMSprop adds its epsilon after the square root, this one (1e-4) inside it. The learning rate is
    1e-4.
    """

    def _update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], rate: float) -> None:
        if not state:
            state.update({name: torch.zeros_like(parameter) for name in ("mean", "square", "moved")})
        state["mean"].lerp_(gradient, 0.05)
        state["square"].lerp_(gradient * gradient, 0.05)
        spread = (state["square"] - state["mean"] ** 2 + 1e-4).sqrt()
        state["moved"].mul_(0.9).sub_(rate * gradient / spread)
        parameter.add_(state["moved"])


# The program's Adadelta is PyTorch's, with the constants of Zeiler (2012); its rate is 1.
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, float]]] = {
    "arctic_adam": (ArcticAdam, {}),
    "arctic_rmsprop": (ArcticRMSprop, {}),
    "adadelta": (Adadelta, {"rho": 0.95, "eps": 1e-6}),
}


def set_own_rate(optimizer: Optimizer, parameters: Iterable[Tensor], rate: float) -> None:
    """Set another learning rate for some parameters, by moving them into new parameter groups."""
    ids = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        moved = [parameter for parameter in group["params"] if id(parameter) in ids]
        if moved:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in ids]
            optimizer.add_param_group({**group, "params": moved, "lr": rate})


class StartWeights:
    """Copy of a model's weights before training.

    Source: Wortsman et al., CVPR 2022, "Robust fine-tuning of zero-shot models" (WiSE-FT), Eq. 1.

    Args:
        model: the model; its trained weights are copied.
        share: share of these weights in the mean, the alpha of the paper being 1 minus it.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self.share = share
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def average_into(self, model: nn.Module) -> None:
        """Set the model's weights to a weighted mean of the trained and the original weights."""
        for name, weight in model.named_parameters():
            if name in self.weights:
                weight.lerp_(self.weights[name].to(weight.device), self.share)
