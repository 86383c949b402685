"""Multi-head and additive attention over regions with beams on the query axis, attention on attention, linear layers.

oneDNN computes products of few rows faster with weights that it has rearranged for itself ("packed"). PyTorch
rearranges them at every call; the linear layers at the end of this file do it once, for generation on a CPU. The
operators are private ones of PyTorch and are used in this file only: where one is missing or fails, the layer computes
as before. In training, the cross-entropy of a large vocabulary is computed for some tokens at a time.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear_cross_entropy
from transformers import Cache, EncoderDecoderCache
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from .configuration_captioning import require_choice

logger = logging.get_logger(__name__)

# Maps states `[rows, in]` and a bias `[out]` (or None) to `[rows, out]`.
Product = Callable[[Tensor, Tensor | None], Tensor]

DROPPED = (
    "The plain weights of this captioner were dropped by `optimize_for_generation(drop_plain=True)`: it only "
    "generates on this CPU. To {action} it, load it again with `from_pretrained`."
)
# Layers with fewer outputs are no faster packed, and scores of attention should not be rounded to 8 bits.
LEAST_OUTPUTS = 8
# Packed weights are checked when `generate()` begins and are used until it ends.
_generating: ContextVar[bool] = ContextVar("generating", default=False)


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32, or in float64 where they have it."""
    return values if values.dtype == torch.float64 else values.float()


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention by matrix products (Vaswani et al., 2017, Eq. 1).

    Args:
        query: `[B, H, T, d_k]`.
        key: `[B, H, R, d_k]`.
        value: `[B, H, R, d_v]`.
        attention_mask: added to the scores, broadcastable to `[B, H, T, R]`.

    Returns:
        The attended values `[B, T, H, d_v]` and the weights `[B, H, T, R]`.
    """
    scores = query @ key.transpose(-1, -2) * scaling  # [B, H, T, R]
    if attention_mask is not None:
        scores = scores + attention_mask
    # In half precision, exponentials of scores would lose too many digits.
    exact = torch.promote_types(scores.dtype, torch.float32)
    weights = nn.functional.softmax(scores, dim=-1, dtype=exact).to(query.dtype)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (dropped @ value).transpose(1, 2), weights  # [B, T, H, d_v]


def create_region_mask(config: Any, queries: Tensor, regions: Tensor, region_mask: Tensor | None) -> Any:
    """Return the mask of keys in the form of the attention implementation; None without a `region_mask`.

    Args:
        config: configuration with the attention implementation.
        queries: `[B, T, D]`; only batch, length, dtype and device are used.
        regions: `[B, R, D]`, the keys.
        region_mask: `[B, R]`, True = a real region.
    """
    if region_mask is None:
        return None
    return create_bidirectional_mask(
        config=config, inputs_embeds=queries, attention_mask=region_mask, encoder_hidden_states=regions
    )


class MultiHeadAttention(nn.Module):
    """Multi-head attention with configurable widths of keys and values.

    Args:
        config: configuration whose `_attn_implementation` selects eager, sdpa or flex attention.
        hidden_size: D of queries, memory and output.
        num_heads: H.
        key_dim, value_dim: widths per head; default D / H.
        dropout: rate on the attention weights.
        memory_slots: number of learned keys and values that are appended to those of the memory (M2, Eq. 2); they are
            never masked.
        output_projection: project the joined heads to D; without it the output is `[B, T, H * d_v]`.
    """

    # The attention functions of transformers treat a module without this attribute as causal.
    is_causal = False

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        memory_slots: int = 0,
        output_projection: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.key_dim = key_dim or hidden_size // num_heads
        self.value_dim = value_dim or hidden_size // num_heads
        self.dropout = dropout
        self.scaling = self.key_dim**-0.5
        self.memory_slots = memory_slots
        self.q_proj = nn.Linear(hidden_size, num_heads * self.key_dim)
        self.k_proj = nn.Linear(hidden_size, num_heads * self.key_dim)
        self.v_proj = nn.Linear(hidden_size, num_heads * self.value_dim)
        self.o_proj = nn.Linear(num_heads * self.value_dim, hidden_size) if output_projection else nn.Identity()
        if memory_slots:
            self.memory_keys = nn.Parameter(torch.empty(1, memory_slots, num_heads * self.key_dim))
            self.memory_values = nn.Parameter(torch.empty(1, memory_slots, num_heads * self.value_dim))
            self.reset_memory()

    def reset_memory(self) -> None:
        """Initialise the memory slots as the M2 code: normal with deviation 1 / d_k for keys, 1 / m for values."""
        init.normal_(self.memory_keys, std=1 / self.key_dim)
        init.normal_(self.memory_values, std=1 / self.memory_slots)

    def split_heads(self, states: Tensor) -> Tensor:
        """Reshape `[B, T, H * d]` to `[B, H, T, d]`."""
        return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def with_memory_slots(self, keys: Tensor, values: Tensor, mask: Any) -> tuple[Tensor, Tensor, Any]:
        """Append the memory slots to keys and values `[B, R, H * d]`, and visible entries to the mask."""
        if not self.memory_slots:
            return keys, values, mask
        rows = (keys.shape[0], -1, -1)
        # As in the M2 code, the slots are scaled by sqrt(d_k) and sqrt(m).
        keys = torch.cat((keys, math.sqrt(self.key_dim) * self.memory_keys.expand(rows)), dim=1)
        values = torch.cat((values, math.sqrt(self.memory_slots) * self.memory_values.expand(rows)), dim=1)
        return keys, values, visible_slots(mask, self.memory_slots)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> tuple[Tensor, Tensor | None]:
        """Return attended values `[B, T, H, d_v]` and weights `[B, H, T, R]` (None except in eager attention)."""
        function: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.dropout if self.training else 0.0
        # Where nothing is hidden, transformers makes no causal mask for sdpa: the function is told instead.
        is_causal = self.is_causal and mask is None and query.shape[2] > 1
        return function(self, query, key, value, mask, scaling=self.scaling, dropout=dropout, is_causal=is_causal)

    def forward(self, queries: Tensor, memory: Tensor, mask: Any = None) -> tuple[Tensor, Tensor | None]:
        """Attend from `queries` `[B, T, D]` to `memory` `[B, R, D]`; return `[B, T, D]` and the weights."""
        query = self.split_heads(self.q_proj(queries))
        keys, values, mask = self.with_memory_slots(self.k_proj(memory), self.v_proj(memory), mask)
        attended, weights = self.attend(query, self.split_heads(keys), self.split_heads(values), mask)
        return self.o_proj(attended.flatten(2)), weights  # [B, T, H * d_v] to [B, T, D]


def visible_slots(mask: Any, count: int) -> Any:
    """Append `count` visible keys to a mask `[B, 1, T, R]` (boolean, or added to the scores) or a flex mask.

    Raises:
        NotImplementedError: the mask has a form of its own, as that of flex attention.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise NotImplementedError(
            'Memory slots need eager or sdpa attention; call `model.set_attn_implementation("sdpa")`.'
        )
    visible = mask.new_ones(1) if mask.dtype == torch.bool else mask.new_zeros(1)
    return torch.cat((mask, visible.expand(*mask.shape[:-1], count)), dim=-1)


class PreparedDotAttention(MultiHeadAttention):
    """Attention from B x K text rows to keys and values that the encoder has projected once per image (AoANet).

    Only the queries are projected here. `scale` multiplies the width of the heads.
    """

    def __init__(self, config: Any, hidden_size: int, num_heads: int, scale: int = 1, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.config, self.num_heads, self.dropout, self.memory_slots = config, num_heads, dropout, 0
        self.key_dim = self.value_dim = hidden_size * scale // num_heads
        self.scaling = self.key_dim**-0.5
        self.q_proj = nn.Linear(hidden_size, hidden_size * scale)

    def forward(  # type: ignore[override]
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from queries to the regions of their images.

        Args:
            queries: `[B * K, T, D]`, the rows of an image next to each other.
            keys, values: `[B, R, scale * D]`.
            mask: of the keys, for K * T queries, see `create_region_mask`.

        Returns:
            `[B * K, T, scale * D]`, and the weights `[B * K, H, T, R]` or None.
        """
        rows, length = queries.shape[:2]
        folded = queries.reshape(keys.shape[0], -1, queries.shape[-1])  # [B, K * T, D]
        query = self.split_heads(self.q_proj(folded))
        attended, weights = self.attend(query, self.split_heads(keys), self.split_heads(values), mask)
        if weights is not None:  # [B, H, K * T, R] to [B * K, H, T, R]
            weights = weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)
        return attended.flatten(2).reshape(rows, length, -1), weights


def rows_of_images(values: Tensor, rows: int) -> Tensor:
    """Repeat what images have for their text rows, `[B, ...]` to `[B * K, ...]`.

    Unlike `repeat_interleave`, K may be free in a program that is exported to ONNX.
    """
    return values[:, None].expand(-1, rows // values.shape[0], *values.shape[1:]).flatten(0, 1)


def mean_of_visible(states: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over visible regions, `[B, R, D]` to `[B, D]`.

    Args:
        mask: `[B, R]`, True = visible; None: all are.
    """
    if mask is None:
        return states.mean(1)
    visible = mask[..., None].to(states.dtype)
    return (states * visible).sum(1) / visible.sum(1)


class BeamFoldingCrossAttention(MultiHeadAttention):
    """Cross-attention from B x K rows of text to the encoder states of B images, for several encoder levels.

    The K rows of an image become K * T queries of one row. Keys and values therefore have one row per image, are not
    reordered with the beams, and masks are not repeated. The levels share all projections (as in the meshed decoder of
    M2 and in VisualGPT) and are placed on the head axis, so that one call of the attention function covers all levels.
    """

    def __init__(self, *args: Any, layer_idx: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer_idx = layer_idx

    def project_levels(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values `[B, N * H, R, d]` of encoder levels `[B, N, R, D]`."""

        def heads_of_levels(states: Tensor) -> Tensor:
            states = states.unflatten(-1, (self.num_heads, -1))  # [B, N, R, H, d]
            return states.transpose(2, 3).flatten(1, 2)  # [B, N * H, R, d]

        return heads_of_levels(self.k_proj(levels)), heads_of_levels(self.v_proj(levels))

    def keys_and_values(self, levels: Callable[[], Tensor], cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Project the levels, or return the keys and values of an earlier step.

        Args:
            levels: function that returns the normalised levels `[B, N, R, D]`; called only if they are not cached.
            cache: an `EncoderDecoderCache`, or None to project in every call.
        """
        if not isinstance(cache, EncoderDecoderCache):
            return self.project_levels(levels())
        if not cache.is_updated.get(self.layer_idx):
            stored = cache.cross_attention_cache.update(*self.project_levels(levels()), self.layer_idx)
            cache.is_updated[self.layer_idx] = True
            return stored
        layer = cache.cross_attention_cache.layers[self.layer_idx]
        return layer.keys, layer.values

    def forward(  # type: ignore[override]
        self, queries: Tensor, levels: Callable[[], Tensor], num_levels: int = 1, mask: Any = None, cache: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from text to every level.

        Args:
            queries: `[B * K, T, D]`; the K rows of an image are consecutive.
            levels: function that returns `[B, N, R, D]`.
            num_levels: N.
            mask: mask of the keys for K * T queries.
            cache: see `keys_and_values`.

        Returns:
            One output per level `[B * K, T, N, D]`, and the weights `[B * K, N, H, T, R]` or None.
        """
        key, value = self.keys_and_values(levels, cache)
        rows, length = queries.shape[:2]
        images = key.shape[0]
        folded = queries.reshape(images, -1, queries.shape[-1])  # [B, K * T, D]
        query = self.split_heads(self.q_proj(folded)).repeat(1, num_levels, 1, 1)  # [B, N * H, K * T, d_k]
        attended, weights = self.attend(query, key, value, mask)  # [B, K * T, N * H, d_v]
        output = self.o_proj(attended.unflatten(2, (num_levels, self.num_heads)).flatten(3))  # [B, K * T, N, D]
        if weights is not None:
            weights = weights.unflatten(2, (-1, length)).transpose(1, 2)  # [B, K, N * H, T, R]
            weights = weights.flatten(0, 1).unflatten(1, (num_levels, self.num_heads))  # [B * K, N, H, T, R]
        return output.reshape(rows, length, num_levels, -1), weights  # [B * K, T, N, D]


class AdditiveAttention(nn.Module):
    """Additive attention (Bahdanau et al., 2014; Show, Attend and Tell, Eq. 15-16).

    The weights are `softmax(scale * w activation(k_i + W q))`. The caller projects the keys, once per image.

    Args:
        query_size: width of queries.
        attention_size: A, width of the keys.
        activation: `"tanh"` or `"relu"`.
        scale: factor of the scores.
    """

    def __init__(self, query_size: int, attention_size: int, activation: str = "tanh", scale: float = 1.0) -> None:
        super().__init__()
        self.activation = getattr(torch, activation)
        self.scale = scale
        self.query_projection = nn.Linear(query_size, attention_size, bias=False)
        self.score = nn.Linear(attention_size, 1)

    def forward(self, queries: Tensor, keys: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """Compute weights `[B, K, R]`.

        Args:
            queries: `[B * K, Q]`; the K rows of an image are consecutive.
            keys: `[B, R, A]`, keys of the regions.
            region_mask: `[B, R]`, True = visible.
        """
        queries = self.query_projection(queries).unflatten(0, (keys.shape[0], -1))  # [B, K, A]
        summed = keys[:, None] + queries[:, :, None]  # [B, K, R, A]
        scores = self.score(self.activation(summed))[..., 0] * self.scale  # [B, K, R]
        if region_mask is not None:
            scores = scores.masked_fill(~region_mask[:, None], -torch.inf)
        return scores.softmax(-1)


class AttentionOnAttention(nn.Module):
    """Attention on attention: `information * sigmoid(gate)` of query and attended vector.

    Both are linear in `[first; second]`; the first half of the projection is the information (Huang et al., 2019,
    "Attention on Attention for Image Captioning", Eq. 3-5). Which of query and attended vector comes first differs
    between code bases, so the caller passes them in order.

    Args:
        hidden_size: D of the output and of the second vector.
        dropout: rate on the concatenated vectors.
        first_size: width of the first vector, where it is not D.
    """

    def __init__(self, hidden_size: int, dropout: float = 0.0, first_size: int | None = None) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear((first_size or hidden_size) + hidden_size, 2 * hidden_size)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Combine two tensors `[..., D]` into one `[..., D]`."""
        return self.with_gate(first, second)[0]

    def with_gate(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the combined tensor `[..., D]` and its gate `[..., D]`."""
        projected = self.projection(self.dropout(torch.cat((first, second), dim=-1)))
        information, gate = projected.chunk(2, dim=-1)
        gate = gate.sigmoid()
        return information * gate, gate


def pack_float32(weight: Tensor) -> Product:
    """Return the product with a weight `[out, in]`, as it is."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    return lambda states, bias: torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")


def pack_bfloat16(weight: Tensor) -> Product:
    """Return the product with a weight `[out, in]` in bfloat16. The bias is added in float32."""
    rounded = pack_float32(weight.to(torch.bfloat16))

    def product(states: Tensor, bias: Tensor | None) -> Tensor:
        output = rounded(states.to(torch.bfloat16), None)
        return output.to(states.dtype) if bias is None else output + bias

    return product


def pack_int8(weight: Tensor) -> Product:
    """Return the product with a weight `[out, in]` in 8 bits, one scale for each output.

    Each row of the input has its own scale as well, so that a row does not depend on the others.
    """
    scales = weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny) / 127  # [out]
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
    "bfloat16": pack_bfloat16,
    "int8": pack_int8,
}


class PackedLayer(nn.Module):
    """A linear layer with a packed copy of its weight. A plain layer becomes one by a change of its class.

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
        """Return the weight as `[out, in]`."""
        return self.weight.detach()

    def refresh(self) -> None:
        """Pack the weight, unless it is the one that is packed already."""
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
        """Return the linear map of `[..., in]`, `[..., out]`."""
        if self.dropped and (self.training or torch.is_grad_enabled()):
            raise RuntimeError(DROPPED.format(action="train"))
        if not (self.dropped or _generating.get()) or not self._can_use(states):
            return super().forward(states)
        assert self.product is not None
        output = self.product(states.reshape(-1, states.shape[-1]), self.bias)
        return output.view(*states.shape[:-1], output.shape[-1])

    def _can_use(self, states: Tensor) -> bool:
        """Whether the packed weight serves this call."""
        if self.product is None or self.training or torch.is_grad_enabled():
            return False
        plain = states.dtype == torch.float32 and states.device.type == "cpu" and states.numel() > 0
        return plain and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()

    def train(self, mode: bool = True) -> "PackedLayer":
        """Set training or evaluation mode."""
        if mode and self.dropped:
            raise RuntimeError(DROPPED.format(action="train"))
        return super().train(mode)

    def _save_to_state_dict(self, *args: Any) -> None:
        if self.dropped:
            raise RuntimeError(DROPPED.format(action="save"))
        super()._save_to_state_dict(*args)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PackedLayer":
        if self.dropped and (moved := fn(self.weight.new_zeros(()))).device.type != "cpu":
            raise RuntimeError(DROPPED.format(action=f"move to {moved.device}"))
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the packed copy, which no other process can read."""
        if self.dropped:
            raise RuntimeError(DROPPED.format(action="copy"))
        return self.__dict__ | {"product": None, "fingerprint": None}


class PackedLinear(PackedLayer, nn.Linear):
    """`nn.Linear` with a packed weight."""

    plain_class = nn.Linear


class PackedConv1D(PackedLayer, Conv1D):
    """`Conv1D` of GPT-2, whose weight is `[in, out]`, with a packed weight."""

    plain_class = Conv1D

    def output_by_input(self) -> Tensor:
        """Return the weight as `[out, in]`."""
        return self.weight.detach().t()


PACKED_CLASSES: dict[type[nn.Module], type[PackedLayer]] = {
    packed.plain_class: packed for packed in (PackedLinear, PackedConv1D)
}


def fingerprint_of(weight: Tensor) -> Tensor:
    """Return one number for each row of a weight `[out, in]`, which changes with its content and order.

    It takes one pass over the memory. The version counters of PyTorch do not tell: fused optimizers, writes to `.data`
    and inference tensors leave them as they are.
    """
    return weight @ torch.linspace(0.5, 1.5, weight.shape[1])


def has_ordinary_weight(layer: nn.Module) -> bool:
    """Whether the weight of a layer is a parameter that no other library has replaced (quantised, sharded)."""
    return type(layer.weight) is nn.Parameter and type(layer.weight.data) is Tensor


def is_plain_linear(layer: nn.Module, states: Tensor) -> bool:
    """Whether a layer only multiplies float32 states by its weight, so that a loss may read the weight itself.

    It may not under autocast or compilation, nor where a hook or another library (an adapter, for instance) takes part
    in the call.
    """
    if type(layer) not in (nn.Linear, PackedLinear) or "forward" in vars(layer) or not has_ordinary_weight(layer):
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    changed = any(hooks) or torch.is_autocast_enabled(states.device.type) or torch.compiler.is_compiling()
    return layer.weight.dtype == states.dtype == torch.float32 and not changed


def summed_cross_entropy(layer: nn.Module, states: Tensor, targets: Tensor, at_a_time: int) -> Tensor | None:
    """Return the sum of cross-entropies of many tokens, of some at a time, and compute its gradient with it.

    Args:
        layer: maps states to logits `[tokens, V]`, which are never held for all tokens.
        states: `[tokens, D]`.
        targets: `[tokens]`.
        at_a_time: tokens whose logits are held.

    Returns:
        A scalar; None where few tokens need no pieces, there is no gradient, or the layer does not only multiply.
    """
    pieces = math.ceil(len(targets) / at_a_time)
    if pieces < 2 or not torch.is_grad_enabled() or not is_plain_linear(layer, states):
        return None
    size = math.ceil(len(targets) / pieces)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=size, allow_retain_graph=True)
    weights: Any = {"linear_weight": layer.weight, "linear_bias": layer.bias}
    return linear_cross_entropy(states, target=targets, **weights, reduction="sum", options=options)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float, over_all: bool) -> Tensor:
    """Return the negative log-likelihood of each target `[tokens]` under its logits `[tokens, V]`.

    With a smoothing s, return the divergence from the distribution of 1 - s at the target and s / (V - 1) elsewhere,
    or, with `over_all`, of 1 - s + s / V at the target and s / V elsewhere.
    """
    if not smoothing:
        return cross_entropy(logits, targets, reduction="none")
    # PyTorch spreads the smoothing over all words, the target included, and leaves out the entropy.
    others = logits.shape[-1] - 1
    share = smoothing if over_all else smoothing * (others + 1) / others
    other, target = share / (others + 1), 1 - share + share / (others + 1)
    entropy = -target * math.log(target) - others * other * math.log(other)
    return cross_entropy(logits, targets, reduction="none", label_smoothing=share) - entropy


def can_be_packed(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer on a CPU, with an ordinary tensor as its weight."""
    if type(module) not in PACKED_CLASSES:
        return False
    weight = module.weight
    ordinary = has_ordinary_weight(module) and weight.device.type == "cpu"
    return ordinary and weight.numel() >= LEAST_OUTPUTS * weight.shape[type(module) is nn.Linear]


def packed_layers(model: nn.Module) -> Iterator[PackedLayer]:
    """Return the layers of a model that are packed."""
    return (module for module in model.modules() if isinstance(module, PackedLayer))


def can_pack(weights: str) -> bool:
    """Whether this machine computes with weights of a kind of `PACKING`."""
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
            f"{', '.join(sorted(str(found).removeprefix('torch.') for found in types))}: load it with "
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
    """Let packed layers be plain ones again.

    Raises:
        RuntimeError: their plain weights are gone.
    """
    layers = list(packed_layers(model))
    if any(layer.dropped for layer in layers):
        raise RuntimeError(DROPPED.format(action="restore"))
    for layer in layers:
        for name in ("weights", "product", "fingerprint", "dropped"):
            layer.__dict__.pop(name)
        layer.__class__ = layer.plain_class


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Use packed weights inside, after those that have changed are packed again."""
    with torch.no_grad():
        for layer in packed_layers(model):
            layer.refresh()
    before = _generating.set(True)
    try:
        yield
    finally:
        _generating.reset(before)
