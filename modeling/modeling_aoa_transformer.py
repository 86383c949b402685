"""The AoA Transformer, a baseline of VisualGPT: attention on attention in place of every feed-forward layer.

Source: Chen et al., CVPR 2022, Figure 3; attention on attention: Huang et al., 2019, Eq. 3-5.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_aoa_transformer import AoATransformerConfig
from .layers_attention import AttentionOnAttention, MultiHeadAttention
from .layers_gpt2 import (
    GPT2CaptioningForConditionalGeneration,
    GPT2CaptioningPreTrainedModel,
    GPT2CrossAttentionBlock,
    GPT2TextDecoder,
)
from .layers_transformer import DecoderStep, MultiLevelEncoder
from .modeling_captioning import CaptioningLMOutput, CaptioningModel


class AoATransformerPreTrainedModel(GPT2CaptioningPreTrainedModel):
    """Base class of the AoA Transformer: layers that `device_map` keeps on one device."""

    config: AoATransformerConfig
    _no_split_modules = ["AoAEncoderLayer", "AoABlock", "VisionBackbone"]


class AoAEncoderLayer(GradientCheckpointingLayer):
    """Encoder layer: self-attention, `u = LN(x + dropout(attention(x)))`, then attention on attention of `[x; u]`."""

    def __init__(self, config: AoATransformerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.self_attn = MultiHeadAttention(
            config, width, config.encoder_attention_heads, config.encoder_key_dim, config.encoder_value_dim
        )
        self.self_attn_norm = nn.LayerNorm(width, eps=1e-5)
        self.dropout = nn.Dropout(config.encoder_dropout)
        self.aoa = AttentionOnAttention(width, config.aoa_dropout)
        self.output_dropout = nn.Dropout(config.aoa_dropout)

    def forward(self, regions: Tensor, mask: Any) -> tuple[Tensor, Tensor | None]:
        """Return encoded regions `[B, R, D]` and attention weights `[B, H, R, R]`."""
        attended, weights = self.self_attn(regions, regions, mask)
        attended = self.self_attn_norm(regions + self.dropout(attended))
        return self.output_dropout(self.aoa(regions, attended)), weights


class AoATransformerEncoder(AoATransformerPreTrainedModel, MultiLevelEncoder):
    """Region encoder with attention on attention."""

    activation = staticmethod(partial(nn.functional.gelu, approximate="tanh"))
    make_layer = AoAEncoderLayer


class AoABlock(GPT2CrossAttentionBlock):
    """GPT-2 block that ends with attention on attention of the states before and after cross-attention."""

    def __init__(self, config: AoATransformerConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.aoa = AttentionOnAttention(config.hidden_size, config.aoa_dropout)
        self.output_dropout = nn.Dropout(config.aoa_dropout)

    def combine(self, stream: Tensor, query: Tensor, attended: Tensor, step: DecoderStep) -> tuple[Tensor, Tensor]:
        """Return `AoA([a; a + C])`, `[B * K, T, D]`, and its gate; hidden tokens are not set to 0, as released."""
        added = step.without_hidden(stream + attended[:, :, 0])
        combined, gate = self.aoa.with_gate(stream, added)
        return self.output_dropout(combined), gate


class AoATransformerDecoder(AoATransformerPreTrainedModel, GPT2TextDecoder):
    """GPT-2 decoder without feed-forward layers; its gates are those of attention on attention, `[B * K, T, D]`."""

    block_class = AoABlock


class AoATransformerModel(AoATransformerPreTrainedModel, CaptioningModel):
    """Region encoder and decoder without the head over the vocabulary."""

    encoder_class = AoATransformerEncoder
    decoder_class = AoATransformerDecoder


class AoATransformerForConditionalGeneration(AoATransformerPreTrainedModel, GPT2CaptioningForConditionalGeneration):
    """AoA Transformer with the head over the vocabulary, tied to the token embedding."""

    model_class = AoATransformerModel

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the gate of attention on attention for each token `[B * K, T]`, averaged over features."""
        return {"attention gate": outputs.gates[-1].mean(-1)} if outputs.gates else {}
