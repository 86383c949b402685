"""ZoDIAC ("ZoDIAC: Zoneout Dropout Injection Attention Calculation"): a pre-norm Transformer with intensity attention.

Encoder and decoder are those of the captioning Transformer; every attention is an `IntensityAttention` (Eq. 2-10).
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .configuration_zodiac import ZodiacConfig
from .inputs_captioning import RegionFeatures
from .layers_attention import BeamFoldingCrossAttention, FeedForward, FoldedRows, Residual
from .layers_intensity import (
    IntensityAttention,
    IntensityForConditionalGeneration,
    RegionIntensityAttention,
    visible_entries,
    without_common_padding,
)
from .layers_regions import RegionProjection, UnbiasedLayerNorm, rows_of_images
from .layers_transformer import (
    CachedSelfAttention,
    DecoderStep,
    LayerOutput,
    PositionTable,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    TransformerPreTrainedModel,
    TransformerTextDecoder,
    encode_levels,
)
from .modeling_captioning import (
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningModel,
)

BATCH_NORMS = {0: "none", 1: "batch_input", 2: "batch"}  # kinds of `RegionProjection`


class ZodiacPreTrainedModel(TransformerPreTrainedModel):
    """Base class of ZoDIAC; `attn_implementation` only changes its vision model."""

    config: ZodiacConfig
    _no_split_modules = ["TransformerEncoderLayer", "ZodiacDecoderLayer", "VisionBackbone"]
    _supports_flex_attn = False


def make_residual(config: ZodiacConfig) -> Residual:
    """Build a pre-norm residual connection."""
    return Residual(config.hidden_size, True, config.dropout, UnbiasedLayerNorm, 1e-6)


def make_feed_forward(config: ZodiacConfig) -> FeedForward:
    """Build a feed-forward layer, without an activation in the released code."""
    activation = torch.relu if config.ffn_activation == "relu" else None
    return FeedForward(config.hidden_size, config.ffn_dim, activation, config.dropout)


def visible_tokens_so_far(mask: Tensor | None, key: Tensor, length: int) -> Tensor:
    """Return 1 for tokens that each of the last `length` tokens may attend to, `[B or 1, 1, T, past + T]`."""
    if mask is not None:
        return visible_entries(mask, key)
    total = key.shape[2]
    return key.new_ones(length, total, dtype=torch.float32).tril(total - length)[None, None]


class RunningIntensityAttention(IntensityAttention):
    """Base of attentions of text rows whose intensities are pooled over all tokens so far.

    Sums and counts are kept per token in the records of the cache, so that they follow beams and can be cropped.

    Attributes:
        layer_idx: number of the attention in the cache.
        record_name: name of its records.
        sum_counts_all: whether the pool `"sum"` divides by the pairs of all tokens so far, or those of one token.
    """

    layer_idx: int
    record_name: str
    sum_counts_all: bool

    def running(self, sums: Tensor, counts: Tensor, step: DecoderStep) -> tuple[Tensor, Tensor]:
        """Return cumulative sums `[rows, H, T]` and counts `[rows, 1, T]` up to each token, without hidden tokens."""
        entries = torch.cat((sums, counts), dim=1).transpose(1, 2)  # [rows, T, H + 1]
        if step.token_mask is not None:
            entries = entries * step.token_mask
        totals = entries.cumsum(1)
        if step.cache is not None:
            before = step.cache.record(self.layer_idx, self.record_name)
            # An exported program begins with a record of no token, whose sum is 0.
            totals = totals if before is None else totals + before[:, -1:].sum(1, keepdim=True)
            step.cache.append(self.layer_idx, self.record_name, totals)
        totals = totals.transpose(1, 2)
        return totals[:, :-1], totals[:, -1:]

    def pooled(self, sums: Tensor, counts: Tensor, step: DecoderStep) -> Tensor:
        """Pool the intensities `[rows, H, T]` of each token, summed over its `counts` visible keys, to rho.

        Returns:
            rho `[rows, H, T]` (mean), `[rows, 1, T]` (sum) or `[1, 1, 1]` (released).
        """
        totals, pairs = self.running(sums, counts, step)
        if self.pool == "mean":
            return totals / pairs.clamp(min=1)
        divisor = pairs if self.sum_counts_all else counts
        return totals.sum(1, keepdim=True) / divisor.clamp(min=1)


class CachedIntensityAttention(RunningIntensityAttention, CachedSelfAttention):
    """Causal intensity attention over text rows, with cached keys and values.

    Args:
        config: see `IntensityAttention.add_intensity`.
        hidden_size, num_heads: D and H.
        layer_idx: number of the layer in the cache.
    """

    record_name = "self_intensity"
    sum_counts_all = True

    def __init__(self, config: Any, hidden_size: int, num_heads: int, layer_idx: int) -> None:
        super().__init__(config, hidden_size, num_heads, layer_idx=layer_idx)
        self.add_intensity(config, hidden_size)

    def forward(self, hidden: Tensor, step: DecoderStep) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Attend from `hidden` `[rows, T, D]` to all tokens so far.

        Returns:
            `[rows, T, D]`, the weights `[rows, H, T, past + T]` and the pooled intensities `[rows, H or 1, T]`.
        """
        states = self.before(hidden)
        query, past = self.heads(self.q_proj, states), self.heads(self.p_proj, states)
        key, value = self.heads(self.k_proj, states), self.heads(self.v_proj, states)
        if step.cache is not None:
            key, value = step.cache.self_attention_cache.update(key, value, self.layer_idx)
        visible = visible_tokens_so_far(step.causal_mask, key, hidden.shape[1])
        attended, weights = self.attended(query, key, value, visible)
        sums = self.intensities(past, value, visible)
        if self.pool == "released":
            # A step of the released decoding has one mask for all rows, without padding.
            rows = hidden.shape[0] if step.token_mask is None else 1
            pooled = self.pooled_over_batch(
                sums, visible.expand(hidden.shape[0], -1, hidden.shape[1], -1).sum() / rows
            )
        else:
            pooled = self.pooled(sums, visible.sum(-1).expand(hidden.shape[0], -1, -1), step)
        output = self.o_proj(self.scaled(attended, pooled).flatten(2))
        return output, weights, pooled.expand(hidden.shape[0], -1, hidden.shape[1])


class CrossIntensityAttention(RunningIntensityAttention, BeamFoldingCrossAttention):
    """Intensity cross-attention from B x K text rows to the regions of B images, with cached keys and values.

    Args:
        config: see `IntensityAttention.add_intensity`.
        hidden_size, num_heads: D and H.
        layer_idx: number of the layer in the cache.
    """

    record_name = "cross_intensity"
    sum_counts_all = False

    def __init__(self, config: Any, hidden_size: int, num_heads: int, layer_idx: int) -> None:
        super().__init__(config, hidden_size, num_heads, layer_idx=layer_idx)
        self.add_intensity(config, hidden_size)

    def project_levels(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values `[B, H, R, d]` of the encoder's output `[B, 1, R, D]`."""
        key, value = super().project_levels(self.before(levels))
        return self.activate(key), self.activate(value)

    def forward(  # type: ignore[override]
        self, queries: Tensor, regions: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from `queries` `[B * K, T, D]` to `regions` `[B, R, D]`.

        Returns:
            `[B * K, T, D]`, the weights `[B * K, H, T, R]` and the pooled intensities `[B * K, H or 1, T]`.
        """
        key, value = self.keys_and_values(lambda: regions[:, None], step.cache)
        rows, length = queries.shape[:2]
        folded = self.before(queries.reshape(key.shape[0], -1, queries.shape[-1]))  # [B, K * T, D]
        query, past = self.heads(self.q_proj, folded), self.heads(self.p_proj, folded)
        visible = visible_entries(step.memory_masks["region"], key)[:, :, :1]  # [B, 1, 1, R]
        attended, weights = self.attended(query, key, value, visible, FoldedRows(key.shape[0], length))
        sums = self.intensities(past, value, visible).unflatten(2, (-1, length))  # [B, H, K, T]
        sums = sums.transpose(1, 2).flatten(0, 1)  # [B * K, H, T]
        counts = rows_of_images(visible.sum(-1), rows)  # [B * K, 1, 1]
        if self.pool == "released":
            pooled = self.pooled_over_batch(sums, counts.sum())
        else:
            pooled = self.pooled(sums, counts.expand(-1, -1, length), step)
        attended = attended.reshape(rows, length, *attended.shape[2:])  # [B * K, T, H, d]
        output = self.o_proj(self.scaled(attended, pooled).flatten(2))
        return output, weights, pooled.expand(rows, -1, length)


class ZodiacEncoder(ZodiacPreTrainedModel, CaptioningEncoder):
    """Region encoder: projection of regions, then layers of intensity attention.

    `gates` of its output are the pooled intensities `[B, H or 1]` per layer.
    """

    def __init__(self, config: ZodiacConfig) -> None:
        super().__init__(config)
        norm = BATCH_NORMS[config.region_batch_norm]
        self.projection = RegionProjection(config.region_feature_size, config.hidden_size, norm, config.region_dropout)
        self.layers = nn.ModuleList([self.make_layer(config) for _ in range(config.encoder_layers)])
        self.final_norm = UnbiasedLayerNorm(config.hidden_size)
        self.gradient_checkpointing = False
        self.post_init()

    @staticmethod
    def make_layer(config: ZodiacConfig) -> TransformerEncoderLayer:
        """Build an encoder layer."""
        attention = RegionIntensityAttention(config, config.hidden_size, config.num_attention_heads)
        return TransformerEncoderLayer(attention, make_feed_forward(config), partial(make_residual, config))

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Encode regions `[B, R, D_in]`; return the output of every layer."""
        if self.config.intensity_pool == "released":
            regions = without_common_padding(regions)
        mask = regions.region_mask
        hidden = self.projection(regions.region_features, mask)
        if mask is not None:
            hidden = hidden * mask[..., None]
        return encode_levels(
            self.config,
            self.layers,
            hidden,
            mask,
            output_attentions,
            output_hidden_states,
            self.final_norm,
            output_gates,
        )


class ZodiacDecoderLayer(TransformerDecoderLayer):
    """Transformer decoder layer with intensity attention over tokens and over regions."""

    def forward(  # type: ignore[override]
        self, hidden: Tensor, regions: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run self-attention, cross-attention and the feed-forward layer.

        Args:
            hidden: `[B * K, T, D]`.
            regions: `[B, R, D]`, the last encoder level.
            step: masks and cache of this step.

        Returns:
            The stream `[B * K, T, D]`, self-attention weights, cross-attention weights, and the pooled intensities of
            both `[B * K, 2, H or 1, T]`.
        """
        branch, self_weights, self_pooled = self.self_attn(self.self_attn_residual.before(hidden), step)
        hidden = self.self_attn_residual.after(hidden, branch)
        branch, cross_weights, cross_pooled = self.cross_attn(self.cross_attn_residual.before(hidden), regions, step)
        hidden = self.cross_attn_residual.after(hidden, branch)
        branch = self.feed_forward(self.feed_forward_residual.before(hidden))
        hidden = self.feed_forward_residual.after(hidden, branch)
        return hidden, self_weights, cross_weights, torch.stack((self_pooled, cross_pooled), dim=1)


class ZodiacDecoder(ZodiacPreTrainedModel, TransformerTextDecoder):
    """Text decoder: word and position embeddings, then layers of intensity attention.

    `cross_attentions` of its output are `[B * K, H, T, R]` per layer; `gates` are the pooled intensities rho of
    self-attention and cross-attention, `[B * K, 2, H or 1, T]` per layer.
    """

    def __init__(self, config: ZodiacConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = PositionTable(config.max_position_embeddings, config.hidden_size)
        self.embedding_scale = math.sqrt(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.decoder_layers = nn.ModuleList([self.make_layer(config, i) for i in range(config.decoder_layers)])
        self.final_norm = UnbiasedLayerNorm(config.hidden_size)
        self.post_init()

    @staticmethod
    def make_layer(config: ZodiacConfig, index: int) -> ZodiacDecoderLayer:
        """Build decoder layer `index`."""
        sizes = (config, config.hidden_size, config.num_attention_heads, index)
        return ZodiacDecoderLayer(
            CachedIntensityAttention(*sizes),
            CrossIntensityAttention(*sizes),
            make_feed_forward(config),
            partial(make_residual, config),
        )

    def hide_tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Return the token mask; in training with the pool "released", every padding id but the first is hidden.

        The released training hides every token that equals the padding id, except the first. Its decoding hides none:
        `generate()` passes a mask of one row for this.
        """
        if self.config.intensity_pool != "released":
            return super().hide_tokens(input_ids, attention_mask)
        if attention_mask is None:
            real = input_ids != self.config.pad_token_id
            return torch.cat((torch.ones_like(real[:, :1]), real[:, 1:]), dim=1)
        return None if attention_mask.shape[0] == 1 and bool(attention_mask.all()) else attention_mask

    def forward(self, *args: Any, cache: Any = None, use_cache: bool = False, **kwargs: Any) -> Any:
        """Run the decoder on K captions an image, `[B * K, T]`, see `TransformerTextDecoder.forward`.

        Raises:
            ValueError: a cache is given, and the pool is that of the released code.
        """
        if self.config.intensity_pool == "released":
            if cache is not None:
                raise ValueError(
                    'With `intensity_pool="released"` later words change earlier ones, so nothing can be cached: '
                    'pass `use_cache=False`, or use the pool "mean" or "sum".'
                )
            use_cache = False
        return super().forward(*args, cache=cache, use_cache=use_cache, **kwargs)

    def run_layer(self, index: int, hidden: Tensor, step: DecoderStep) -> LayerOutput:
        """Run decoder layer `index` on the last encoder states."""
        return self.decoder_layers[index](hidden, step.encoder_outputs.last_hidden_state, step)


class ZodiacModel(ZodiacPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = ZodiacEncoder
    decoder_class = ZodiacDecoder


class ZodiacForConditionalGeneration(ZodiacPreTrainedModel, IntensityForConditionalGeneration):
    """ZoDIAC with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.token_embedding.weight"}
    model_class = ZodiacModel
    head_bias = True

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Disable the cache for the pool "released", then prepare as transformers does."""
        if self.captions_depend_on_batch:
            if kwargs.get("use_cache") or kwargs.get("cache") is not None:
                raise ValueError(
                    'With `intensity_pool="released"` nothing can be cached; omit `use_cache` and `cache`.'
                )
            kwargs["use_cache"] = False
        return super()._prepare_generation_config(generation_config, **kwargs)

    def decoding_mask(self, input_ids: Tensor) -> Tensor | None:
        """Return the mask of the tokens so far; one row of ones for the pool "released", see `ZodiacDecoder`."""
        if self.captions_depend_on_batch:
            return input_ids.new_ones(1, input_ids.shape[1])
        return super().decoding_mask(input_ids)
