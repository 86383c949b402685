"""AoANet (Huang et al., ICCV 2019): attention on attention in a refining encoder and in an attention LSTM.

Symbols of the paper: A are the regions, a-bar their mean after refining, h_t the state of the attention LSTM, c_t the
context, i the information and g the gate of attention on attention.
"""

from typing import Any

from torch import Tensor, nn

from .configuration_aoanet import AoANetConfig
from .inputs_captioning import RegionFeatures
from .layers_attention import AttentionOnAttention, MultiHeadAttention, create_region_mask
from .layers_recurrent import (
    AttendedContext,
    AttentionLSTMDecoder,
    AttentionLSTMLayer,
    AttentionLSTMPreTrainedModel,
    RefiningEncoder,
    RefiningLayer,
    RefiningStep,
)
from .layers_region_attention import AdditiveAttention, DotRegionAttention
from .layers_regions import RegionProjection, UnbiasedLayerNorm
from .modeling_captioning import (
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningModel,
)


class AoANetPreTrainedModel(AttentionLSTMPreTrainedModel):
    """Base class of AoANet."""

    config: AoANetConfig


class AoANetEncoder(AoANetPreTrainedModel, RefiningEncoder):
    """Refining encoder (section 3.2.1); also returns keys, values and global vector for the decoder."""

    def __init__(self, config: AoANetConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.projection = RegionProjection(config.region_feature_size, width, config.region_norm, config.dropout)
        layers = config.refiner_layers if config.refiner != "none" else 0
        self.layers = nn.ModuleList([self.make_layer(config) for _ in range(layers)])
        self.norm = UnbiasedLayerNorm(width) if layers else nn.Identity()
        key_size = config.attended_size if config.attention_type == "dot" else config.attention_size
        self.key_projection = nn.Linear(width, key_size)
        self.value_projection = nn.Linear(width, key_size) if config.attention_type == "dot" else None
        self.add_global_vector(config)
        self.post_init()

    @staticmethod
    def make_layer(config: AoANetConfig) -> RefiningLayer:
        """Build a refining layer."""
        width, attended = config.hidden_size, config.hidden_size * config.head_scale
        head = attended // config.num_heads
        attention = MultiHeadAttention(
            config, width, config.num_heads, head, head, dropout=config.attention_dropout, output_projection=False
        )
        if config.refiner == "aoa":
            output: nn.Module = AttentionOnAttention(width, config.aoa_dropout, first_size=attended)
        else:
            output = nn.Linear(attended, width)
        return RefiningLayer(width, attention, output, config.refiner_ffn_dim, config.residual_dropout)

    def encode_regions(
        self,
        regions: RegionFeatures,
        output_attentions: bool,
        output_hidden_states: bool,
        output_gates: bool,
        global_features: Tensor | None = None,
    ) -> CaptioningEncoderOutput:
        """Refine regions `[B, R, features]` to `[B, R, D]`, and project keys and values for the decoder.

        Returns:
            `CaptioningEncoderOutput` with keys and values of the decoder's attention in `level_states` `[B, 2, R, W]`
            (additive attention: keys alone, `[B, 1, R, A]`), `global_state` `[B, D]`, and the gates of the refining
            layers `[B, R, D]`.
        """
        projected = self.projection(regions.region_features, regions.region_mask)
        attention_mask = create_region_mask(self.config, projected, projected, regions.region_mask)
        recorded = (output_attentions, output_hidden_states, output_gates)
        return self.refine(regions, projected, RefiningStep(attention_mask), global_features, *recorded)


class AdditiveRegionAttention(nn.Module):
    """Additive attention of one step of a recurrent decoder, over the encoder's regions `[B, R, D]`.

    The encoder's `level_states` `[B, 1, R, A]` are the keys.

    Args:
        hidden_size: width of the queries.
        attention_size: A.
    """

    def __init__(self, hidden_size: int, attention_size: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(hidden_size, attention_size)

    def prepare(self, encoder_outputs: CaptioningEncoderOutput, rows: int) -> tuple[Any, ...]:
        """Return keys, regions and mask, which all steps share."""
        regions, mask = encoder_outputs.memory()
        return encoder_outputs.level_states[:, 0], regions, mask

    def forward(
        self, hidden: Tensor, keys: Tensor, regions: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, None]:
        """Return the attended regions `[B * K, D]` of queries `[B * K, D]`, weights `[B * K, R]` and no gates."""
        weights = self.attention(hidden, keys, mask).flatten(0, 1)  # [B * K, R]
        return (weights.unflatten(0, (keys.shape[0], -1)) @ regions).flatten(0, 1), weights, None


class AoANetDecoder(AoANetPreTrainedModel, AttentionLSTMDecoder):
    """Attention LSTM decoder (section 3.2.2) without the projection to the vocabulary."""

    def __init__(self, config: AoANetConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layer = AttentionLSTMLayer(
            config.embedding_size,
            width,
            self.make_attention(config),
            AttendedContext(config.decoder_type, config.attended_size, width),
            config.context_dropout,
            config.output_residual,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    @staticmethod
    def make_attention(config: AoANetConfig) -> nn.Module:
        """Build the decoder's attention over regions, by `config.attention_type`."""
        width = config.hidden_size
        if config.attention_type == "additive":
            return AdditiveRegionAttention(width, config.attention_size)
        norm = UnbiasedLayerNorm(width) if config.query_norm else None
        return DotRegionAttention(config, width, config.num_heads, config.head_scale, config.attention_dropout, norm)


class AoANetModel(AoANetPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = AoANetEncoder
    decoder_class = AoANetDecoder


class AoANetForConditionalGeneration(AoANetPreTrainedModel, CaptioningForConditionalGeneration):
    """AoANet with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embedding.weight"}
    model_class = AoANetModel
    head_bias = True
