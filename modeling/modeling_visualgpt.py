"""VisualGPT (Chen et al., CVPR 2022): a pretrained GPT-2 with gated cross-attention to image regions.

Symbols of the paper: H is the language stream after self-attention (here `stream`), I_k the k-th level of the visual
encoder (`levels`), EncDecAttn(H, I) the cross-attention (`attended`), B^vis and B^lan the gates, tau the threshold.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, GPT2Model
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from .configuration_visualgpt import VisualGPTConfig
from .layers_attention import AttentionOnAttention, BeamFoldingCrossAttention, MultiHeadAttention
from .layers_transformer import (
    DecoderStep,
    LevelGates,
    RegionEncoderLayer,
    TextDecoder,
    encode_levels,
    meshed_sum,
    visible_regions,
)
from .layers_vision import RegionFeatures
from .modeling_captioning import (
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningModel,
    CaptioningPreTrainedModel,
)

logger = logging.get_logger(__name__)

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


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


class VisualGPTPreTrainedModel(CaptioningPreTrainedModel):
    """Initialisation and split rules of VisualGPT."""

    config: VisualGPTConfig
    _no_split_modules = ["RegionEncoderLayer", "VisualGPTBlock", "VisionBackbone"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the released code: encoder by Xavier, decoder as GPT-2, gates as nn.Linear."""
        super()._init_weights(module)
        if isinstance(module, Conv1D):
            init.normal_(module.weight, std=self.config.text_config.initializer_range)
            init.zeros_(module.bias)
        elif isinstance(module, MultiHeadAttention):
            for projection in (module.q_proj, module.k_proj, module.v_proj, module.o_proj):
                init.xavier_uniform_(projection.weight)
                init.zeros_(projection.bias)
            if isinstance(module, BeamFoldingCrossAttention):  # its output is a Conv1D of GPT-2 in the released code
                init.normal_(module.o_proj.weight, std=self.config.text_config.initializer_range)
        elif isinstance(module, (RegionEncoderLayer, VisualGPTEncoder)):
            for child in module.children():
                if isinstance(child, nn.Linear):
                    init.xavier_uniform_(child.weight)
                    init.zeros_(child.bias)
        elif isinstance(module, (LevelGates, AttentionOnAttention)):
            for child in module.modules():
                if isinstance(child, nn.Linear):
                    bound = 1 / math.sqrt(child.in_features)  # as nn.Linear
                    init.uniform_(child.weight, -bound, bound)
                    init.uniform_(child.bias, -bound, bound)


class VisualGPTEncoder(VisualGPTPreTrainedModel, CaptioningEncoder):
    """Visual encoder (section 4): a projection of the regions and K self-attention layers, all returned."""

    def __init__(self, config: VisualGPTConfig) -> None:
        super().__init__(config)
        self.input_projection = nn.Linear(config.region_feature_size, config.hidden_size)
        self.input_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.box_projection = nn.Linear(5, config.hidden_size) if config.use_region_boxes else None
        self.dropout = nn.Dropout(config.encoder_dropout)
        self.layers = nn.ModuleList([self.make_layer(config) for _ in range(config.encoder_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    def project(self, regions: RegionFeatures) -> Tensor:
        """Project region features `[B, R, D_in]`, and boxes with `use_region_boxes`, to `[B, R, D]`."""
        projected = self.input_projection(regions.region_features)
        if self.box_projection is not None:
            projected = projected + self.box_projection(boxes_with_area(regions.region_boxes, projected))
        return self.input_norm(self.dropout(nn.functional.gelu(projected, approximate="tanh")))

    @staticmethod
    def make_layer(config: VisualGPTConfig) -> RegionEncoderLayer:
        """Return a new layer, post-norm as in the released code (Eq. 1, 3)."""
        return RegionEncoderLayer(
            config,
            config.hidden_size,
            config.encoder_attention_heads,
            config.encoder_ffn_dim,
            config.encoder_key_dim,
            config.encoder_value_dim,
            dropout=config.encoder_dropout,
            reordered=config.identity_map_reordering,
        )

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Encode regions with every layer; return all levels."""
        hidden = self.project(regions)
        visible = visible_regions(self.config, hidden, regions.region_mask)
        return encode_levels(self.config, self.layers, hidden, visible, output_attentions, output_hidden_states)


def boxes_with_area(boxes: Tensor, like: Tensor) -> Tensor:
    """Return normalised boxes `[B, R, 4]` and their areas, `[B, R, 5]`, in the type of `like`."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    return torch.cat((boxes, area[..., None]), dim=-1).to(like)


def self_resurrecting_gates(sigmoid: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return `s 1(s > tau)` and `(1 - s) 1(1 - s > tau)` (Eq. 5); the indicators carry no gradient.

    The second indicator is `s < 1 - tau` as in the released code, which differs at most by rounding.
    """
    return sigmoid * (sigmoid > threshold), (1 - sigmoid) * (sigmoid < 1 - threshold)


class SRAUFusion(nn.Module):
    """Fusion of language stream and attended levels by self-resurrecting activation units (Eq. 4-6)."""

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
        """Add one attended level `[B, T, 1, D]` to the stream `[B, T, D]`; there are no gates."""
        added = stream + attended[:, :, 0]  # [B, T, D]
        return added if self.norm is None else self.norm(added), None


FUSION_CLASSES = {
    "srau": SRAUFusion,
    "meshed": MeshedFusion,
    "residual": ResidualFusion,
    "add_norm": ResidualFusion,
}


class VisualGPTBlock(GradientCheckpointingLayer):
    """GPT-2 block with cross-attention between self-attention and feed-forward layer (Figure 3)."""

    def __init__(self, config: VisualGPTConfig, layer_idx: int) -> None:
        super().__init__()
        text, width = config.text_config, config.hidden_size
        self.num_levels = len(config.cross_levels)
        self.ln_1 = nn.LayerNorm(width, eps=text.layer_norm_epsilon)
        self.attn = GPT2Attention(text, layer_idx=layer_idx)
        self.crossattention = BeamFoldingCrossAttention(
            config, width, text.num_attention_heads, dropout=config.cross_attention_dropout, layer_idx=layer_idx
        )
        self.aoa = AttentionOnAttention(width, config.aoa_dropout) if config.attention_on_attention else None
        self.fusion = FUSION_CLASSES[config.fusion](config)
        self.ln_2 = nn.LayerNorm(width, eps=text.layer_norm_epsilon)
        self.mlp = GPT2MLP(text.n_inner if text.n_inner is not None else 4 * width, text)
        self.stream_dropout = nn.Dropout(0.0)
        if config.residual_dropout_on == "stream":
            # The released code drops the sum of stream and branch, so GPT-2's own dropout of the branches is off.
            self.stream_dropout.p = text.resid_pdrop
            self.attn.resid_dropout.p = self.mlp.dropout.p = 0.0

    def attend(self, stream: Tensor, levels: Tensor, region_mask: Any, cache: Any) -> tuple[Tensor, Tensor | None]:
        """Compute EncDecAttn of Eq. 2 for every level, `[B * K, T, N, D]`, and its weights."""
        # As in the released code, `ln_1` also normalises the query and the levels.
        query = self.ln_1(stream)
        attended, weights = self.crossattention(query, lambda: self.ln_1(levels), self.num_levels, region_mask, cache)
        if self.aoa is not None:
            attended = self.aoa(query[:, :, None].expand_as(attended), attended)  # [B * K, T, N, D]
        return attended, weights

    def forward(
        self, hidden: Tensor, levels: Tensor, step: DecoderStep, past_key_values: Any = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Any]:
        """Run one layer.

        Args:
            hidden: `[B * K, T, D]`.
            levels: `[B, N, R, D]`.
            step: masks of this step.
            past_key_values: cache of text and images.

        Returns:
            The stream `[B * K, T, D]`, self-attention weights, cross-attention weights and gates.
        """
        branch, self_weights = self.attn(
            self.ln_1(hidden), past_key_values=past_key_values, attention_mask=step.causal_mask
        )
        stream = self.stream_dropout(hidden + branch)
        attended, cross_weights = self.attend(stream, levels, step.memory_masks["region"], past_key_values)
        stream, gates = self.fusion(stream, attended)
        stream = step.without_hidden(stream)
        stream = self.stream_dropout(stream + self.mlp(self.ln_2(stream)))
        return step.without_hidden(stream), self_weights, cross_weights, gates


class VisualGPTDecoder(VisualGPTPreTrainedModel, TextDecoder):
    """GPT-2 with cross-attention; parameters have the names of GPT-2.

    `cross_attentions` of its output are `[B * K, N, H, T, R]` per layer; `gates` are `SRAUGates` (or the meshed gates
    `[B * K, T, N, D]`, or None for plain cross-attention) per layer.
    """

    def __init__(self, config: VisualGPTConfig) -> None:
        super().__init__(config)
        text = config.text_config
        text._attn_implementation = config._attn_implementation  # GPT2Attention reads it there
        self.wte = nn.Embedding(text.vocab_size, text.hidden_size)
        self.wpe = nn.Embedding(text.max_position_embeddings, text.hidden_size)
        self.drop = nn.Dropout(text.embd_pdrop)
        self.h = nn.ModuleList([VisualGPTBlock(config, layer_idx=i) for i in range(text.num_hidden_layers)])
        self.ln_f = nn.LayerNorm(text.hidden_size, eps=text.layer_norm_epsilon)
        self.post_init()

    token_embedding = property(lambda self: self.wte)
    position_embedding = property(lambda self: self.wpe)
    decoder_layers = property(lambda self: self.h)
    final_norm = property(lambda self: self.ln_f)
    mask_config = property(lambda self: self.config.text_config)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.wte = value

    def embed(self, input_ids: Tensor, attention_mask: Tensor | None, past_length: Any) -> Tensor:
        """Compute token and position embeddings `[B * K, T, D]` with dropout."""
        return self.drop(super().embed(input_ids, attention_mask, past_length))

    def run_layer(
        self, index: int, hidden: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Any]:
        """Run block `index` on the encoder levels that the configuration names."""
        levels = step.encoder_outputs.level_states[:, self.config.cross_levels]  # [B, N, R, D]
        return self.h[index](hidden, levels, step, step.cache)


class VisualGPTModel(VisualGPTPreTrainedModel, CaptioningModel):
    """Visual encoder and GPT-2 decoder without the head over the vocabulary."""

    def __init__(self, config: VisualGPTConfig) -> None:
        super().__init__(config)
        self.encoder = VisualGPTEncoder(config)
        self.decoder = VisualGPTDecoder(config)
        self.post_init()


class VisualGPTForConditionalGeneration(VisualGPTPreTrainedModel, CaptioningForConditionalGeneration):
    """VisualGPT with the head over the vocabulary, tied to the token embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.wte.weight"}

    def __init__(self, config: VisualGPTConfig) -> None:
        super().__init__(config)
        self.model = VisualGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def has_visual_scores(self) -> bool:
        """Whether the fusion has self-resurrecting gates."""
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

    @classmethod
    def from_pretrained_parts(
        cls,
        language_model: Any,
        vision_model: Any = None,
        tokenizer: Any = None,
        decoder_layers: int | None = None,
        **config_fields: Any,
    ) -> "VisualGPTForConditionalGeneration":
        """Build a captioner from a GPT-2 checkpoint, with a new visual encoder (section 4).

        Args:
            language_model: name or directory of a GPT-2 checkpoint, or a `GPT2Model` or `GPT2LMHeadModel`.
            vision_model: see `load_vision_model`; None for a captioner of region features.
            tokenizer: the captioner's tokenizer (`prepare_gpt2_tokenizer`). The configuration takes its begin, end and
                padding ids. Tokens that the language model does not have get a copy of the end token's embedding.
            decoder_layers: number of first layers of the language model to keep; default: all.
            config_fields: fields of `VisualGPTConfig`.

        Returns:
            The captioner in evaluation mode; newly initialised parts are logged.

        Raises:
            ValueError: if the language model is not a GPT-2, or has fewer layers than `decoder_layers`.
        """
        gpt2 = load_gpt2(language_model)
        vision, fields = cls._vision_part(vision_model, config_fields)
        model = cls(VisualGPTConfig(**(text_fields(gpt2, tokenizer, decoder_layers) | fields)))
        model.load_language_weights(gpt2)
        if vision is not None:
            model.load_vision_weights(vision)
        return model.eval()

    def load_language_weights(self, gpt2: GPT2Model) -> list[str]:
        """Copy a GPT-2 into the decoder.

        Returns:
            Names of the decoder parameters that GPT-2 does not have; they keep their initial values and are logged.

        Raises:
            ValueError: if the sizes differ.
        """
        own = self.model.decoder.state_dict()
        given = {name: weight for name, weight in gpt2.state_dict().items() if name in own}
        added = self.config.vocab_size - gpt2.config.vocab_size
        if added > 0:  # GPT-2 reads its end token between documents, so it suits as a begin token
            end = given["wte.weight"][gpt2.config.eos_token_id]
            given["wte.weight"] = torch.cat((given["wte.weight"], end.expand(added, -1)))
        wrong = [name for name, weight in given.items() if weight.shape != own[name].shape]
        if wrong:
            name = wrong[0]
            raise ValueError(
                f"The language model has different sizes: `{name}` is {list(given[name].shape)}, expected "
                f"{list(own[name].shape)}. Build the captioner with `from_pretrained_parts(language_model=...)`."
            )
        new = sorted(self.model.decoder.load_state_dict(given, strict=False).missing_keys)
        modules = sorted({".".join(name.split(".")[2:-1]) for name in new})
        logger.warning(
            f"{len(given)} tensors of the decoder come from the language model. Newly initialised, to be trained: "
            f"{len(new)} tensors of the decoder ({', '.join(modules)} of each layer) and the visual encoder."
        )
        return new


def load_gpt2(source: Any) -> GPT2Model:
    """Load the GPT-2 trunk of a model, name or directory.

    Raises:
        ValueError: if the model is not a GPT-2.
    """
    if isinstance(source, nn.Module):
        trunk = getattr(source, "transformer", source)
        if isinstance(trunk, GPT2Model):
            return trunk
        raise ValueError(f"`language_model` is a {type(source).__name__}, expected a GPT-2.")
    config = AutoConfig.from_pretrained(source)
    if config.model_type != "gpt2":
        raise ValueError(f"`{source}` holds a {config.model_type!r} model, VisualGPT needs a 'gpt2' language model.")
    return GPT2Model.from_pretrained(source, dtype=torch.float32)


def text_fields(gpt2: GPT2Model, tokenizer: Any, decoder_layers: int | None) -> dict[str, Any]:
    """Return the fields of `VisualGPTConfig` that a language model and the captioner's tokenizer determine.

    Raises:
        ValueError: if the language model has fewer layers than `decoder_layers`.
    """
    found = gpt2.config
    layers = found.n_layer if decoder_layers is None else decoder_layers
    if not 1 <= layers <= found.n_layer:
        raise ValueError(f"`decoder_layers` is {layers}, the language model has {found.n_layer} layers.")
    special = {name: getattr(found if tokenizer is None else tokenizer, name) for name in SPECIAL_IDS}
    if special["pad_token_id"] is None:
        special["pad_token_id"] = special["eos_token_id"]
    dropped = {*SPECIAL_IDS, "architectures", "_name_or_path", "dtype", "transformers_version"}
    text = {key: value for key, value in found.to_dict().items() if key not in dropped}
    text |= {"n_layer": layers, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if tokenizer is not None:
        text["vocab_size"] = max(len(tokenizer), found.vocab_size)
    return special | {"text_config": text}
