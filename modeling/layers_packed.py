"""Linear layers with packed weights, for faster generation on a CPU.

oneDNN and FBGEMM compute products of few rows faster with weights that they have rearranged for themselves ("packed").
PyTorch rearranges them at every call; these layers do it once. The operators are private ones of PyTorch and are used
in this file only: where one is missing or fails, the layer computes as before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from .configuration_captioning import require_choice

logger = logging.get_logger(__name__)

# Maps states `[rows, in]` and a bias `[out]` (or None) to `[rows, out]`.
Product = Callable[[Tensor, Tensor | None], Tensor]
PACKED_ERROR = (
    "The plain weights of this captioner were dropped by `optimize_for_generation(drop_plain=True)`: it only "
    "generates on this CPU. To {action} it, load it again with `from_pretrained`."
)
# Layers with fewer outputs are no faster packed, and scores of attention should not be rounded to 8 bits.
MIN_OUT_FEATURES = 8
# Packed weights are checked when `generate()` begins and are used until it ends.
_generating: ContextVar[bool] = ContextVar("generating", default=False)


def pack_float32(weight: Tensor) -> Product:
    """Pack a weight `[out, in]` in float32; return the function that multiplies states by it."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    return lambda states, bias: torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")


def pack_bfloat16(weight: Tensor) -> Product:
    """Pack a weight `[out, in]` in bfloat16; return the function that multiplies states by it, with a float32 bias."""
    rounded = pack_float32(weight.to(torch.bfloat16))

    def product(states: Tensor, bias: Tensor | None) -> Tensor:
        output = rounded(states.to(torch.bfloat16), None)
        return output.to(states.dtype) if bias is None else output + bias

    return product


def pack_float16(weight: Tensor) -> Product:
    """Pack a weight `[out, in]` in float16; return the function that multiplies float32 states by it.

    A weight with values that float16 does not have is packed as it is.
    """
    if weight.abs().amax() > torch.finfo(torch.float16).max:
        return pack_float32(weight)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def product(states: Tensor, bias: Tensor | None) -> Tensor:
        output = torch.ops.quantized.linear_dynamic_fp16(states, packed)
        return output if bias is None else output.add_(bias)

    return product


def pack_int8(weight: Tensor) -> Product:
    """Quantise and pack a weight `[out, in]` to 8 bits (7 without VNNI); return the function that multiplies by it.

    Each row of the input has its own scale as well, so that a row does not depend on the others.
    """
    # Processors without VNNI add two products of 8 bits in 16 bits, where only weights of 7 bits cannot overflow.
    largest_integer = 127 if torch.cpu._is_vnni_supported() else 63
    scales = weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny) / largest_integer  # [out]
    packed = torch.ops.onednn.qlinear_prepack((weight / scales[:, None]).round().to(torch.int8), None)
    zeros = torch.zeros_like(scales, dtype=torch.long)

    def product(states: Tensor, bias: Tensor | None) -> Tensor:
        largest = states.abs().amax(1, keepdim=True)  # [rows, 1]; the infinity norm is several times slower
        row_scales = largest.clamp_(min=torch.finfo(states.dtype).tiny).div_(127)
        # Unsigned with 128 as zero, since oneDNN has no fast product for signed inputs; the half rounds.
        rounded = states.div(row_scales).add_(128.5).to(torch.uint8)
        output = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, 128, packed, scales, zeros, None, 1.0, 0, states.dtype, "none", [], ""
        )
        return output.mul_(row_scales) if bias is None else torch.addcmul(bias, output, row_scales)

    return product


PACKING: dict[str, Callable[[Tensor], Product]] = {
    "float32": pack_float32,
    "float16": pack_float16,
    "bfloat16": pack_bfloat16,
    "int8": pack_int8,
}


class PackedLayer(nn.Module):
    """Linear layer with a packed copy of its weight; `pack` converts plain layers by changing their class.

    The copy is used in `generate()`, in evaluation mode and without gradients; it is left out of deep copies and
    pickles, and made again where it is missing or the weight has changed.
    """

    plain_class: type[nn.Module]
    weight: Tensor
    bias: Tensor | None
    weights: str  # a key of `PACKING`
    product: Product | None  # None: not packed yet
    fingerprint: Tensor | None
    dropped: bool  # whether the plain weight is gone

    def output_by_input(self) -> Tensor:
        """Return the weight in the layout `[out, in]`."""
        return self.weight.detach()

    def refresh(self) -> None:
        """Pack the weight again if it has changed since it was packed."""
        if self.dropped:
            return
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.float32:
            self.product = None
            return
        weight = self.output_by_input()
        fingerprint = fingerprint_of(weight)
        if self.product is None or self.fingerprint is None or not torch.equal(self.fingerprint, fingerprint):
            self.product, self.fingerprint = PACKING[self.weights](weight.contiguous()), fingerprint

    def drop_plain(self) -> None:
        """Free the plain weight; a tensor of its shape without storage remains."""
        empty = torch.full((), torch.nan).expand(self.weight.shape)
        self.weight = nn.Parameter(empty, requires_grad=False)
        self.dropped = True

    def forward(self, states: Tensor) -> Tensor:
        """Apply the linear layer to `[..., in]`; returns `[..., out]`."""
        if self.dropped and (self.training or torch.is_grad_enabled()):
            raise RuntimeError(PACKED_ERROR.format(action="train"))
        if not (self.dropped or _generating.get()) or not self._can_use(states):
            return super().forward(states)
        assert self.product is not None
        output = self.product(states.reshape(-1, states.shape[-1]), self.bias)
        return output.view(*states.shape[:-1], output.shape[-1])

    def _can_use(self, states: Tensor) -> bool:
        """Return True if the packed weight can be used for these states: evaluation, float32, CPU."""
        if self.product is None or self.training or torch.is_grad_enabled():
            return False
        plain = states.dtype == torch.float32 and states.device.type == "cpu" and states.numel() > 0
        return plain and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()

    def train(self, mode: bool = True) -> "PackedLayer":
        """Set training or evaluation mode; training is an error without the plain weight."""
        if mode and self.dropped:
            raise RuntimeError(PACKED_ERROR.format(action="train"))
        return super().train(mode)

    def _save_to_state_dict(self, *args: Any) -> None:
        if self.dropped:
            raise RuntimeError(PACKED_ERROR.format(action="save"))
        super()._save_to_state_dict(*args)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PackedLayer":
        if self.dropped and (moved := fn(self.weight.new_zeros(()))).device.type != "cpu":
            raise RuntimeError(PACKED_ERROR.format(action=f"move to {moved.device}"))
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the packed copy, which no other process can read."""
        if self.dropped:
            raise RuntimeError(PACKED_ERROR.format(action="copy"))
        return self.__dict__ | {"product": None, "fingerprint": None}


class PackedLinear(PackedLayer, nn.Linear):
    """`nn.Linear` with a packed weight."""

    plain_class = nn.Linear


class PackedConv1D(PackedLayer, Conv1D):
    """`Conv1D` of GPT-2, whose weight is `[in, out]`, with a packed weight."""

    plain_class = Conv1D

    def output_by_input(self) -> Tensor:
        """Return the weight in the layout `[out, in]`."""
        return self.weight.detach().t()


PACKED_CLASSES: dict[type[nn.Module], type[PackedLayer]] = {
    packed.plain_class: packed for packed in (PackedLinear, PackedConv1D)
}


def fingerprint_of(weight: Tensor) -> Tensor:
    """Return one checksum per row of a weight `[out, in]`, which shows later whether the weight has changed.

    It takes one pass over the memory. The version counters of PyTorch do not tell: fused optimizers, writes to `.data`
    and inference tensors leave them as they are.
    """
    return weight @ torch.linspace(0.5, 1.5, weight.shape[1])


def has_ordinary_weight(layer: nn.Module) -> bool:
    """Return True if a layer's weight is a plain parameter, neither quantised nor sharded."""
    return type(layer.weight) is nn.Parameter and type(layer.weight.data) is Tensor


def is_plain_linear(layer: nn.Module, states: Tensor) -> bool:
    """Return True if a layer is only a float32 product with its weight, which a loss may then read directly.

    It may not under autocast or compilation, nor where a hook or another library (an adapter, for instance) takes part
    in the call.
    """
    if type(layer) not in (nn.Linear, PackedLinear) or "forward" in vars(layer) or not has_ordinary_weight(layer):
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    changed = any(hooks) or torch.is_autocast_enabled(states.device.type) or torch.compiler.is_compiling()
    return layer.weight.dtype == states.dtype == torch.float32 and not changed


def can_be_packed(module: nn.Module) -> bool:
    """Return True if a module is a linear layer on a CPU with a plain weight and enough outputs to gain."""
    if type(module) not in PACKED_CLASSES:
        return False
    weight = module.weight
    ordinary = has_ordinary_weight(module) and weight.device.type == "cpu"
    return ordinary and weight.numel() >= MIN_OUT_FEATURES * weight.shape[type(module) is nn.Linear]


def packed_layers(model: nn.Module) -> Iterator[PackedLayer]:
    """Return the packed layers of a model."""
    return (module for module in model.modules() if isinstance(module, PackedLayer))


def can_pack(weights: str) -> bool:
    """Return True if this processor computes correctly with weights packed in a format of `PACKING`."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        with torch.no_grad():
            weight, states = torch.eye(32), torch.linspace(-1, 1, 64).view(2, 32)
            return torch.allclose(PACKING[weights](weight)(states, None), states, atol=0.02)
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):  # another version or another processor
        return False


def pack(model: nn.Module, weights: str, drop_plain: bool) -> None:
    """Pack all linear layers of a captioner; see `CaptionGenerationMixin.optimize_for_generation`."""
    require_choice("weights", weights, tuple(PACKING))
    if packed_as(model) != weights:
        unpack(model)
    layers: list[Any] = [module for module in model.modules() if can_be_packed(module)] + list(packed_layers(model))
    if not layers or not can_pack(weights):
        logger.info(f"The captioner generates with plain weights: it has none to pack as {weights} on this machine.")
        return
    types = {layer.weight.dtype for layer in layers}
    if types != {torch.float32}:
        raise ValueError(
            f"`weights={weights!r}` packs weights of type float32, and the captioner has "
            f"{', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in types))}: load it with "
            "`dtype=torch.float32`, or leave its weights as they are."
        )
    others = set(model.modules()).difference(layers)
    of_others = {id(parameter) for module in others for parameter in module._parameters.values()}
    with torch.no_grad():
        for layer in layers:
            if not isinstance(layer, PackedLayer):
                layer.__class__ = PACKED_CLASSES[type(layer)]
                layer.weights, layer.product, layer.fingerprint, layer.dropped = weights, None, None, False
            layer.refresh()
            if drop_plain and id(layer.weight) not in of_others:
                layer.drop_plain()


def packed_as(model: nn.Module) -> str | None:
    """Return the number format of the packed weights; None if there are none."""
    return next((layer.weights for layer in packed_layers(model)), None)


def unpack(model: nn.Module) -> None:
    """Convert packed layers back to plain ones.

    Raises:
        RuntimeError: their plain weights are gone.
    """
    layers = list(packed_layers(model))
    if any(layer.dropped for layer in layers):
        raise RuntimeError(PACKED_ERROR.format(action="restore"))
    for layer in layers:
        for name in ("weights", "product", "fingerprint", "dropped"):
            layer.__dict__.pop(name)
        layer.__class__ = layer.plain_class


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Context in which linear layers use their packed weights; changed weights are packed again first."""
    with torch.no_grad():
        for layer in packed_layers(model):
            layer.refresh()
    before = _generating.set(True)
    try:
        yield
    finally:
        _generating.reset(before)
