"""Multi-head and additive attention over regions, folding beams into the query axis, and attention on attention."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


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
    """Scaled dot-product attention in plain products (Vaswani et al., 2017, Eq. 1).

    Args:
        query: `[B, H, T, d_k]`; key: `[B, H, R, d_k]`; value: `[B, H, R, d_v]`.
        attention_mask: added to the scores, broadcastable to `[B, H, T, R]`.

    Returns:
        The attended values `[B, T, H, d_v]` and the weights `[B, H, T, R]`.
    """
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (dropped @ value).transpose(1, 2), weights


def create_region_mask(config: Any, queries: Tensor, regions: Tensor, region_mask: Tensor | None) -> Any:
    """The mask of keys in the form that the chosen attention implementation wants; None when nothing is hidden.

    Args:
        queries: `[B, T, D]`, read for its batch, length, dtype and device only.
        regions: `[B, R, D]`, the keys.
        region_mask: `[B, R]`, True = a real region.
    """
    if region_mask is None:
        return None
    return create_bidirectional_mask(
        config=config, inputs_embeds=queries, attention_mask=region_mask, encoder_hidden_states=regions
    )


class MultiHeadAttention(nn.Module):
    """Multi-head attention whose heads may have their own widths of keys and values.

    Args:
        config: its `_attn_implementation` chooses eager, sdpa or flex attention.
        hidden_size: D of queries, memory and output.
        num_heads: H.
        key_dim, value_dim: widths of a head; default D / H.
        dropout: on the attention weights.
    """

    # The attention functions of transformers take a module without this attribute for a causal one.
    is_causal = False

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.key_dim = key_dim or hidden_size // num_heads
        self.value_dim = value_dim or hidden_size // num_heads
        self.dropout = dropout
        self.scaling = self.key_dim**-0.5
        self.q_proj = nn.Linear(hidden_size, num_heads * self.key_dim)
        self.k_proj = nn.Linear(hidden_size, num_heads * self.key_dim)
        self.v_proj = nn.Linear(hidden_size, num_heads * self.value_dim)
        self.o_proj = nn.Linear(num_heads * self.value_dim, hidden_size)

    def split_heads(self, states: Tensor) -> Tensor:
        """`[B, T, H * d]` to `[B, H, T, d]`."""
        return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> tuple[Tensor, Tensor | None]:
        """Attended values `[B, T, H, d_v]` and weights `[B, H, T, R]` (None outside of eager attention)."""
        function: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.dropout if self.training else 0.0
        return function(self, query, key, value, mask, scaling=self.scaling, dropout=dropout, is_causal=False)

    def forward(self, queries: Tensor, memory: Tensor, mask: Any = None) -> tuple[Tensor, Tensor | None]:
        """Attend from `queries` `[B, T, D]` to `memory` `[B, R, D]`; returns `[B, T, D]` and the weights."""
        query = self.split_heads(self.q_proj(queries))
        key = self.split_heads(self.k_proj(memory))
        value = self.split_heads(self.v_proj(memory))
        attended, weights = self.attend(query, key, value, mask)
        return self.o_proj(attended.flatten(2)), weights


class BeamFoldingCrossAttention(MultiHeadAttention):
    """Cross-attention from B x K rows of text to the encoder states of B images, at several encoder levels at once.

    The K rows of an image become K * T queries of one row, so keys and values exist once an image, stay where they
    are when beams are reordered, and no mask is repeated. The levels share all projections (as in the meshed decoder
    of M2 and in VisualGPT) and lie on the head axis, so that one call of the attention function serves them all.
    """

    def __init__(self, *args: Any, layer_idx: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer_idx = layer_idx

    def project_levels(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, N * H, R, d]` of encoder levels `[B, N, R, D]`."""

        def heads_of_levels(states: Tensor) -> Tensor:
            states = states.unflatten(-1, (self.num_heads, -1))  # [B, N, R, H, d]
            return states.transpose(2, 3).flatten(1, 2)  # [B, N * H, R, d]

        return heads_of_levels(self.k_proj(levels)), heads_of_levels(self.v_proj(levels))

    def keys_and_values(self, levels: Callable[[], Tensor], cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Project the levels, or take what an earlier step stored.

        Args:
            levels: called for the normalised levels `[B, N, R, D]` only when they have to be projected.
            cache: an `EncoderDecoderCache`, or None to project every time.
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
        self, queries: Tensor, levels: Callable[[], Tensor], num_levels: int, mask: Any = None, cache: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from text to every level.

        Args:
            queries: `[B * K, T, D]`, the rows of an image next to each other.
            levels: gives `[B, N, R, D]` on demand.
            num_levels: N.
            mask: of the keys, for K * T queries.
            cache: see `keys_and_values`.

        Returns:
            One output for each level `[B * K, T, N, D]`, and the weights `[B * K, N, H, T, R]` or None.
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
            weights = weights.flatten(0, 1).unflatten(1, (num_levels, self.num_heads))
        return output.reshape(rows, length, num_levels, -1), weights


class AdditiveAttention(nn.Module):
    """Weights of regions from a perceptron of query and key (Bahdanau et al., 2014; Show, Attend and Tell, Eq. 15-16).

    `softmax(scale * w activation(k_i + W q))`; the keys are projected by whoever owns the regions, once an image.

    Args:
        query_size: width of queries. attention_size: A, width of the keys.
        activation: `"tanh"` or `"relu"`.
        scale: what scores are multiplied by.
    """

    def __init__(self, query_size: int, attention_size: int, activation: str = "tanh", scale: float = 1.0) -> None:
        super().__init__()
        self.activation = getattr(torch, activation)
        self.scale = scale
        self.query_projection = nn.Linear(query_size, attention_size, bias=False)
        self.score = nn.Linear(attention_size, 1)

    def forward(self, queries: Tensor, keys: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """Queries `[B * K, Q]` and keys `[B, R, A]` of their images to weights `[B, K, R]`.

        Args:
            region_mask: `[B, R]`, True = visible.
        """
        queries = self.query_projection(queries).unflatten(0, (keys.shape[0], -1))  # [B, K, A]
        scores = self.score(self.activation(keys[:, None] + queries[:, :, None]))[..., 0] * self.scale  # [B, K, R]
        if region_mask is not None:
            scores = scores.masked_fill(~region_mask[:, None], -torch.inf)
        return scores.softmax(-1)


class AttentionOnAttention(nn.Module):
    """GLU of query and attended vector (Huang et al., 2019, "Attention on Attention for Image Captioning", Eq. 3-5).

    `information * sigmoid(gate)` with both halves linear in `[first; second]`; the first half of the output is the
    information. Which of query and attended vector comes first differs between code bases, so the caller decides.
    """

    def __init__(self, hidden_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(2 * hidden_size, 2 * hidden_size)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two tensors `[..., D]` to one `[..., D]`."""
        return nn.functional.glu(self.projection(self.dropout(torch.cat((first, second), dim=-1))), dim=-1)
