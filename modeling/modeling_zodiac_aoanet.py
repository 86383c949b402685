"""ZoDIAC in AoANet ("ZoDIAC + AoA"): a refining encoder and an attention LSTM with intensity attention (Eq. 2-10)."""

from typing import Any

import torch
from torch import Tensor, nn

from .configuration_zodiac_aoanet import ZodiacAoANetConfig
from .inputs_captioning import RegionFeatures
from .layers_attention import AttentionOnAttention, FeedForward, FoldedRows, Residual
from .layers_intensity import (
    IntensityAttention,
    IntensityForConditionalGeneration,
    RegionIntensityAttention,
    visible_entries,
    without_common_padding,
)
from .layers_recurrent import (
    AttendedContext,
    AttentionLSTMDecoder,
    AttentionLSTMLayer,
    AttentionLSTMPreTrainedModel,
    RefiningEncoder,
    RefiningLayer,
    RefiningStep,
)
from .layers_regions import RegionProjection, UnbiasedLayerNorm
from .modeling_captioning import (
    CaptioningEncoderOutput,
    CaptioningModel,
)


class ZodiacAoANetPreTrainedModel(AttentionLSTMPreTrainedModel):
    """Base class of ZoDIAC in AoANet; `attn_implementation` only changes its vision model."""

    config: ZodiacAoANetConfig
    _no_split_modules = ["ZodiacRefiningLayer", "AttentionLSTMLayer", "VisionBackbone"]
    _supports_flex_attn = False


class ActivatedLayerNorm(UnbiasedLayerNorm):
    """Layer norm followed by a GELU, before attention and attention on attention (released code)."""

    def forward(self, states: Tensor) -> Tensor:
        """Normalise `[..., D]`, then apply GELU."""
        return nn.functional.gelu(super().forward(states))


class ZodiacRefiningLayer(RefiningLayer):
    """Encoder layer of AoANet with intensity attention; its feed-forward layer has no activation.

    It records the pooled intensities `[B, H or 1]`.
    """

    def __init__(self, config: ZodiacAoANetConfig) -> None:
        width, attended = config.hidden_size, config.hidden_size * config.head_scale
        attention = RegionIntensityAttention(
            config, width, config.num_heads, attended // config.num_heads, False, mean_without_mask=True
        )
        attention.pre_gelu = False  # the norm has it
        if config.refiner == "aoa":
            output: nn.Module = AttentionOnAttention(width, config.aoa_dropout, first_size=attended)
        else:
            output = nn.Linear(attended, width)
        super().__init__(width, attention, output, config.refiner_ffn_dim, config.residual_dropout)
        if config.pre_gelu:
            self.self_attn_residual = Residual(width, True, config.residual_dropout, ActivatedLayerNorm, 1e-6)
        if config.refiner_ffn_dim:
            self.feed_forward = FeedForward(width, config.refiner_ffn_dim, None, config.residual_dropout)


class ZodiacAoANetEncoder(ZodiacAoANetPreTrainedModel, RefiningEncoder):
    """Refining encoder with intensity attention; also returns keys, values and global vector for the decoder.

    `gates` of its output are the pooled intensities `[B, H or 1]` of the layers.
    """

    def __init__(self, config: ZodiacAoANetConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.projection = RegionProjection(config.region_feature_size, width, config.region_norm, config.dropout)
        layers = config.refiner_layers if config.refiner != "none" else 0
        self.layers = nn.ModuleList([ZodiacRefiningLayer(config) for _ in range(layers)])
        self.norm = UnbiasedLayerNorm(width) if layers else nn.Identity()
        self.key_projection = nn.Linear(width, config.attended_size)
        self.value_projection = nn.Linear(width, config.attended_size)
        self.add_global_vector(config)
        self.post_init()

    def encode_regions(
        self,
        regions: RegionFeatures,
        output_attentions: bool,
        output_hidden_states: bool,
        output_gates: bool,
        global_features: Tensor | None = None,
    ) -> CaptioningEncoderOutput:
        """Refine regions `[B, R, features]` to `[B, R, D]`, and project keys and values for the decoder."""
        if self.config.intensity_pool == "released":
            regions = without_common_padding(regions)
        projected = self.projection(regions.region_features, regions.region_mask)
        if regions.region_mask is not None:
            projected = projected * regions.region_mask[..., None]
        mask = None  # a mask of ones is not the same as none in the released pool
        if regions.region_mask is not None:
            hidden = ~regions.region_mask[:, None, None]  # [B, 1, 1, R]
            lowest = torch.finfo(projected.dtype).min
            mask = projected.new_zeros(hidden.shape).masked_fill(hidden, lowest)  # added to the scores
        recorded = (output_attentions, output_hidden_states, output_gates)
        return self.refine(regions, projected, RefiningStep(mask), global_features, *recorded)


class StepIntensityAttention(IntensityAttention):
    """Intensity attention of one step of a recurrent decoder, over the encoder's keys and values.

    The encoder's `level_states` `[B, 2, R, W]` are the keys and the values. The intensities of a step are pooled over
    the visible regions of its image.

    Args:
        config: see `IntensityAttention.add_intensity`.
        hidden_size: D of the queries.
        num_heads: H.
        attended_size: W.
        norm: applied to the queries.
    """

    def __init__(self, config: Any, hidden_size: int, num_heads: int, attended_size: int, norm: nn.Module) -> None:
        nn.Module.__init__(self)
        self.config, self.num_heads = config, num_heads
        self.key_dim = attended_size // num_heads
        self.scaling = self.key_dim**-0.5
        self.norm = norm
        self.q_proj = nn.Linear(hidden_size, attended_size)
        self.add_intensity(config, hidden_size)

    def prepare(self, encoder_outputs: CaptioningEncoderOutput, rows: int) -> tuple[Any, ...]:
        """Return keys, values and mask for B * K text rows, which all steps share."""
        keys, values = (
            self.activate(self.split_heads(self.before(states))) for states in encoder_outputs.level_states.unbind(1)
        )
        mask = encoder_outputs.region_mask
        visible = visible_entries(None, keys) if mask is None else mask[:, None, None].float()  # [B, 1, 1, R]
        return keys, values, visible, mask is None

    def forward(  # type: ignore[override]
        self, hidden: Tensor, keys: Tensor, values: Tensor, visible: Tensor, without_mask: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from LSTM states `[B * K, D]` to the regions.

        Returns:
            The attended vectors `[B * K, W]`, weights `[B * K, H, R]` and pooled intensities `[B * K, H or 1]`.
        """
        folded = self.before(self.norm(hidden)).unflatten(0, (keys.shape[0], -1))  # [B, K, D]
        query, past = self.heads(self.q_proj, folded), self.heads(self.p_proj, folded)
        attended, weights = self.attended(query, keys, values, visible, FoldedRows(keys.shape[0], None))
        sums = self.intensities(past, values, visible)  # [B, H, K]
        if self.pool == "released":
            captions = sums.shape[-1] * (self.num_heads if without_mask else 1)
            pooled = self.pooled_over_batch(sums, visible.sum() * captions)
        else:
            pooled = (sums if self.pool == "mean" else sums.sum(1, keepdim=True)) / visible.sum(-1)
        attended = self.scaled(attended, pooled).flatten(2).flatten(0, 1)
        pooled = pooled.expand(keys.shape[0], -1, folded.shape[1]).transpose(1, 2).flatten(0, 1)
        return attended, weights, pooled


class ZodiacAoANetDecoder(ZodiacAoANetPreTrainedModel, AttentionLSTMDecoder):
    """Attention LSTM decoder with intensity attention, without the projection to the vocabulary.

    `gates` of its output have the pooled intensities `[B * K, T, H or 1]` in `attention`.
    """

    skips_padding = False  # the released pool reads every row of the batch

    def __init__(self, config: ZodiacAoANetConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        attention = StepIntensityAttention(
            config, width, config.num_heads, config.attended_size, UnbiasedLayerNorm(width)
        )
        context = AttendedContext(config.decoder_type, config.attended_size, width)
        self.layer = AttentionLSTMLayer(
            config.embedding_size, width, attention, context, config.context_dropout, config.output_residual
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()


class ZodiacAoANetModel(ZodiacAoANetPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = ZodiacAoANetEncoder
    decoder_class = ZodiacAoANetDecoder


class ZodiacAoANetForConditionalGeneration(ZodiacAoANetPreTrainedModel, IntensityForConditionalGeneration):
    """ZoDIAC in AoANet with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embedding.weight"}
    model_class = ZodiacAoANetModel
    head_bias = True
