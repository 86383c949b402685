"""A toy captioner that uses every part of the contract: declared inputs, two memories, records in the cache."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_captioners.modeling.inputs_captioning import RegionFeatures
from hf_captioners.modeling.layers_attention import (
    BeamFoldingCrossAttention,
    FeedForward,
    MultiHeadAttention,
    Residual,
    create_region_mask,
)
from hf_captioners.modeling.layers_transformer import CachedSelfAttention, DecoderStep, TransformerTextDecoder
from hf_captioners.modeling.modeling_captioning import (
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningModel,
    CaptioningPreTrainedModel,
)

from .configuration_toy import ToyConfig


@dataclass
class ToyEncoderOutput(CaptioningEncoderOutput):
    """Encoder output with a second memory: `attribute_states` `[B, N, D]` and `attribute_mask` `[B, N]`."""

    attribute_states: Tensor | None = None
    attribute_mask: Tensor | None = None


class ToyPreTrainedModel(CaptioningPreTrainedModel):
    """Base class of the toy models."""

    config: ToyConfig
    _no_split_modules = ["ToyLayer", "VisionBackbone"]
    _supports_flex_attn = False  # its masks have no form for memory slots


def inside(boxes: Tensor | None, views: Tensor | None, features: Tensor) -> Tensor:
    """Return which regions lie inside of which, `[B, R, R]`; regions of different views are not related."""
    if boxes is None:
        return features.new_zeros(*features.shape[:2], features.shape[1])
    low, high = boxes[..., :2], boxes[..., 2:]
    within = (low[:, :, None] >= low[:, None]).all(-1) & (high[:, :, None] <= high[:, None]).all(-1)
    if views is not None:
        within = within & (views[:, :, None] == views[:, None])
    return within.to(features.dtype)


class ToyEncoder(ToyPreTrainedModel, CaptioningEncoder):
    """Regions that read each other, two memory slots and the regions around them, and embedded attributes."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.projection = nn.Linear(config.region_feature_size, config.hidden_size)
        self.related = nn.Linear(config.hidden_size, config.hidden_size)
        self.self_attn = MultiHeadAttention(config, config.hidden_size, config.num_heads, memory_slots=2)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.attributes = nn.Embedding(config.num_attributes + 1, config.hidden_size)  # the last one: no attribute
        self.post_init()

    def encode_regions(
        self,
        regions: RegionFeatures,
        output_attentions: bool,
        output_hidden_states: bool,
        output_gates: bool,
        attribute_ids: Tensor | None = None,
        attribute_mask: Tensor | None = None,
        region_relations: Tensor | None = None,
    ) -> ToyEncoderOutput:
        """Encode regions `[B, R, D_in]`, relations `[B, R, R]` (from boxes if None) and attributes `[B, N]`."""
        projected = self.projection(regions.region_features)
        relations = region_relations
        if relations is None:
            relations = inside(regions.region_boxes, regions.region_views, projected)
        relations = relations.to(projected.dtype)
        if regions.region_mask is not None:
            relations = relations * regions.region_mask[:, None]
        mask = create_region_mask(self.config, projected, projected, regions.region_mask)
        attended, weights = self.self_attn(projected, projected, mask)
        hidden = self.norm(projected + attended + self.related(relations @ projected))
        if attribute_ids is None:
            attribute_ids = torch.full((hidden.shape[0], 1), self.config.num_attributes, device=hidden.device)
        return ToyEncoderOutput(
            last_hidden_state=hidden,
            region_mask=regions.region_mask,
            hidden_states=(projected, hidden) if output_hidden_states else None,
            attentions=(weights,) if output_attentions else None,
            relations=relations if output_gates else None,
            attribute_states=self.attributes(attribute_ids),
            attribute_mask=attribute_mask,
        )


class ToyLayer(GradientCheckpointingLayer):
    """Self-attention, attention over attributes, attention over regions, and a feed-forward layer."""

    def __init__(self, config: ToyConfig, index: int) -> None:
        super().__init__()
        sizes = (config, config.hidden_size, config.num_heads)
        self.self_attn = CachedSelfAttention(*sizes, layer_idx=index)
        # Every attention has an entry of its own in the cache of the image side.
        self.attribute_attn = BeamFoldingCrossAttention(*sizes, layer_idx=2 * index)
        self.region_attn = BeamFoldingCrossAttention(*sizes, layer_idx=2 * index + 1)
        self.feed_forward = FeedForward(config.hidden_size, 2 * config.hidden_size)
        self.residuals = nn.ModuleList([Residual(config.hidden_size, norm_first=True) for _ in range(4)])

    def forward(
        self, hidden: Tensor, attributes: Tensor, regions: Tensor, masks: tuple[Any, Any, Any], cache: Any = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Transform text rows `[B * K, T, D]`; return them and the weights over tokens and regions."""
        branch, self_weights = self.self_attn(self.residuals[0].before(hidden), masks[0], cache)
        hidden = self.residuals[0].after(hidden, branch)
        query = self.residuals[1].before(hidden)
        branch, _ = self.attribute_attn(query, lambda: attributes[:, None], 1, masks[1], cache)
        hidden = self.residuals[1].after(hidden, branch[:, :, 0])
        query = self.residuals[2].before(hidden)
        branch, weights = self.region_attn(query, lambda: regions[:, None], 1, masks[2], cache)
        hidden = self.residuals[2].after(hidden, branch[:, :, 0])
        hidden = self.residuals[3].after(hidden, self.feed_forward(self.residuals[3].before(hidden)))
        return hidden, self_weights, weights


class ToyDecoder(ToyPreTrainedModel, TransformerTextDecoder):
    """A Transformer whose layers add the mean of all tokens so far."""

    memory_names = ("attribute", "region")

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = nn.Embedding(config.max_positions, config.hidden_size)
        self.dropout = nn.Identity()
        self.decoder_layers = nn.ModuleList([ToyLayer(config, index) for index in range(config.num_layers)])
        self.means = nn.ModuleList([nn.Linear(config.hidden_size, config.hidden_size) for _ in self.decoder_layers])
        self.final_norm = nn.LayerNorm(config.hidden_size)
        self.post_init()

    def run_layer(
        self, index: int, hidden: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Any]:
        """Add the running mean of the stream, then run the layer."""
        real = torch.ones_like(hidden[..., :1]) if step.token_mask is None else step.token_mask
        sums = self.running_sums(index, torch.cat((hidden * real, real), dim=-1), step.cache)  # [B * K, T, D + 1]
        hidden = hidden + self.means[index](sums[..., :-1] / sums[..., -1:].clamp(min=1))
        masks = (step.causal_mask, step.memory_masks["attribute"], step.memory_masks["region"])
        attributes, regions = step.encoder_outputs.attribute_states, step.encoder_outputs.last_hidden_state
        hidden, self_weights, weights = self.decoder_layers[index](hidden, attributes, regions, masks, step.cache)
        return hidden, self_weights, weights, None

    def running_sums(self, index: int, entries: Tensor, cache: Any) -> Tensor:
        """Return the sums of `entries` `[B * K, T, D]` over all tokens up to each one; they are kept in the cache."""
        sums = entries.cumsum(1)
        before = None if cache is None else cache.record(index, "sums")
        # An exported program begins with a record of no token, whose sum is 0.
        sums = sums if before is None else sums + before[:, -1:].sum(1, keepdim=True)
        if cache is not None:
            cache.append(index, "sums", sums)
        return sums


class ToyModel(ToyPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = ToyEncoder
    decoder_class = ToyDecoder


class ToyForConditionalGeneration(ToyPreTrainedModel, CaptioningForConditionalGeneration):
    """The toy captioner with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.token_embedding.weight"}
    model_class = ToyModel
