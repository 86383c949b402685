"""VisualGPT (Chen et al., CVPR 2022): a pretrained GPT-2 with gated cross-attention to image regions.

Symbols of the paper: H is the language stream after self-attention (here `stream`), I_k the k-th level of the visual
encoder (`levels`), EncDecAttn(H, I) the cross-attention (`attended`), B^vis and B^lan the gates, tau the threshold.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

from .configuration_visualgpt import VisualGPTConfig
from .inputs_captioning import RegionFeatures
from .layers_attention import AttentionOnAttention
from .layers_gpt2 import (
    GPT2CaptioningForConditionalGeneration,
    GPT2CaptioningPreTrainedModel,
    GPT2CrossAttentionBlock,
    GPT2TextDecoder,
)
from .layers_transformer import (
    DecoderStep,
    LevelGates,
    MultiLevelEncoder,
    RegionEncoderLayer,
    gates_by_level,
    meshed_sum,
)
from .modeling_captioning import CaptioningLMOutput, CaptioningModel


class SRAUGates(NamedTuple):
    """Gates of one decoder layer, each `[B * K, T, N, D]` for N encoder levels.

    Args:
        activation: the sigmoid before thresholding (alpha in the released code).
        language: B^lan, the weight of the language stream, after normalisation if enabled.
        visual: B^vis, the weight of the cross-attention, after normalisation if enabled.
    """

    activation: Tensor
    language: Tensor
    visual: Tensor


class VisualGPTPreTrainedModel(GPT2CaptioningPreTrainedModel):
    """Base class of VisualGPT: layers that `device_map` keeps on one device."""

    config: VisualGPTConfig
    _no_split_modules = ["RegionEncoderLayer", "VisualGPTBlock", "VisionBackbone"]


class VisualGPTEncoder(VisualGPTPreTrainedModel, MultiLevelEncoder):
    """Visual encoder (section 4): a projection of the regions, then K self-attention layers, each giving a level."""

    activation = staticmethod(partial(nn.functional.gelu, approximate="tanh"))

    def post_init(self) -> None:
        """Add the projection of region boxes, then initialise as transformers does."""
        self.box_projection = nn.Linear(5, self.config.hidden_size) if self.config.use_region_boxes else None
        super().post_init()

    def linear(self, regions: RegionFeatures) -> Tensor:
        """Project region features `[B, R, D_in]`, and boxes with `use_region_boxes`, to `[B, R, D]`."""
        projected = super().linear(regions)
        if self.box_projection is not None:
            projected = projected + self.box_projection(boxes_with_area(regions.region_boxes, projected))
        return projected

    @staticmethod
    def make_layer(config: VisualGPTConfig) -> RegionEncoderLayer:
        """Build a post-norm encoder layer, as in the released code (Eq. 1, 3)."""
        sizes = (config.hidden_size, config.encoder_attention_heads, config.encoder_ffn_dim)
        head_widths = (config.encoder_key_dim, config.encoder_value_dim)
        return RegionEncoderLayer(
            config, *sizes, *head_widths, dropout=config.encoder_dropout, reordered=config.identity_map_reordering
        )


def boxes_with_area(boxes: Tensor, like: Tensor) -> Tensor:
    """Append its area to each normalised box: `[B, R, 4]` to `[B, R, 5]`, in the data type of `like`."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    return torch.cat((boxes, area[..., None]), dim=-1).to(like)


def self_resurrecting_gates(sigmoid: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the visual gate `s 1(s > tau)` and the linguistic gate `(1 - s) 1(1 - s > tau)` (Eq. 5).

    The second indicator is `s < 1 - tau` as in the released code, which differs at most by rounding.
    """
    return sigmoid * (sigmoid > threshold), (1 - sigmoid) * (sigmoid < 1 - threshold)


class SRAUFusion(nn.Module):
    """Fusion of hidden states and attended levels by self-resurrecting activation units (Eq. 4-6)."""

    def __init__(self, config: VisualGPTConfig) -> None:
        super().__init__()
        self.threshold = config.srau_threshold
        self.normalize = config.normalize_srau
        self.gate_on = config.gate_on
        learned = config.gate_input == "learned"
        self.gates = LevelGates(config.hidden_size, len(config.cross_levels)) if learned else None

    def compute_gates(self, stream: Tensor, attended: Tensor) -> SRAUGates:
        """Compute the gates `[B, T, N, D]` of Eq. 5, normalised by Eq. 6 with `normalize_srau`."""
        if self.gates is None:
            activation = stream.sigmoid()[:, :, None].expand_as(attended)  # [B, T, N, D], equal for all levels
        else:
            activation = self.gates(stream, attended)
        first, second = self_resurrecting_gates(activation, self.threshold)
        if self.normalize:
            first, second = first / (first + second), second / (first + second)  # tau < 0.5 keeps one open
        language, visual = (first, second) if self.gate_on == "language" else (second, first)
        return SRAUGates(activation, language, visual)

    def forward(self, stream: Tensor, attended: Tensor) -> tuple[Tensor, SRAUGates]:
        """Apply Eq. 4 per level, sum over N levels and divide by sqrt(N) as in the meshed decoder of M2."""
        gates = self.compute_gates(stream, attended)
        mixed = gates.language * stream[:, :, None] + gates.visual * attended  # [B, T, N, D]
        return mixed.sum(2) / math.sqrt(attended.shape[2]), gates


class MeshedFusion(nn.Module):
    """Fusion of Table 5 "+ Meshed": a residual and a sigmoid gate per level (M2, Eq. 7-9)."""

    def __init__(self, config: VisualGPTConfig) -> None:
        super().__init__()
        self.gates = LevelGates(config.hidden_size, len(config.cross_levels))

    def forward(self, stream: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of gated `H + C_k` divided by sqrt(N), `[B, T, D]`, and the gates `[B, T, N, D]`."""
        added = stream[:, :, None] + attended  # [B, T, N, D]
        gates = self.gates(stream, added)
        return meshed_sum(gates, added), gates


class ResidualFusion(nn.Module):
    """Fusion without gates: `H + C`, or `LayerNorm(H + C)` (Eq. 3)."""

    def __init__(self, config: VisualGPTConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.text_config.layer_norm_epsilon
        self.norm = nn.LayerNorm(width, eps=eps) if config.fusion == "add_norm" else None

    def forward(self, stream: Tensor, attended: Tensor) -> tuple[Tensor, None]:
        """Add the attended level `[B, T, 1, D]` to the hidden states `[B, T, D]`; there are no gates."""
        added = stream + attended[:, :, 0]  # [B, T, D]
        return added if self.norm is None else self.norm(added), None


FUSION_CLASSES = {"srau": SRAUFusion, "meshed": MeshedFusion, "residual": ResidualFusion, "add_norm": ResidualFusion}


class VisualGPTBlock(GPT2CrossAttentionBlock):
    """GPT-2 block with cross-attention between self-attention and feed-forward layer (Figure 3)."""

    def __init__(self, config: VisualGPTConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        text, width = config.text_config, config.hidden_size
        self.aoa = AttentionOnAttention(width, config.aoa_dropout) if config.attention_on_attention else None
        self.fusion = FUSION_CLASSES[config.fusion](config)
        self.ln_2 = nn.LayerNorm(width, eps=text.layer_norm_epsilon)
        self.mlp = GPT2MLP(text.n_inner if text.n_inner is not None else 4 * width, text)
        if text.activation_function == "gelu_new":
            self.mlp.act = ACT2FN["gelu_pytorch_tanh"]  # the same function in one operation instead of eight
        if config.residual_dropout_on == "stream":
            self.mlp.dropout.p = 0.0

    def combine(self, stream: Tensor, query: Tensor, attended: Tensor, step: DecoderStep) -> tuple[Tensor, Any]:
        """Fuse EncDecAttn of Eq. 2, `[B * K, T, N, D]`, with the hidden states, then apply the feed-forward layer."""
        if self.aoa is not None:
            attended = self.aoa(query[:, :, None].expand_as(attended), attended)
        stream, gates = self.fusion(stream, attended)
        stream = step.without_hidden(stream)
        stream = self.stream_dropout(stream + self.mlp(self.ln_2(stream)))
        return step.without_hidden(stream), gates


class VisualGPTDecoder(VisualGPTPreTrainedModel, GPT2TextDecoder):
    """GPT-2 decoder with cross-attention to encoder levels; weights have the names of GPT-2.

    `cross_attentions` of its output are `[B * K, N, H, T, R]` per layer; `gates` are `SRAUGates` (or the meshed gates
    `[B * K, T, N, D]`, or None for plain cross-attention) per layer.
    """

    block_class = VisualGPTBlock


class VisualGPTModel(VisualGPTPreTrainedModel, CaptioningModel):
    """Visual encoder and GPT-2 decoder without the head over the vocabulary."""

    encoder_class = VisualGPTEncoder
    decoder_class = VisualGPTDecoder


class VisualGPTForConditionalGeneration(VisualGPTPreTrainedModel, GPT2CaptioningForConditionalGeneration):
    """VisualGPT with the head over the vocabulary, tied to the token embedding."""

    model_class = VisualGPTModel

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return visual and linguistic gates (or meshed gates by level) for each token `[B * K, T]`."""
        last = (outputs.gates or (None,))[-1]
        if isinstance(last, SRAUGates):
            return {"visual gate": last.visual.mean((2, 3)), "language gate": last.language.mean((2, 3))}
        return gates_by_level(last)

    @property
    def has_visual_scores(self) -> bool:
        """True if the fusion has self-resurrecting gates, from which `visual_scores` are computed."""
        return self.config.fusion == "srau"

    @torch.no_grad()
    def visual_scores(self, sequences: Tensor, **images: Any) -> Tensor:
        """Return the visual score of each generated token (section 5.6, Figure 5).

        Args:
            sequences: `[B * K, T]` as `generate()` returns them, begin token first.
            images: `pixel_values`, or `region_features` with mask and boxes, or `encoder_outputs`, of B images.

        Returns:
            `[B * K, T - 1]`: for every token after the first, B^vis of the last layer at the step that generated it,
            averaged over features and encoder levels; in [0, 1]. Entries after the end token are meaningless.

        Raises:
            ValueError: if the fusion has no self-resurrecting gates.
        """
        if not self.has_visual_scores:
            raise ValueError(f"`fusion={self.config.fusion!r}` has no visual gates, expected 'srau'.")
        gates = self(decoder_input_ids=sequences[:, :-1], output_gates=True, **images).gates
        return gates[-1].visual.mean(dim=(2, 3))  # [B * K, T - 1, N, D] to [B * K, T - 1]
