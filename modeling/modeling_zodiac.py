"""ZoDIAC ("ZoDIAC: Zoneout Dropout Injection Attention Calculation"): a pre-norm Transformer with intensity attention.

Encoder and decoder are those of the captioning Transformer; every attention is an `IntensityAttention` (Eq. 2-10).
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .configuration_zodiac import ZodiacConfig
from .layers_intensity import (
    CachedIntensityAttention,
    CrossIntensityAttention,
    IntensityForConditionalGeneration,
    RegionIntensityAttention,
    without_common_padding,
)
from .layers_transformer import (
    DecoderStep,
    FeedForward,
    PositionTable,
    RegionProjection,
    Residual,
    TextDecoder,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    TransformerPreTrainedModel,
    UnbiasedLayerNorm,
    encode_levels,
)
from .layers_vision import RegionFeatures
from .modeling_captioning import (
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningModel,
)

BATCH_NORMS = {0: "none", 1: "batch_input", 2: "batch"}  # kinds of `RegionProjection`


class ZodiacPreTrainedModel(TransformerPreTrainedModel):
    """Split rules of ZoDIAC; attention back-ends reach its vision part only."""

    config: ZodiacConfig
    _no_split_modules = ["TransformerEncoderLayer", "ZodiacDecoderLayer", "VisionBackbone"]
    _supports_flex_attn = False


def make_residual(config: ZodiacConfig) -> Residual:
    """Return a new residual connection, with the norm before the sub-layer."""
    return Residual(config.hidden_size, True, config.dropout, UnbiasedLayerNorm, 1e-6)


def make_feed_forward(config: ZodiacConfig) -> FeedForward:
    """Return a new feed-forward layer, in the released code without an activation."""
    activation = torch.relu if config.ffn_activation == "relu" else None
    return FeedForward(config.hidden_size, config.ffn_dim, activation, config.dropout)


class ZodiacEncoder(ZodiacPreTrainedModel, CaptioningEncoder):
    """Projected regions and layers of intensity attention over them.

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
        """Return a new layer."""
        attention = RegionIntensityAttention(config, config.hidden_size, config.num_attention_heads)
        return TransformerEncoderLayer(attention, make_feed_forward(config), partial(make_residual, config))

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Encode regions `[B, R, D_in]` with every layer."""
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
    """Decoder layer of a Transformer whose two attentions return their pooled intensities."""

    def forward(  # type: ignore[override]
        self, hidden: Tensor, regions: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run the layer.

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


class ZodiacDecoder(ZodiacPreTrainedModel, TextDecoder):
    """Embedded words and positions, and decoder layers.

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
        """Return a new layer, number `index` in the cache."""
        sizes = (config, config.hidden_size, config.num_attention_heads, index)
        return ZodiacDecoderLayer(
            CachedIntensityAttention(*sizes),
            CrossIntensityAttention(*sizes),
            make_feed_forward(config),
            partial(make_residual, config),
        )

    def hide_tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Return the token mask; for the released pool, that of the released code, which `generate()` does not have.

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
        """Decode text rows, see `TextDecoder.forward`.

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

    def run_layer(
        self, index: int, hidden: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Any]:
        """Run layer `index` on the encoder's output."""
        return self.decoder_layers[index](hidden, step.encoder_outputs.last_hidden_state, step)


class ZodiacModel(ZodiacPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    def __init__(self, config: ZodiacConfig) -> None:
        super().__init__(config)
        self.encoder = ZodiacEncoder(config)
        self.decoder = ZodiacDecoder(config)
        self.post_init()


class ZodiacForConditionalGeneration(ZodiacPreTrainedModel, IntensityForConditionalGeneration):
    """ZoDIAC with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.token_embedding.weight"}

    def __init__(self, config: ZodiacConfig) -> None:
        super().__init__(config)
        self.model = ZodiacModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Switch the cache off for the released pool."""
        if self.captions_depend_on_batch:
            if kwargs.get("use_cache") or kwargs.get("cache") is not None:
                raise ValueError(
                    'With `intensity_pool="released"` nothing can be cached; omit `use_cache` and `cache`.'
                )
            kwargs["use_cache"] = False
        return super()._prepare_generation_config(generation_config, **kwargs)

    def decoding_mask(self, input_ids: Tensor) -> Tensor | None:
        """As in the base class; the released pool gets a mask of one row, see `ZodiacDecoder.hide_tokens`."""
        if self.captions_depend_on_batch:
            return input_ids.new_ones(1, input_ids.shape[1])
        return super().decoding_mask(input_ids)
