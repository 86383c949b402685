"""Layers of Transformers: attention with beams on the query axis, feed-forward, residual connection, cache."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half-precision values to float32; float64 stays."""
    return values if values.dtype == torch.float64 else values.float()


class FoldedRows(NamedTuple):
    """Conversion of attention weights between text rows and images, whose K * T queries are folded into one row."""

    images: int  # B
    length: int | None  # T; None: one query a row, without an axis for it
    levels: int | None = None  # N on the head axis, for which the weights have an axis of their own; None: no axis

    def unfold(self, weights: Tensor) -> Tensor:
        """Reshape attention weights of images `[B, N * H, K * T, R]` to text rows `[B * K, N, H, T, R]`."""
        weights = weights.unflatten(2, (-1, self.length or 1)).transpose(1, 2).flatten(0, 1)  # [B * K, N * H, T, R]
        weights = weights[:, :, 0] if self.length is None else weights
        return weights if self.levels is None else weights.unflatten(1, (self.levels, -1))

    def fold(self, weights: Tensor) -> Tensor:
        """Reshape attention weights of text rows `[B * K, N, H, T, R]` to images `[B, N * H, K * T, R]`."""
        weights = weights[..., None, :] if self.length is None else weights
        return weights.flatten(1, -3).unflatten(0, (self.images, -1)).transpose(1, 2).flatten(2, 3)


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    rows: FoldedRows | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention by matrix products (Vaswani et al., 2017, Eq. 1).

    Args:
        query: `[B, H, T, d_k]`.
        key: `[B, H, R, d_k]`.
        value: `[B, H, R, d_v]`.
        attention_mask: added to the scores, broadcastable to `[B, H, T, R]`.
        rows: form of the returned weights, if the queries are text rows that are folded onto their image.

    Returns:
        The attended values `[B, T, H, d_v]` and the weights `[B, H, T, R]`.
    """
    scores = query @ key.transpose(-1, -2) * scaling  # [B, H, T, R]
    if attention_mask is not None:
        scores = scores + attention_mask
    # In half precision, exponentials of scores would lose too many digits.
    exact = torch.promote_types(scores.dtype, torch.float32)
    weights = nn.functional.softmax(scores, dim=-1, dtype=exact).to(query.dtype)
    weights = weights if rows is None else rows.unfold(weights)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    dropped = dropped if rows is None else rows.fold(dropped)
    return (dropped @ value).transpose(1, 2), weights  # [B, T, H, d_v]


def create_region_mask(config: Any, queries: Tensor, regions: Tensor, region_mask: Tensor | None) -> Any:
    """Return the attention mask over regions for the configured attention implementation; None without `region_mask`.

    Args:
        config: configuration with the attention implementation.
        queries: `[B, T, D]`; only batch, length, dtype and device are used.
        regions: `[B, R, D]`, the keys.
        region_mask: `[B, R]`, True = a real region.
    """
    if region_mask is None:
        return None
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=queries,
        attention_mask=region_mask,
        encoder_hidden_states=regions,
        # Whether no region is hidden decides if there is a mask at all: on a GPU, its values would be waited for.
        allow_is_bidirectional_skip=queries.device.type == "cpu",
    )


class MultiHeadAttention(nn.Module):
    """Multi-head attention with configurable widths of keys and values.

    Args:
        config: configuration whose `_attn_implementation` selects eager, sdpa or flex attention.
        hidden_size: D of queries, key-value states and output.
        num_heads: H.
        key_dim, value_dim: widths per head; default D / H.
        dropout: rate on the attention weights.
        memory_slots: number of learned keys and values that are appended to the projected ones (M2, Eq. 2); they are
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
        """Split heads: `[B, T, H * d]` to `[B, H, T, d]`."""
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

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, rows: FoldedRows | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return attended values `[B, T, H, d_v]` and weights `[B, H, T, R]` (None except in eager attention)."""
        function: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.dropout if self.training else 0.0
        # Where nothing is hidden, transformers makes no causal mask for sdpa: the function is told instead.
        is_causal = self.is_causal and mask is None and query.shape[2] > 1
        options = {"scaling": self.scaling, "dropout": dropout, "is_causal": is_causal, "rows": rows}
        return function(self, query, key, value, mask, **options)

    def forward(self, queries: Tensor, key_value_states: Tensor, mask: Any = None) -> tuple[Tensor, Tensor | None]:
        """Attend from `queries` `[B, T, D]` to `key_value_states` `[B, R, D]`; return `[B, T, D]` and the weights."""
        query = self.split_heads(self.q_proj(queries))
        keys, values, mask = self.with_memory_slots(self.k_proj(key_value_states), self.v_proj(key_value_states), mask)
        attended, weights = self.attend(query, self.split_heads(keys), self.split_heads(values), mask)
        return self.o_proj(attended.flatten(2)), weights  # [B, T, H * d_v] to [B, T, D]


def visible_slots(mask: Any, count: int) -> Any:
    """Extend an attention mask `[B, 1, T, R]` by `count` memory slots, which are never hidden.

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


class BeamFoldingCrossAttention(MultiHeadAttention):
    """Cross-attention from B x K text rows to the encoder levels of B images, which are not repeated for the K beams.

    The K rows of an image become K * T queries of one row. Keys and values therefore have one row per image, are not
    reordered with the beams, and masks are not repeated. The levels share all projections (as in the meshed decoder of
    M2 and in VisualGPT) and are placed on the head axis, so that one call of the attention function covers all levels.
    """

    def __init__(self, *args: Any, layer_idx: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer_idx = layer_idx

    def project_levels(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values `[B, N * H, R, d]` of encoder levels `[B, N, R, D]`."""
        joined = levels.flatten(1, 2)  # [B, N * R, D]: quantized layers of bitsandbytes read at most three dimensions

        def heads_of_levels(states: Tensor) -> Tensor:
            states = states.unflatten(1, (levels.shape[1], -1)).unflatten(-1, (self.num_heads, -1))  # [B, N, R, H, d]
            return states.transpose(2, 3).flatten(1, 2)  # [B, N * H, R, d]

        return heads_of_levels(self.k_proj(joined)), heads_of_levels(self.v_proj(joined))

    def keys_and_values(self, levels: Callable[[], Tensor], cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Return the cached keys and values of the encoder levels; project the levels in the first step.

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
        """Attend from text rows to every encoder level.

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
        rows = FoldedRows(key.shape[0], queries.shape[1], num_levels)
        folded = queries.reshape(rows.images, -1, queries.shape[-1])  # [B, K * T, D]
        query = self.split_heads(self.q_proj(folded)).repeat(1, num_levels, 1, 1)  # [B, N * H, K * T, d_k]
        attended, weights = self.attend(query, key, value, mask, rows=rows)  # [B, K * T, N * H, d_v]
        joined = attended.unflatten(2, (num_levels, self.num_heads)).flatten(3).flatten(1, 2)  # [B, K * T * N, H * d]
        return self.o_proj(joined).reshape(*queries.shape[:2], num_levels, -1), weights  # [B * K, T, N, D]


class AttentionOnAttention(nn.Module):
    """Attention on attention: `information * sigmoid(gate)`, both linear in the query and the attended vector.

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
        """Combine query and attended vector `[..., D]` to the gated information `[..., D]`."""
        return self.with_gate(first, second)[0]

    def with_gate(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gated information `[..., D]` and the gate `[..., D]`."""
        projected = self.projection(self.dropout(torch.cat((first, second), dim=-1)))
        information, gate = projected.chunk(2, dim=-1)
        gate = gate.sigmoid()
        return information * gate, gate


class FeedForward(nn.Module):
    """Position-wise feed-forward layer `W_2 f(W_1 x)` (Vaswani et al., 2017, Eq. 2), with dropout after f.

    Args:
        hidden_size: D.
        inner_size: width between the two projections.
        activation: f; None leaves it out.
        dropout: rate after the activation.
    """

    def __init__(
        self,
        hidden_size: int,
        inner_size: int,
        activation: Callable[[Tensor], Tensor] | None = torch.relu,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = nn.Linear(hidden_size, inner_size)
        self.fc2 = nn.Linear(inner_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Apply the feed-forward layer to `[..., D]`."""
        inner = self.fc1(states)
        return self.fc2(self.dropout(inner if self.activation is None else self.activation(inner)))


class ResidualRule:
    """Mixin of a residual connection: the norm precedes the sub-layer (pre-norm) or follows the sum (post-norm).

    `norm_first` False is `LN(x + dropout(f(x)))` (Vaswani et al., 2017), True is `x + dropout(f(LN(x)))`.
    """

    norm: nn.Module
    norm_first: bool
    dropout: nn.Module

    def before(self, states: Tensor) -> Tensor:
        """Return the sub-layer's input `[..., D]`: the residual stream, normalised first if pre-norm."""
        return self.norm(states) if self.norm_first else states

    def after(self, states: Tensor, output: Tensor) -> Tensor:
        """Add the sub-layer's output to the residual stream `[..., D]`; normalise the sum if post-norm."""
        added = states + self.dropout(output)
        return added if self.norm_first else self.norm(added)


class Residual(ResidualRule, nn.Module):
    """Residual connection that owns its norm and dropout, see `ResidualRule`.

    Args:
        hidden_size: D.
        norm_first: whether the norm comes before the sub-layer.
        dropout: rate on the output of the sub-layer.
        norm: class of the norm, called with `hidden_size` and `eps`.
        eps: of the norm.
    """

    def __init__(
        self,
        hidden_size: int,
        norm_first: bool = False,
        dropout: float = 0.0,
        norm: Callable[..., nn.Module] = nn.LayerNorm,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.norm = norm(hidden_size, eps=eps)
        self.norm_first = norm_first
        self.dropout = nn.Dropout(dropout)


class CaptionCache(EncoderDecoderCache):
    """Cache of keys and values: B x K text rows, which follow the beams, and B images, which do not.

    Only the text side follows the beams; the image side has one row per image and stays put. Every cross-attention
    has an entry of its own on the image side, however many a decoder layer has.

    Attributes:
        records: tensors with an entry per token (running sums, for instance), `[rows, T, ...]` by layer and name.
    """

    def __init__(self, self_attention_cache: Cache, cross_attention_cache: Cache | None = None) -> None:
        images = DynamicCache() if cross_attention_cache is None else cross_attention_cache  # an empty one is false
        super().__init__(self_attention_cache, images)
        self.records: dict[tuple[int, str], Tensor] = {}

    @classmethod
    def of(cls, cache: Any) -> "CaptionCache":
        """Convert an `EncoderDecoderCache` to a `CaptionCache` of the same storage, which never reorders images.

        An empty image side with a fixed number of entries is not shared. The records of text rows are attached to
        `cache`, so that the caller can continue with it.
        """
        if isinstance(cache, cls):
            return cache
        images = cache.cross_attention_cache
        is_shared = any(cache.is_updated.values()) or images.layer_class_to_replicate is not None
        shared = cls(cache.self_attention_cache, images if is_shared else None)
        if is_shared:
            shared.is_updated = cache.is_updated
        cache.records = shared.records = getattr(cache, "records", shared.records)
        return shared

    def record(self, layer_idx: int, name: str) -> Tensor | None:
        """Return a layer's entries `name` `[rows, T, ...]` of all tokens so far; None before the first token."""
        entries = self.records.get((layer_idx, name))
        return entries if entries is not None and entries.shape[1] else None

    def append(self, layer_idx: int, name: str, entries: Tensor) -> None:
        """Append the entries `[rows, T, ...]` of new tokens to a layer's record `name`."""
        before = self.records.get((layer_idx, name))
        self.records[layer_idx, name] = entries if before is None else torch.cat((before, entries), dim=1)

    def _change_records(self, change: Callable[[Tensor], Tensor]) -> None:
        for key, entries in self.records.items():
            self.records[key] = change(entries)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder text rows after a beam search step: row i continues row `beam_idx[i]` of the same image."""
        self.self_attention_cache.reorder_cache(beam_idx)
        self._change_records(lambda entries: entries.index_select(0, beam_idx.to(entries.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every text row `repeats` times; images are not repeated."""
        self.self_attention_cache.batch_repeat_interleave(repeats)
        self._change_records(lambda entries: entries.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the text rows `indices`; all images stay."""
        self.self_attention_cache.batch_select_indices(indices)
        self._change_records(lambda entries: entries[indices])

    def select_images(self, images: Tensor) -> None:
        """Keep the keys and values of the images `images`; text rows stay."""
        self.cross_attention_cache.batch_select_indices(images)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens of every text row."""
        self.self_attention_cache.crop(tokens_to_remove)
        kept = -abs(tokens_to_remove) or None  # transformers counts what to remove as a negative number
        self._change_records(lambda entries: entries[:, :kept])

    def reset(self) -> None:
        """Clear keys, values and records."""
        super().reset()
        self.records.clear()


class JoinedWeights(Tensor):
    """Joined weights of several attentions, as one tensor whose `retain_grad()` keeps the gradients of all.

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
        """Join weights to a `JoinedWeights`; to a plain tensor without gradients or in a compiled graph."""
        joined = join(parts)
        if not joined.requires_grad or torch.compiler.is_compiling():
            return joined
        weights = joined.as_subclass(cls)  # type: ignore[type-var]
        weights.parts, weights.join = tuple(parts), join
        return weights

    def joined_gradients(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Concatenate gradients of the joined parts; a missing gradient counts as zeros."""
        pairs = zip(self.parts, gradients, strict=True)
        return self.join([torch.zeros_like(part) if gradient is None else gradient for part, gradient in pairs])

    def retain_grad(self) -> None:
        """Keep the gradients of the parts in the next backward pass."""
        for part in self.parts:
            part.retain_grad()

    @property
    def retains_grad(self) -> bool:
        """True after `retain_grad()`: the next backward pass keeps the gradient of the weights."""
        return all(part.retains_grad for part in self.parts)

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        """Gradient of the joined weights after a backward pass; None before it, or without `retain_grad()`."""
        gradients = [part.grad for part in self.parts] if self.retains_grad else [None]
        return None if all(gradient is None for gradient in gradients) else self.joined_gradients(gradients)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)


def join_attentions(parts: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Concatenate the weights `[B * K, 1, H, T, R]` of P attentions over the same states to `[B * K, P, H, T, R]`.

    Args:
        parts: the weights.
        mask: `[B, R]`, True = visible; None: all. The weights of an image without visible states become 0.
    """
    if mask is None:
        return JoinedWeights.of(parts, lambda values: torch.cat(tuple(values), dim=1))
    rows = mask.repeat_interleave(parts[0].shape[0] // mask.shape[0], dim=0)  # [B * K, R]
    return JoinedWeights.of(parts, lambda values: torch.cat(tuple(values), dim=1) * rows[:, None, None, None])


def gradient_of_weights(value: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of a scalar with respect to attention weights, in their shape.

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
