"""Merging of batch norms into the convolutions before them, for a faster frozen vision model."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 1e-4  # of features, absolute and relative


@torch.no_grad()
def fold_batch_norms(model: nn.Module, features: Callable[[], Tensor]) -> int:
    """Merge batch norms into the convolutions before them, in place; this cannot be undone.

    A batch norm is merged if a convolution is called once and its output is what the batch norm reads. If features
    change by more than rounding, because something else reads that output too, the model is left as it was.

    Args:
        model: in evaluation mode. The weights of its convolutions change.
        features: calls the model on an example and returns its features.

    Returns:
        The number of batch norms that were merged.
    """
    plain, pairs = _features_and_pairs(model, features)
    replaced: list[tuple[nn.Module, str, Any]] = []

    def replace(parent: nn.Module, name: str, part: Any) -> None:
        replaced.append((parent, name, getattr(parent, name)))
        setattr(parent, name, part)

    for convolution, parent, name in pairs:
        norm: Any = getattr(parent, name)
        statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
        weight, bias = nn.utils.fuse_conv_bn_weights(convolution.weight, convolution.bias, *statistics)
        replace(convolution, "weight", weight)
        replace(convolution, "bias", bias)
        replace(parent, name, _without_norm(norm))
    if torch.allclose(features(), plain, rtol=TOLERANCE, atol=TOLERANCE):
        return len(pairs)
    for parent, name, part in reversed(replaced):
        setattr(parent, name, part)
    return 0


def _can_be_merged(norm: nn.Module) -> bool:
    """Return True for a batch norm with stored statistics, of PyTorch or timm."""
    is_batch_norm = type(norm) is nn.BatchNorm2d or type(norm).__name__ == "BatchNormAct2d"
    return is_batch_norm and isinstance(getattr(norm, "running_mean", None), Tensor)


def _without_norm(norm: Any) -> nn.Module:
    """Return the module that replaces a merged batch norm: the identity, or the dropout and activation of timm's."""
    return nn.Identity() if type(norm) is nn.BatchNorm2d else nn.Sequential(norm.drop, norm.act)


def _features_and_pairs(
    model: nn.Module, features: Callable[[], Tensor]
) -> tuple[Tensor, list[tuple[nn.Conv2d, nn.Module, str]]]:
    """Run the model; return its features, and each convolution with the batch norm after it (module, attribute)."""
    places = {
        norm: (parent, name)
        for parent in model.modules()
        for name, norm in parent.named_children()
        if _can_be_merged(norm)
    }
    calls: Counter[nn.Module] = Counter()
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # the outputs are kept, so that no other has their id
    pairs = []

    def after_convolution(convolution: nn.Conv2d, inputs: Any, output: Tensor) -> None:
        calls[convolution] += 1
        made[id(output)] = convolution, output

    def before_norm(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls[norm] += 1
        if id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], norm))

    hooks = [part.register_forward_hook(after_convolution) for part in model.modules() if type(part) is nn.Conv2d]
    hooks += [norm.register_forward_pre_hook(before_norm) for norm in places]
    try:
        computed = features()
    finally:
        for hook in hooks:
            hook.remove()
    return computed, [(part, *places[norm]) for part, norm in pairs if calls[part] == calls[norm] == 1]
