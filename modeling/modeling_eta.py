"""Entangled Transformer (Li et al., ICCV 2019, "Entangled Transformer for Image Captioning").

Symbols of the paper: V^N and S^N are the encoded regions and attributes (`regions`, `attributes`), a the text after
self-attention (`text`), g^s and g^v the guidance that one modality gives to the other (`semantic_guidance`,
`visual_guidance`), v and s the attended targets (`visual`, `semantic`), c the gate, e the fused representation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import can_return_tuple, logging

from .configuration_eta import ETAConfig
from .inputs_captioning import RegionFeatures
from .layers_attention import BeamFoldingCrossAttention, FeedForward, MultiHeadAttention, Residual, join_attentions
from .layers_attributes import AttributeNetwork, Attributes, WordScores, noisy_or, top_attributes
from .layers_transformer import (
    CachedSelfAttention,
    DecoderStep,
    PositionTable,
    TransformerEncoderLayer,
    TransformerPreTrainedModel,
    TransformerTextDecoder,
    encode_levels,
    sinusoids,
)
from .modeling_captioning import (
    CaptioningDecoderOutput,
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningLMOutput,
    CaptioningModel,
    CaptioningModelOutput,
)

logger = logging.get_logger(__name__)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda states: states,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
# Words of a detector that a tokenizer must know at least.
KNOWN_WORDS = 0.5


@dataclass
class ETAEncoderOutput(CaptioningEncoderOutput):
    """Encoder output of B images with R regions and N attributes.

    Args:
        attribute_states: `[B, N, D]`, S^N.
        attribute_mask: `[B, N]`, True = an attribute; an image may have none.
        attribute_ids: `[B, N]`, words of the vocabulary.
        attribute_probabilities: `[B, N]`, of detected attributes; None if they were given.
        attribute_attentions: tuple of `[B, H, N, N]`, one per layer of the attribute encoder.
    """

    attribute_states: Tensor | None = None
    attribute_mask: Tensor | None = None
    attribute_ids: Tensor | None = None
    attribute_probabilities: Tensor | None = None
    attribute_attentions: tuple[Tensor, ...] | None = None


@dataclass
class ETADecoderOutput(CaptioningDecoderOutput):
    """Decoder output with the attention weights to regions and to attributes of each layer.

    P is the number of attentions of a layer to regions, or to attributes: first that of the guidance, then that of the
    target. `cross_attentions` are `[B * K, P, H, T, R]` per layer, None with `fusion="semantic_only"`; `gates` are the
    gate c `[B * K, T, D]` per layer, the share of the visual target.

    Args:
        attribute_attentions: tuple of `[B * K, P, H, T, N]`, one per layer; 0 for an image without attributes.
    """

    attribute_attentions: tuple[Tensor, ...] | None = None


@dataclass
class ETAModelOutput(CaptioningModelOutput):
    """Outputs of encoder and decoder, with the fields of `ETADecoderOutput`."""

    attribute_attentions: tuple[Tensor, ...] | None = None


@dataclass
class ETALMOutput(CaptioningLMOutput):
    """Outputs with logits and loss, with the fields of `ETADecoderOutput`."""

    attribute_attentions: tuple[Tensor, ...] | None = None


class AttributeMaps(NamedTuple):
    """Attributes of B images, and how much each generated token of B x K captions attends to them.

    Args:
        ids: `[B, N]`, words of the vocabulary.
        mask: `[B, N]`, True = an attribute.
        weights: `[B * K, T - 1, N]`.
    """

    ids: Tensor
    mask: Tensor
    weights: Tensor


class ETAPreTrainedModel(TransformerPreTrainedModel):
    """Base class of the Entangled Transformer: initialisation, and layers that `device_map` keeps on one device."""

    config: ETAConfig
    _no_split_modules = ["TransformerEncoderLayer", "ETALayer", "VisionBackbone"]
    model_output_class = ETAModelOutput
    lm_output_class = ETALMOutput

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the Transformer does; also biases of the attribute detector and the ids of its words."""
        super()._init_weights(module)
        if isinstance(module, WordScores):
            init.constant_(module.bias, module.initial_bias)
        elif isinstance(module, ETAEncoder) and module.token_ids is not None:
            init.copy_(module.token_ids, torch.tensor(self.config.attribute_token_ids))

    def _init_words(self, weight: Tensor) -> None:
        """Initialise word embeddings with deviation 1 / sqrt(d), as the Transformer."""
        init.normal_(weight, std=self.config.hidden_size**-0.5)


def embedding_scale(config: ETAConfig) -> float:
    """Return the factor by which word embeddings are multiplied."""
    return math.sqrt(config.hidden_size) if config.scale_embedding else 1.0


class ETAEncoder(ETAPreTrainedModel, CaptioningEncoder):
    """Dual-way encoder (section 4.1): self-attention over regions, and separately over attributes.

    Args:
        config: the configuration.
        embed_words: returns the embeddings `[B, N, D]` of words `[B, N]`: those of the decoder, whose table the
            attributes share; None: the encoder has a table of its own.
    """

    def __init__(self, config: ETAConfig, embed_words: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(config)
        self.embed_words = self.embed_own_words if embed_words is None else embed_words
        self.dropout = nn.Dropout(config.dropout)
        self.region_projection = (
            nn.Linear(config.region_feature_size, config.hidden_size) if config.reads_regions else None
        )
        self.region_layers = self.make_layers(config.reads_regions)
        self.attribute_layers = self.make_layers(config.reads_attributes)
        has_detector = config.detector_config is not None and config.reads_attributes
        self.detector = AttributeNetwork(config.detector_config).requires_grad_(False) if has_detector else None
        tokens = torch.tensor(config.attribute_token_ids) if has_detector else None
        self.register_buffer("token_ids", tokens, persistent=False)
        own_table = embed_words is None and config.reads_attributes
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size) if own_table else None
        self.gradient_checkpointing = False
        self.post_init()

    def make_layers(self, needed: bool) -> nn.ModuleList:
        """Build the N encoder layers of regions or attributes; none if these are not encoded or not read."""
        config = self.config
        number = config.encoder_layers if needed and config.use_encoder else 0
        return nn.ModuleList([self.make_layer(config) for _ in range(number)])

    @staticmethod
    def make_layer(config: ETAConfig) -> TransformerEncoderLayer:
        """Build a post-norm encoder layer."""
        width, rate = config.hidden_size, config.dropout
        attention = MultiHeadAttention(config, width, config.num_attention_heads, dropout=rate)
        return TransformerEncoderLayer(
            attention, FeedForward(width, config.ffn_dim), partial(Residual, width, dropout=rate)
        )

    def embed_own_words(self, ids: Tensor) -> Tensor:
        """Return scaled embeddings `[B, N, D]` of words `[B, N]` from the encoder's own embedding table."""
        return self.token_embedding(ids) * embedding_scale(self.config)

    def train(self, mode: bool = True) -> "ETAEncoder":
        """Set training mode; the attribute detector is frozen and stays in evaluation mode."""
        super().train(mode)
        if self.detector is not None:
            self.detector.eval()
        return self

    @torch.no_grad()
    def detect_attributes(self, regions: RegionFeatures) -> Attributes:
        """Detect the most probable attributes of images, as ids of the vocabulary.

        Args:
            regions: B images with regions `[B, R, D_in]`.

        Raises:
            ValueError: there is no detector.
        """
        if self.detector is None:
            raise ValueError(
                f"This captioner reads attributes (`fusion={self.config.fusion!r}`) and has no detector: pass "
                "`attribute_ids` [images, attributes] (of a processor: attributes=[['dog', 'grass']]), or build it "
                "with `from_pretrained_parts(attribute_detector=...)`."
            )
        assert regions.region_features is not None
        presence = noisy_or(self.detector(regions.region_features), regions.region_mask)
        probabilities = presence.probabilities.masked_fill(self.token_ids < 0, -1.0)
        attributes = top_attributes(probabilities, self.config.num_attributes, self.config.attribute_threshold)
        return attributes._replace(ids=self.token_ids[attributes.ids].clamp(min=0))

    def given_attributes(self, ids: Tensor, mask: Tensor | None) -> Attributes:
        """Check attribute ids that a caller passed.

        Args:
            ids: `[B, N]`, words of the vocabulary.
            mask: `[B, N]`, True = an attribute; None: all are.

        Raises:
            ValueError: an id is no word of the vocabulary.
        """
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if not torch.compiler.is_compiling():  # a compiled graph cannot branch on values
            wrong = ids[mask & ((ids < 0) | (ids >= self.config.vocab_size))]
            if len(wrong):
                raise ValueError(
                    f"`attribute_ids` has {int(wrong[0])}, expected ids of words below {self.config.vocab_size} "
                    "(`config.vocab_size`). Convert words with the captioner's own processor: "
                    "processor(images=..., attributes=[['dog', 'grass']])."
                )
        return Attributes(ids.masked_fill(~mask, 0), mask, mask.float())

    def with_positions(self, states: Tensor) -> Tensor:
        """Add sinusoidal positions to `[B, N, D]` with `encoder_positions`, then apply dropout."""
        if self.config.encoder_positions:
            states = states + sinusoids(*states.shape[1:]).to(states)
        return self.dropout(states)

    def encode_attributes(self, attributes: Attributes, recorded: bool) -> Any:
        """Encode attributes to S^N (Eq. 5); an image without attributes gets states that nothing attends to."""
        states = self.with_positions(self.embed_words(attributes.ids))
        return encode_levels(
            self.config, self.attribute_layers, states, unhide_empty_rows(attributes.mask), recorded, True
        )

    def encode_regions(
        self,
        regions: RegionFeatures,
        output_attentions: bool,
        output_hidden_states: bool,
        output_gates: bool,
        attribute_ids: Tensor | None = None,
        attribute_mask: Tensor | None = None,
    ) -> ETAEncoderOutput:
        """Encode regions `[B, R, D_in]`, and attributes: `attribute_ids`, or those detected in the regions.

        Args:
            attribute_ids: `[B, N]`, words of the vocabulary.
            attribute_mask: `[B, N]`, True = an attribute.

        Raises:
            ValueError: attributes are missing, or are no words of the vocabulary.
        """
        attribute_outputs: dict[str, Any] = {}
        if self.config.reads_attributes:
            if attribute_ids is None:
                attributes = self.detect_attributes(regions)
                attribute_outputs["attribute_probabilities"] = attributes.probabilities
            else:
                attributes = self.given_attributes(attribute_ids, attribute_mask)
            main = self.encode_attributes(attributes, output_attentions)
            attribute_outputs |= {"attribute_states": main.last_hidden_state, "attribute_mask": attributes.mask}
            attribute_outputs |= {"attribute_ids": attributes.ids}
            attribute_outputs |= {"attribute_attentions": main.attentions} if output_attentions else {}
        elif attribute_ids is not None:
            logger.warning_once("`attribute_ids` were given, but `fusion='visual_only'` reads no attributes.")
        if self.config.reads_regions:
            projected = self.with_positions(self.region_projection(regions.region_features))
            main = encode_levels(
                self.config, self.region_layers, projected, regions.region_mask, output_attentions, True
            )
        # The last hidden state has one row per image, so it holds the attributes where no regions are read.
        return ETAEncoderOutput(
            last_hidden_state=main.last_hidden_state,
            region_mask=regions.region_mask if self.config.reads_regions else None,
            hidden_states=main.hidden_states if output_hidden_states else None,
            attentions=main.attentions if output_attentions else None,
            **attribute_outputs,
        )


def unhide_empty_rows(mask: Tensor | None) -> Tensor | None:
    """Return a mask `[B, N]` whose fully hidden rows are made visible, so that their softmax is defined."""
    return None if mask is None else mask | ~mask.any(1, keepdim=True)


class ETAAttention(BeamFoldingCrossAttention):
    """Cross-attention to regions or attributes with its residual connection and norm (Eq. 9, 10).

    The attended vector of an image without regions or attributes is 0.
    """

    def __init__(self, config: ETAConfig, layer_idx: int) -> None:
        super().__init__(
            config, config.hidden_size, config.num_attention_heads, dropout=config.dropout, layer_idx=layer_idx
        )
        self.residual = Residual(config.hidden_size, dropout=config.dropout)

    def project_levels(self, levels: Any) -> tuple[Tensor, Tensor]:
        """Compute keys and values `[B, H, N, d]` of encoder states `[B, N, D]` with mask `[B, N]`."""
        states, mask = levels
        keys, values = super().project_levels(states[:, None])
        return keys, values if mask is None else values * mask[:, None, :, None]

    def forward(  # type: ignore[override]
        self, text: Tensor, states: Tensor, mask: Tensor | None, attention_mask: Any, cache: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from text `[B * K, T, D]` to the encoder states of regions or attributes.

        Args:
            states: `[B, N, D]`.
            mask: `[B, N]`, True = visible; None: all.
            attention_mask: the mask in the form of the attention implementation.
            cache: a `CaptionCache`, or None.

        Returns:
            `[B * K, T, D]`, and the weights `[B * K, 1, H, T, N]` or None.
        """
        attended, weights = super().forward(text, lambda: (states, mask), 1, attention_mask, cache)
        return self.residual.after(text, attended[:, :, 0]), weights


class BilateralController(nn.Module):
    """Gated bilateral controller: a gate per feature mixes visual and semantic targets (Eq. 11, 12)."""

    def __init__(self, config: ETAConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(3 * config.hidden_size, config.hidden_size)
        self.activation = config.gbc_activation

    def forward(
        self, semantic_guidance: Tensor, visual_guidance: Tensor, text: Tensor, visual: Tensor, semantic: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mixed targets e and the gate c, both `[B * K, T, D]`."""
        activate = ACTIVATIONS[self.activation]
        gate = self.gate(torch.cat((semantic_guidance, visual_guidance, text), dim=-1)).sigmoid()  # Eq. 11
        return activate(visual) * gate + activate(semantic) * (1 - gate), gate  # Eq. 12


class AttentionRole(NamedTuple):
    """Modality and role of a cross-attention in a decoder layer.

    Args:
        modality: `"visual"`: the regions; `"semantic"`: the attributes.
        role: `"guidance"`: its query is the text; `"target"`: its query is the guidance of the other modality.
    """

    modality: str
    role: str

    @property
    def name(self) -> str:
        """Name of the submodule of a decoder layer that computes this attention."""
        return f"{self.modality}_{self.role}"


SEMANTIC_GUIDANCE, VISUAL_TARGET = AttentionRole("semantic", "guidance"), AttentionRole("visual", "target")
VISUAL_GUIDANCE, SEMANTIC_TARGET = AttentionRole("visual", "guidance"), AttentionRole("semantic", "target")
# The guidance that the target of a modality is sought with: that of the other one.
GUIDES = {VISUAL_TARGET: SEMANTIC_GUIDANCE, SEMANTIC_TARGET: VISUAL_GUIDANCE}
# The attentions of a decoder layer by fusion, in the order of the paper. Single modalities and `"parallel"` have no
# targets.
ATTENTIONS = {
    "entangled": (SEMANTIC_GUIDANCE, VISUAL_TARGET, VISUAL_GUIDANCE, SEMANTIC_TARGET),
    "parallel": (SEMANTIC_GUIDANCE, VISUAL_GUIDANCE),
    "stacked_v": (SEMANTIC_GUIDANCE, VISUAL_TARGET),
    "stacked_s": (VISUAL_GUIDANCE, SEMANTIC_TARGET),
    "visual_only": (VISUAL_GUIDANCE,),
    "semantic_only": (SEMANTIC_GUIDANCE,),
}


class ModalityWeights(NamedTuple):
    """Attention weights of a decoder layer, `[B * K, P, H, T, N]` over regions and over attributes.

    None where a modality is not read, or the attention implementation computes no weights.
    """

    visual: Tensor | None
    semantic: Tensor | None


class ETALayer(GradientCheckpointingLayer):
    """Decoder block (section 4.2, Figure 2): self-attention, entangled attention, controller, feed-forward layer."""

    def __init__(self, config: ETAConfig, index: int) -> None:
        super().__init__()
        width, rate = config.hidden_size, config.dropout
        self.roles = ATTENTIONS[config.fusion]
        self.self_attn = CachedSelfAttention(config, width, config.num_attention_heads, dropout=rate, layer_idx=index)
        self.self_attn_residual = Residual(width, dropout=rate)
        # Every attention has an entry of its own in the cache of the image side.
        first = index * len(self.roles)
        self.attentions = nn.ModuleDict(
            {role.name: ETAAttention(config, first + number) for number, role in enumerate(self.roles)}
        )
        self.controller = BilateralController(config) if config.fusion in ("entangled", "parallel") else None
        self.controller_norm = nn.LayerNorm(width) if config.gbc_residual else None
        self.feed_forward = FeedForward(width, config.ffn_dim)
        self.feed_forward_residual = Residual(width, dropout=rate)

    def fuse(self, text: Tensor, attended: dict[AttentionRole, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the fused vector e of the attended vectors, and the gate (None without a controller)."""
        if self.controller is None:
            return attended[self.roles[-1]], None
        semantic_guidance, visual_guidance = attended[SEMANTIC_GUIDANCE], attended[VISUAL_GUIDANCE]
        visual = attended.get(VISUAL_TARGET, visual_guidance)
        semantic = attended.get(SEMANTIC_TARGET, semantic_guidance)
        return self.controller(semantic_guidance, visual_guidance, text, visual, semantic)

    def forward(
        self,
        hidden: Tensor,
        regions: Tensor | None,
        attributes: Tensor | None,
        masks: dict[str, tuple[Tensor | None, Any]],
        causal_mask: Any,
        cache: Any = None,
    ) -> tuple[Tensor | None, ...]:
        """Run the decoder block.

        Args:
            hidden: `[B * K, T, D]`.
            regions: V^N `[B, R, D]`; None where it is not read.
            attributes: S^N `[B, N, D]`; None where it is not read.
            masks: by modality: mask `[B, N]` and the mask in the form of the attention implementation.
            causal_mask: of self-attention.
            cache: a `CaptionCache`, or None.

        Returns:
            The stream, weights of self-attention, the gate, and the weights of every attention in order, in one flat
            tuple, which gradient checkpointing requires.
        """
        branch, self_weights = self.self_attn(hidden, causal_mask, cache)
        text = self.self_attn_residual.after(hidden, branch)  # a, Eq. 7
        states = {"visual": regions, "semantic": attributes}
        attended: dict[AttentionRole, Tensor] = {}
        weights = []
        for role in self.roles:
            query = attended[GUIDES[role]] if role in GUIDES else text
            attended[role], recorded = self.attentions[role.name](
                query, states[role.modality], *masks[role.modality], cache
            )
            weights.append(recorded)
        fused, gate = self.fuse(text, attended)
        if self.controller_norm is not None:
            fused = self.controller_norm(text + fused)
        hidden = self.feed_forward_residual.after(fused, self.feed_forward(fused))
        return hidden, self_weights, gate, *weights


class ETADecoder(ETAPreTrainedModel, TransformerTextDecoder):
    """Decoder of entangled blocks over regions and attributes; for its outputs see `ETADecoderOutput`."""

    memory_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: ETAConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = PositionTable(config.max_position_embeddings, config.hidden_size)
        self.embedding_scale = embedding_scale(config)
        self.dropout = nn.Dropout(config.dropout)
        self.decoder_layers = nn.ModuleList([ETALayer(config, index) for index in range(config.decoder_layers)])
        self.final_norm = nn.Identity()
        self.memory_names = tuple(  # type: ignore[misc]
            name
            for name, is_read in (("region", config.reads_regions), ("attribute", config.reads_attributes))
            if is_read
        )
        self.post_init()

    def memory_mask(self, hidden: Tensor, states: Tensor, mask: Tensor | None) -> Any:
        """Return the cross-attention mask of encoder states; rows that are fully hidden become visible."""
        return super().memory_mask(hidden, states, unhide_empty_rows(mask))

    def run_layer(
        self, index: int, hidden: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor | None, ModalityWeights, Any]:  # type: ignore[override]
        """Run decoder block `index`, and join the weights of its attentions by modality."""
        states: dict[str, Tensor | None] = {"visual": None, "semantic": None}
        masks: dict[str, tuple[Tensor | None, Any]] = {}
        for name in self.memory_names:
            modality = "visual" if name == "region" else "semantic"
            states[modality], mask = step.encoder_outputs.memory(name)
            masks[modality] = mask, step.memory_masks[name]
        layer = self.decoder_layers[index]
        hidden, self_weights, gate, *weights = layer(
            hidden, states["visual"], states["semantic"], masks, step.causal_mask, step.cache
        )
        recorded: dict[str, list[Tensor]] = {"visual": [], "semantic": []}
        for role, of_role in zip(layer.roles, weights, strict=True):
            recorded[role.modality] += [] if of_role is None else [of_role]
        joined = {name: join_attentions(parts, masks[name][0]) if parts else None for name, parts in recorded.items()}
        return hidden, self_weights, ModalityWeights(**joined), gate

    @can_return_tuple
    def forward(self, *args: Any, output_attentions: bool = False, **kwargs: Any) -> ETADecoderOutput:
        """Decode text rows `[B * K, T]`, see `TransformerTextDecoder.forward`."""
        outputs = super().forward(*args, output_attentions=output_attentions, return_dict=True, **kwargs)
        recorded = dict(outputs.items())
        if output_attentions:
            over_regions, over_attributes = zip(*recorded.pop("cross_attentions"), strict=True)
            if self.config.reads_regions:
                recorded["cross_attentions"] = over_regions
            if self.config.reads_attributes and None not in over_attributes:
                recorded["attribute_attentions"] = over_attributes
        if self.decoder_layers[0].controller is None:
            recorded.pop("gates", None)
        return ETADecoderOutput(**recorded)


class ETAModel(ETAPreTrainedModel, CaptioningModel):
    """Dual-way encoder and decoder without the head over the vocabulary."""

    encoder_class = ETAEncoder
    decoder_class = ETADecoder

    def make_encoder(self, config: ETAConfig) -> ETAEncoder:
        """Build the encoder, which embeds attributes with the decoder's word embeddings."""
        return ETAEncoder(config, self.embed_words)

    def embed_words(self, ids: Tensor) -> Tensor:
        """Return scaled word embeddings `[B, N, D]` of ids `[B, N]`."""
        return self.get_input_embeddings()(ids) * self.decoder.embedding_scale


class ETAForConditionalGeneration(ETAPreTrainedModel, CaptioningForConditionalGeneration):
    """Entangled Transformer with the head over the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.token_embedding.weight"}
    model_class = ETAModel
    head_bias = True

    @property
    def has_visual_scores(self) -> bool:
        """True if the fusion has a gate, from which `visual_scores` are computed."""
        return self.config.fusion in ("entangled", "parallel")

    @torch.no_grad()
    def visual_scores(self, sequences: Tensor, **images: Any) -> Tensor:
        """Return the visual share of each generated token: the gate c of the last block, averaged over features.

        Args:
            sequences: `[B * K, T]` as `generate()` returns them, begin token first.
            images: `pixel_values`, or `region_features` with their mask, or `encoder_outputs`, of B images.

        Returns:
            `[B * K, T - 1]`, in [0, 1]. Entries after the end token are meaningless.

        Raises:
            ValueError: if the fusion has no gate.
        """
        if not self.has_visual_scores:
            raise ValueError(f"`fusion={self.config.fusion!r}` has no gate, expected 'entangled' or 'parallel'.")
        gates = self(decoder_input_ids=sequences[:, :-1], output_gates=True, **images).gates
        return gates[-1].mean(-1)  # [B * K, T - 1, D] to [B * K, T - 1]

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the gate c (Eq. 11), the share of regions against attributes, for each token `[B * K, T]`."""
        return {"share of the regions": outputs.gates[-1].mean(-1)} if self.has_visual_scores and outputs.gates else {}

    def last_attention(self, outputs: CaptioningLMOutput) -> Tensor | None:
        """Return the weights `[B * K, P, H, T, R]` of the last block's attentions to regions.

        Raises:
            ValueError: the fusion attends to no regions.
        """
        if not self.config.reads_regions:
            raise ValueError(
                "`fusion='semantic_only'` attends to no regions; `attribute_maps` returns its weights of attributes."
            )
        return super().last_attention(outputs)

    @torch.no_grad()
    def attribute_maps(self, sequences: Tensor, **images: Any) -> AttributeMaps:
        """Return the attributes of images, and the last block's attention to each of them for each generated token.

        Args:
            sequences: `[B * K, T]` as `generate()` returns them, begin token first.
            images: `pixel_values`, or `region_features` with their mask, with `attribute_ids` and their mask or
                without, or `encoder_outputs`, of B images.

        Returns:
            Attributes, and weights averaged over heads and attentions. Entries after the end token are meaningless.

        Raises:
            ValueError: the fusion reads no attributes, or the attention implementation computes no weights.
        """
        if not self.config.reads_attributes:
            raise ValueError("`fusion='visual_only'` reads no attributes.")
        encoded = images.pop("encoder_outputs", None) or self.get_encoder()(**images)
        outputs = self(decoder_input_ids=sequences[:, :-1], encoder_outputs=encoded, output_attentions=True)
        if outputs.attribute_attentions is None:
            raise ValueError(
                f"{self.config._attn_implementation!r} attention computes no weights; call "
                '`model.set_attn_implementation("eager")` first.'
            )
        weights = outputs.attribute_attentions[-1].mean((1, 2))  # [B * K, P, H, T - 1, N] to [B * K, T - 1, N]
        return AttributeMaps(encoded.attribute_ids, encoded.attribute_mask, weights)

    @classmethod
    def from_pretrained_parts(
        cls, vision_model: Any = None, tokenizer: Any = None, attribute_detector: Any = None, **config_fields: Any
    ) -> "ETAForConditionalGeneration":
        """Build a new captioner with a pretrained vision model and a trained attribute detector.

        Args:
            vision_model, tokenizer, config_fields: see `CaptioningForConditionalGeneration.from_pretrained_parts`.
            attribute_detector: an `AttributeDetectorModel`, or its name or directory; None: attributes have to be
                given. It must read the regions that the captioner reads. Its words that the tokenizer does not know
                are never attributes; their number is logged.

        Raises:
            ValueError: the detector reads other features, or the tokenizer knows too few of its words.
        """
        if attribute_detector is None:
            return super().from_pretrained_parts(vision_model=vision_model, tokenizer=tokenizer, **config_fields)
        detector = load_detector(attribute_detector)
        fields = config_fields | detector_fields(detector.config, tokenizer)
        model = super().from_pretrained_parts(vision_model=vision_model, tokenizer=tokenizer, **fields)
        check_features(model.config, detector.config)
        if model.model.encoder.detector is not None:
            model.model.encoder.detector.load_state_dict(detector.network.state_dict())
        return model


def load_detector(source: Any) -> Any:
    """Load an attribute detector by name or directory; a loaded one is returned as it is.

    Raises:
        ValueError: it is another kind of model.
    """
    detector = source if isinstance(source, nn.Module) else AutoModel.from_pretrained(source)
    model_type = detector.config.model_type
    if model_type != "captioning_attribute_detector":
        raise ValueError(
            f"`attribute_detector` is a {model_type!r} model, expected a 'captioning_attribute_detector': train one "
            "with `hf-captioners attributes train`."
        )
    return detector


def detector_fields(detector_config: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the fields of `ETAConfig` that an attribute detector and a tokenizer determine.

    Raises:
        ValueError: there is no tokenizer, or it knows too few words of the detector.
    """
    words = detector_config.words
    if tokenizer is None:
        raise ValueError("`attribute_detector` needs `tokenizer`, which says what the detector's words are.")
    token_ids, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
    tokens = [token_ids[word] if word in token_ids and word not in special else -1 for word in words]
    dropped = [word for word, token in zip(words, tokens, strict=True) if token < 0]
    if len(dropped) > (1 - KNOWN_WORDS) * len(words):
        raise ValueError(
            f"The vocabulary lacks {len(dropped)} of the {len(words)} words of the attribute detector "
            f"({', '.join(dropped[:5])} ...): it has another vocabulary. Train a detector on the captions of this "
            "captioner: `hf-captioners attributes train`."
        )
    if dropped:
        logger.warning(
            f"{len(dropped)} of {len(words)} words of the attribute detector are not in the vocabulary and are never "
            f"attributes: {', '.join(dropped[:5])}."
        )
    detector_values = {**detector_config.to_dict(), "vision_config": None}
    return {"detector_config": detector_values, "attribute_token_ids": tokens}


def check_features(config: Any, detector_config: Any) -> None:
    """Raise a `ValueError` if captioner and attribute detector read features of different extractors or widths."""
    for field, what in (("region_feature_size", "features per region"), ("region_extractor", "extractor")):
        ours, theirs = getattr(config, field), getattr(detector_config, field)
        if ours is not None and theirs is not None and ours != theirs:
            raise ValueError(
                f"The attribute detector reads other regions than the captioner: {what} {theirs} and {ours} "
                f"(`{field}`). Train a detector on the captioner's regions: `hf-captioners attributes train`."
            )
