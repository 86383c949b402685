"""The Transformer (Vaswani et al., 2017, "Attention Is All You Need") that captions image regions.

Regions take the place of source words and have no positions. Captioning papers compare with it under different
settings, see `CaptioningTransformerConfig`.
"""

import math
from functools import partial

from torch import nn

from .configuration_transformer import CaptioningTransformerConfig
from .inputs_captioning import RegionFeatures
from .layers_attention import BeamFoldingCrossAttention, FeedForward, MultiHeadAttention, Residual
from .layers_regions import RegionProjection, UnbiasedLayerNorm
from .layers_transformer import (
    CachedSelfAttention,
    PositionTable,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    TransformerPreTrainedModel,
    TransformerTextDecoder,
    encode_levels,
    visible_regions,
)
from .modeling_captioning import (
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningModel,
)


class CaptioningTransformerPreTrainedModel(TransformerPreTrainedModel):
    """Base class of the captioning Transformer: layers that `device_map` keeps on one device."""

    config: CaptioningTransformerConfig
    _no_split_modules = ["TransformerEncoderLayer", "TransformerDecoderLayer", "VisionBackbone"]


def make_norm(config: CaptioningTransformerConfig) -> partial:
    """Return a constructor of norm layers by the configuration; call it with the width."""
    kind, eps = (UnbiasedLayerNorm, 1e-6) if config.norm_type == "unbiased" else (nn.LayerNorm, 1e-5)
    return partial(kind, eps=eps if config.norm_eps is None else config.norm_eps)


def make_residual(config: CaptioningTransformerConfig) -> Residual:
    """Build a residual connection."""
    norm = make_norm(config)
    return Residual(config.hidden_size, config.norm_first, config.dropout, norm.func, norm.keywords["eps"])


def final_norm(config: CaptioningTransformerConfig) -> nn.Module:
    """Build the norm after the last layer; the identity for post-norm layers."""
    return make_norm(config)(config.hidden_size) if config.norm_first else nn.Identity()


class CaptioningTransformerEncoder(CaptioningTransformerPreTrainedModel, CaptioningEncoder):
    """Region encoder: projection of regions, then self-attention layers (none with `use_encoder=False`)."""

    def __init__(self, config: CaptioningTransformerConfig) -> None:
        super().__init__(config)
        self.projection = RegionProjection(
            config.region_feature_size, config.hidden_size, config.region_norm, config.region_dropout
        )
        layers = config.encoder_layers if config.use_encoder else 0
        self.layers = nn.ModuleList([self.make_layer(config) for _ in range(layers)])
        self.final_norm = final_norm(config) if config.use_encoder else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @staticmethod
    def make_layer(config: CaptioningTransformerConfig) -> TransformerEncoderLayer:
        """Build an encoder layer: self-attention and feed-forward network."""
        attention = MultiHeadAttention(
            config,
            config.hidden_size,
            config.num_attention_heads,
            config.key_dim,
            config.value_dim,
            dropout=config.attention_dropout,
        )
        feed_forward = FeedForward(config.hidden_size, config.ffn_dim, dropout=config.dropout)
        return TransformerEncoderLayer(attention, feed_forward, partial(make_residual, config))

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Encode regions `[B, R, D_in]`; return the output of every layer."""
        hidden = self.projection(regions.region_features, regions.region_mask)
        visible = visible_regions(self.config, hidden, regions.region_mask)
        return encode_levels(
            self.config, self.layers, hidden, visible, output_attentions, output_hidden_states, self.final_norm
        )


class CaptioningTransformerDecoder(CaptioningTransformerPreTrainedModel, TransformerTextDecoder):
    """Text decoder: word and position embeddings, then decoder layers.

    `cross_attentions` of its output are `[B * K, 1, H, T, R]` per layer.
    """

    def __init__(self, config: CaptioningTransformerConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = PositionTable(
            config.max_position_embeddings, config.hidden_size, config.position_embedding
        )
        self.first_position = config.first_position
        self.embedding_scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.decoder_layers = nn.ModuleList([self.make_layer(config, i) for i in range(config.decoder_layers)])
        self.final_norm = final_norm(config)
        self.post_init()

    @staticmethod
    def make_layer(config: CaptioningTransformerConfig, index: int) -> TransformerDecoderLayer:
        """Build decoder layer `index`."""
        sizes = (config, config.hidden_size, config.num_attention_heads, config.key_dim, config.value_dim)
        options = {"dropout": config.attention_dropout, "layer_idx": index}
        return TransformerDecoderLayer(
            CachedSelfAttention(*sizes, **options),
            BeamFoldingCrossAttention(*sizes, **options),
            FeedForward(config.hidden_size, config.ffn_dim, dropout=config.dropout),
            partial(make_residual, config),
        )


class CaptioningTransformerModel(CaptioningTransformerPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = CaptioningTransformerEncoder
    decoder_class = CaptioningTransformerDecoder


class CaptioningTransformerForConditionalGeneration(
    CaptioningTransformerPreTrainedModel, CaptioningForConditionalGeneration
):
    """Captioning Transformer with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.token_embedding.weight"}
    model_class = CaptioningTransformerModel

    def make_head(self, config: CaptioningTransformerConfig) -> nn.Linear:
        """Build the projection to the vocabulary, with or without a bias."""
        return nn.Linear(config.hidden_size, config.vocab_size, bias=config.output_bias)
