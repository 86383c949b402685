"""Attention of recurrent decoders: from the state of one step to the regions of the image."""

from typing import Any

import torch
from torch import Tensor, nn

from .layers_attention import FoldedRows, MultiHeadAttention, create_region_mask
from .modeling_captioning import CaptioningEncoderOutput


class PreparedDotAttention(MultiHeadAttention):
    """Attention from B x K text rows to keys and values that the encoder has projected once per image (AoANet).

    Only the queries are projected here. `scale` multiplies the width of the heads.

    Attributes:
        groups: M, attentions on the head axis, for which the weights have an axis of their own; None: no axis.
    """

    groups: int | None = None

    def __init__(self, config: Any, hidden_size: int, num_heads: int, scale: int = 1, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.config, self.num_heads, self.dropout, self.memory_slots = config, num_heads, dropout, 0
        self.key_dim = self.value_dim = hidden_size * scale // num_heads
        self.scaling = self.key_dim**-0.5
        self.q_proj = nn.Linear(hidden_size, hidden_size * scale)

    def forward(  # type: ignore[override]
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from one query per text row to the regions of its image.

        Args:
            queries: `[B * K, D]`, the rows of an image next to each other.
            keys, values: `[B, R, scale * D]`.
            mask: of the keys, for K queries, see `create_region_mask`.

        Returns:
            `[B * K, scale * D]`, and the weights `[B * K, H, R]` or `[B * K, M, H, R]`, or None.
        """
        query = self.split_heads(self.q_proj(queries.unflatten(0, (keys.shape[0], -1))))  # [B, H, K, d]
        form = FoldedRows(keys.shape[0], None, self.groups)
        attended, weights = self.attend(query, self.split_heads(keys), self.split_heads(values), mask, rows=form)
        return attended.flatten(2).flatten(0, 1), weights


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
        """Return the attention weights `[B, K, R]`.

        Args:
            queries: `[B * K, Q]`; the K rows of an image are consecutive.
            keys: `[B, R, A]`, keys of the regions.
            region_mask: `[B, R]`, True = visible.
        """
        queries = self.query_projection(queries).unflatten(0, (keys.shape[0], -1))  # [B, K, A]
        summed = keys[:, None] + queries[:, :, None]  # [B, K, R, A]
        scores = self.score(self.activation(summed).flatten(0, 1))  # [B * K, R, 1]
        scores = scores[..., 0].unflatten(0, queries.shape[:2]) * self.scale  # [B, K, R]
        if region_mask is not None:
            scores = scores.masked_fill(~region_mask[:, None], -torch.inf)
        return scores.softmax(-1)


class DotRegionAttention(nn.Module):
    """Multi-head dot-product attention of one step of a recurrent decoder, over the encoder's keys and values.

    The encoder's `level_states` `[B, 2, R, W]` are the keys and the values.

    Args:
        config: selects the attention implementation.
        hidden_size: D of the queries.
        num_heads: H.
        scale: W / D.
        dropout: rate on the attention weights.
        norm: applied to the queries; None: nothing is.
    """

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        num_heads: int,
        scale: int = 1,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.Identity() if norm is None else norm
        self.attention = PreparedDotAttention(config, hidden_size, num_heads, scale, dropout)

    def prepare(self, encoder_outputs: CaptioningEncoderOutput, rows: int) -> tuple[Any, ...]:
        """Return keys, values and mask for B * K text rows, which all steps share."""
        keys, values = encoder_outputs.level_states.unbind(1)  # each [B, R, W]
        queries = keys.new_empty(keys.shape[0], rows // keys.shape[0], 0)  # [B, K, 0]: a mask needs the shape only
        return keys, values, create_region_mask(self.attention.config, queries, keys, encoder_outputs.region_mask)

    def forward(self, hidden: Tensor, keys: Tensor, values: Tensor, mask: Any) -> tuple[Tensor, Tensor | None, None]:
        """Return the attended vectors `[B * K, W]` of queries `[B * K, D]`, weights `[B * K, H, R]` and no gates."""
        return *self.attention(self.norm(hidden), keys, values, mask), None
