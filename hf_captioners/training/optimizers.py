"""Update rules of released programs that differ from those of PyTorch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adadelta, Optimizer


class _UpdateRule(Optimizer):
    """Optimizer that updates one parameter at a time.

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
        """Update all parameters that have a gradient."""
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
    """RMSProp (Graves, 2013, Eq. 38-45), which the program of Show, Attend and Tell uses for Flickr8k.

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
    """Move some of an optimizer's parameters into groups with a learning rate of their own."""
    own = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        taken = [parameter for parameter in group["params"] if id(parameter) in own]
        if taken:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in own]
            optimizer.add_param_group({**group, "params": taken, "lr": rate})
