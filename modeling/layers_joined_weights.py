"""Attention weights of several steps or attentions in one tensor, and their gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class JoinedWeights(Tensor):
    """Weights of several attentions, joined after they are used; `retain_grad()` keeps their gradient.

    The attentions of a recurrent decoder's steps, and those of an entangled layer, depend on each other, so that no
    single tensor holds the weights that all of them compute with. The gradient of this one is therefore that of its
    parts, joined in the same way. Every operation on it returns a plain tensor.

    Attributes:
        parts: the weights that the attentions compute with.
        join: function that joins weights, or gradients, of the parts.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    parts: tuple[Tensor, ...]
    join: Callable[[Sequence[Tensor]], Tensor]

    @classmethod
    def of(cls, parts: Sequence[Tensor], join: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
        """Join weights; the result is a plain tensor where no gradient is recorded, and in compiled graphs."""
        joined = join(parts)
        if not joined.requires_grad or torch.compiler.is_compiling():
            return joined
        weights = joined.as_subclass(cls)  # type: ignore[type-var]
        weights.parts, weights.join = tuple(parts), join
        return weights

    def joined_gradients(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Join gradients of the parts, None where a part has none."""
        pairs = zip(self.parts, gradients, strict=True)
        return self.join([torch.zeros_like(part) if one is None else one for part, one in pairs])

    def retain_grad(self) -> None:
        """Keep the gradients of the parts in the next backward pass."""
        for part in self.parts:
            part.retain_grad()

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad()` was called."""
        return all(part.retains_grad for part in self.parts)

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        """The gradient of the weights after a backward pass; None before it, or without `retain_grad()`."""
        gradients = [part.grad for part in self.parts] if self.retains_grad else [None]
        return None if all(one is None for one in gradients) else self.joined_gradients(gradients)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)


def join_attentions(parts: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Join the weights `[B * K, 1, H, T, R]` of P attentions to one memory to `[B * K, P, H, T, R]`.

    Args:
        parts: the weights.
        mask: `[B, R]`, True = visible; None: all. The weights of an empty memory become 0.
    """
    if mask is None:
        return JoinedWeights.of(parts, lambda values: torch.cat(tuple(values), dim=1))
    rows = mask.repeat_interleave(parts[0].shape[0] // mask.shape[0], dim=0)  # [B * K, R]
    return JoinedWeights.of(parts, lambda values: torch.cat(tuple(values), dim=1) * rows[:, None, None, None])


def gradient_of_weights(value: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of a number with respect to returned attention weights, whose shape it has.

    The graph is kept, and no parameter accumulates a gradient.

    Args:
        value: scalar.
        weights: an entry of `cross_attentions`, with a gradient function.
    """
    parts = weights.parts if isinstance(weights, JoinedWeights) else (weights,)
    gradients = torch.autograd.grad(value, parts, retain_graph=True, allow_unused=True)
    if isinstance(weights, JoinedWeights):
        return weights.joined_gradients(gradients)
    return torch.zeros_like(weights) if gradients[0] is None else gradients[0]
