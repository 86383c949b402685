"""Intensity attention of ZoDIAC: multi-head attention whose output is scaled by a pooled second attention map.

Source: "ZoDIAC: Zoneout Dropout Injection Attention Calculation", Eq. 2-10. G is the exact GELU, P the intensities of
the past query, rho the pooled intensities, zeta the zoneout factor and phi the gate.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .inputs_captioning import RegionFeatures
from .layers_attention import FoldedRows, MultiHeadAttention
from .modeling_captioning import CaptioningForConditionalGeneration

logger = logging.get_logger(__name__)

HIDDEN_SCORE = -1e9
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "none": lambda pooled: pooled,
}


def without_common_padding(regions: RegionFeatures) -> RegionFeatures:
    """Cut the last regions if they are padding in every image, as the released code does, which pools over padding."""
    mask = regions.region_mask
    if mask is None:
        return regions
    longest = int(mask.any(0).nonzero().max()) + 1
    return RegionFeatures(region_features=regions.region_features[:, :longest], region_mask=mask[:, :longest])


def visible_entries(mask: Tensor | None, key: Tensor) -> Tensor:
    """Convert an attention mask to 1 for visible keys and 0 for hidden ones, `[B, 1, Q or 1, K]` in float32.

    Args:
        mask: as eager attention takes it (added to the scores) or sdpa (True = visible); None: all are visible.
        key: `[B, H, K, d]`.
    """
    if mask is None:
        return key.new_ones(key.shape[0], 1, 1, key.shape[2], dtype=torch.float32)
    mask = mask[..., : key.shape[2]]
    return (mask if mask.dtype == torch.bool else mask == 0).float()


class IntensityAttention(MultiHeadAttention):
    """Base of ZoDIAC's attentions: the output is scaled by a second map (intensities) between past queries and values.

    `out = dropout(softmax(G(G(q) G(k)^T / sqrt(d))) G(v)) * (zeta + phi(rho))` (Eq. 2, 3, 8, 9), with rho the pooled
    intensities `P = G(G(p) G(v)^T / sqrt(d))` (Eq. 4-7). A subclass decides what is pooled: with the pools `"mean"`
    and `"sum"`, a row never depends on other rows, and a token never on later ones. The paper pools the mean of the
    whole map; the released code pools it over the batch, the heads and all tokens (`"released"`).

    Attributes:
        p_proj: projection of the past query.
    """

    def add_intensity(self, config: Any, hidden_size: int) -> None:
        """Create the projection of the past query, and read the settings of ZoDIAC from the configuration.

        They are `intensity_gate`, `zoneout_factor`, `zodiac_dropout`, `pre_gelu`, `gelu` and `intensity_pool`.
        """
        self.p_proj = nn.Linear(hidden_size, self.num_heads * self.key_dim)
        self.gate = GATES[config.intensity_gate]
        self.zoneout_factor = config.zoneout_factor
        self.attended_dropout = nn.Dropout(config.zodiac_dropout)
        self.pre_gelu, self.gelu, self.pool = config.pre_gelu, config.gelu, config.intensity_pool

    def before(self, states: Tensor) -> Tensor:
        """Apply GELU before the projections, with `pre_gelu` (Eq. 10)."""
        return nn.functional.gelu(states) if self.pre_gelu else states

    def activate(self, states: Tensor) -> Tensor:
        """Apply the activation G of the paper: GELU, or nothing with `gelu=False`."""
        return nn.functional.gelu(states) if self.gelu else states

    def heads(self, projection: nn.Linear, states: Tensor) -> Tensor:
        """Project `[B, Q, D]`, split heads and activate: `[B, H, Q, d]`."""
        return self.activate(self.split_heads(projection(states)))

    def attended(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, rows: FoldedRows | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the attended values of Eq. 2 and 3, `[B, Q, H, d]` after dropout, and the weights `[B, H, Q, K]`."""
        scores = self.activate(query @ key.transpose(-1, -2) * self.scaling)
        weights = scores.float().masked_fill(visible == 0, HIDDEN_SCORE).softmax(-1).to(value.dtype)
        weights = weights if rows is None else rows.unfold(weights)
        folded = weights if rows is None else rows.fold(weights)
        return self.attended_dropout(folded @ value).transpose(1, 2), weights

    def intensities(self, past: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """Return the intensities of Eq. 4 summed over visible keys, `[B, H, Q]` in float32."""
        maps = self.activate(past @ value.transpose(-1, -2) * self.scaling)
        return (maps.float() * visible).sum(-1)

    def scaled(self, attended: Tensor, pooled: Tensor) -> Tensor:
        """Multiply attended values `[B, Q, H, d]` by `zeta + phi(rho)`, rho the pooled intensities (Eq. 8, 9)."""
        factor = self.zoneout_factor + self.gate(pooled)
        return attended * factor.transpose(1, 2)[..., None].to(attended.dtype)

    def pooled_over_batch(self, sums: Tensor, count: Tensor) -> Tensor:
        """Average intensities over rows, heads and queries to one number `[1, 1, 1]`, as the released code does.

        Args:
            sums: `[B, H, Q]`.
            count: number of visible entries of the mask, before it is repeated for heads (and queries).
        """
        return (sums.sum() / count).view(1, 1, 1)


class RegionIntensityAttention(IntensityAttention):
    """Self-attention over regions whose intensities are pooled over all visible pairs of regions of an image.

    Args:
        config: see `IntensityAttention.add_intensity`.
        hidden_size: D.
        num_heads: H.
        key_dim: width per head of queries, keys and values; default D / H.
        output_projection: project the joined heads to D.
        mean_without_mask: with `intensity_pool="released"` and without a mask, pool the mean over all entries, as
            the released AoA model does; the released Transformer makes a mask of ones.
    """

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        num_heads: int,
        key_dim: int | None = None,
        output_projection: bool = True,
        mean_without_mask: bool = False,
    ) -> None:
        super().__init__(config, hidden_size, num_heads, key_dim, key_dim, output_projection=output_projection)
        self.mean_without_mask = mean_without_mask
        self.add_intensity(config, hidden_size)

    def pooled(self, sums: Tensor, mask: Any, visible: Tensor) -> Tensor:
        """Pool the intensities `[B, H, R]` of regions to rho: `[B, H, 1]` (mean) or `[B, 1, 1]` (sum)."""
        if self.pool == "released":
            count = sums.new_tensor(sums.numel() * visible.shape[-1]) if self._is_plain_mean(mask) else visible.sum()
            return self.pooled_over_batch(sums, count)
        real = visible[:, :, 0]  # [B, 1, R]: the regions are queries as well
        count = real.sum(-1, keepdim=True)  # [B, 1, 1]
        total = (sums * real).sum(-1, keepdim=True)  # [B, H, 1]
        return total / count.square() if self.pool == "mean" else total.sum(1, keepdim=True) / count

    def _is_plain_mean(self, mask: Any) -> bool:
        return mask is None and self.mean_without_mask

    def forward(  # type: ignore[override]
        self, queries: Tensor, key_value_states: Tensor, mask: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute intensity self-attention over regions `[B, R, D]`.

        Returns:
            `[B, R, D]` (`[B, R, H * d]` without an output projection), the weights `[B, H, R, R]`, and the pooled
            intensities `[B, H or 1]`.
        """
        states = self.before(key_value_states)
        key, value = self.heads(self.k_proj, states), self.heads(self.v_proj, states)
        query, past = self.heads(self.q_proj, self.before(queries)), self.heads(self.p_proj, self.before(queries))
        visible = visible_entries(mask, key)[:, :, :1]  # [B, 1, 1, R]: equal for all queries
        attended, weights = self.attended(query, key, value, visible)
        pooled = self.pooled(self.intensities(past, value, visible), mask, visible)
        output = self.o_proj(self.scaled(attended, pooled).flatten(2))
        return output, weights, pooled[..., 0].expand(queries.shape[0], -1)


class IntensityForConditionalGeneration(CaptioningForConditionalGeneration):
    """Captioner with intensity attention; warns once if its captions depend on the batch."""

    @property
    def captions_depend_on_batch(self) -> bool:
        """True if a caption depends on the other images of its batch, as with the pool "released"."""
        return self.config.intensity_pool == "released"

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Warn once if captions depend on the batch, then prepare as transformers does."""
        if self.captions_depend_on_batch:
            logger.warning_once(
                'With `intensity_pool="released"`, as in the released code of ZoDIAC, a caption depends on the other '
                "images of its batch and on the number of beams. The pools 'mean' and 'sum' do not have this property."
            )
        return super()._prepare_generation_config(generation_config, **kwargs)
