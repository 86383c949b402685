"""Image Transformer (He et al., ACCV 2020): a graph of boxes in the encoder, parallel attentions in an LSTM decoder.

Symbols of the paper: A are the regions, Omega_i the adjacency matrix of the relation i (parent p, neighbour n, child
c), h_t and m_t state and memory of the LSTM, c_t the context, M the number of sub-transformers in the decoder.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .configuration_image_transformer import RELATION_NUMBERS, ImageTransformerConfig
from .inputs_captioning import RegionFeatures
from .layers_attention import AttentionOnAttention, MultiHeadAttention, create_region_mask
from .layers_recurrent import (
    AttendedContext,
    AttentionLSTMDecoder,
    AttentionLSTMLayer,
    AttentionLSTMPreTrainedModel,
    LSTMState,
    RefiningEncoder,
    RefiningLayer,
    RefiningStep,
)
from .layers_region_attention import DotRegionAttention, PreparedDotAttention
from .layers_regions import RegionProjection, UnbiasedLayerNorm
from .modeling_captioning import (
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningLMOutput,
    CaptioningModel,
)

CHILD_NUMBER, NEIGHBOUR_NUMBER, PARENT_NUMBER = RELATION_NUMBERS.values()


@torch.no_grad()
def relations_of_boxes(boxes: Tensor, threshold: float = 0.9, overlap: str = "clamped") -> Tensor:
    """Compute the spatial relation of each pair of regions from their boxes: parent, neighbour or child (Eq. 5).

    Region m is the parent of region l if the share of l that lies in m is at least `threshold`, and larger than the
    share of m that lies in l. Boxes without an area are neighbours of all.

    Args:
        boxes: `[..., R, 4]`, x1, y1, x2, y2 in one unit; float32.
        threshold: epsilon.
        overlap: `"clamped"` or `"released"`, see `ImageTransformerConfig.overlap_rule`.

    Returns:
        `[..., R, R]` int64: what the column's region is of the row's, 1 = child, 2 = neighbour, 3 = parent.
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    extent = torch.minimum(high[..., :, None, :], high[..., None, :, :]) - torch.maximum(
        low[..., :, None, :], low[..., None, :, :]
    )  # [..., R, R, 2]
    if overlap == "clamped":
        extent = extent.clamp(min=0)
    shared = extent.prod(-1)  # [..., R, R]
    area = (high - low).prod(-1)  # [..., R]
    # No area: 0 / 0 is no share. Under the released rule x / 0 is infinite, as in the authors' script.
    of_row, of_column = ((shared / areas).nan_to_num(nan=0.0) for areas in (area[..., :, None], area[..., None, :]))
    relations = torch.full_like(shared, NEIGHBOUR_NUMBER, dtype=torch.long)
    near = (of_row >= threshold) | (of_column >= threshold)
    relations = relations.masked_fill(near & (of_row > of_column), PARENT_NUMBER)
    relations = relations.masked_fill(near & (of_row < of_column), CHILD_NUMBER)
    alone = torch.eye(boxes.shape[-2], dtype=torch.bool, device=boxes.device)
    return relations.masked_fill(alone, NEIGHBOUR_NUMBER)


def visible_relations(relations: Tensor, mask: Tensor | None, views: Tensor | None) -> Tensor:
    """Set relations `[B, R, R]` to 0 if a region is hidden or the regions are in different views.

    Args:
        relations: `[B, R, R]`, see `relations_of_boxes`.
        mask: `[B, R]`, True = visible.
        views: `[B, R]`, the view that each region is in.
    """
    if mask is not None:
        relations = relations.masked_fill(~(mask[:, :, None] & mask[:, None]), 0)
    if views is not None:
        relations = relations.masked_fill(views[:, :, None] != views[:, None], 0)
    return relations


class ImageTransformerPreTrainedModel(AttentionLSTMPreTrainedModel):
    """Base class of Image Transformer."""

    config: ImageTransformerConfig
    _no_split_modules = ["ImageTransformerLayer", "AttentionLSTMLayer", "VisionBackbone"]


class SpatialSubTransformers(nn.Module):
    """Self-attention over regions with one sub-transformer for each relation; queries are shared (Eq. 6 and 7).

    No fused kernel can weigh all regions and then read some of them, so the weights are always computed.

    Args:
        config: sizes, relations and `relation_weights`.
    """

    def __init__(self, config: ImageTransformerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.num_heads = config.num_heads
        self.scaling = (width // config.num_heads) ** -0.5
        self.rule = config.relation_weights
        self.relations = config.spatial_relations
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.ModuleDict({name: nn.Linear(width, width) for name in self.relations})
        self.v_proj = nn.ModuleDict({name: nn.Linear(width, width) for name in self.relations})
        self.dropout = nn.Dropout(config.encoder_dropout)

    def split_heads(self, states: Tensor) -> Tensor:
        """Split heads: `[B, R, D]` to `[B, H, R, d]`."""
        return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def adjacency(self, relations: Tensor) -> Tensor:
        """Return the adjacency matrices Omega_i `[B, S, 1, R, R]` of the S relations; others count as neighbours.

        Args:
            relations: `[B, R, R]`.
        """
        missing = [number for name, number in RELATION_NUMBERS.items() if name not in self.relations]
        for number in missing:
            relations = relations.masked_fill(relations == number, NEIGHBOUR_NUMBER)
        return torch.stack([relations == RELATION_NUMBERS[name] for name in self.relations], dim=1)[:, :, None]

    def forward(
        self, queries: Tensor, key_value_states: Tensor, mask: Tensor | None, relations: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attend from regions `[B, R, D]` to the regions that they are related to.

        Args:
            queries, key_value_states: the regions.
            mask: `[B, R]`, True = visible.
            relations: `[B, R, R]`; not read by the rule `"mean"`.

        Returns:
            The sum of the sub-transformers (the mean under that rule) `[B, R, D]`, and the weights `[B, S, H, R, R]`
            of the S relations before they are cut to the related regions.
        """
        query = self.split_heads(self.q_proj(queries))[:, None]  # [B, 1, H, R, d]
        key = torch.stack([self.split_heads(self.k_proj[name](key_value_states)) for name in self.relations], dim=1)
        value = torch.stack([self.split_heads(self.v_proj[name](key_value_states)) for name in self.relations], dim=1)
        scores = query @ key.transpose(-1, -2) * self.scaling  # [B, S, H, R, R]
        lowest = torch.finfo(scores.dtype).min
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, None], lowest)
        related = None if self.rule == "mean" else self.adjacency(relations)
        if self.rule == "related_regions":
            scores = scores.masked_fill(~related, lowest)
        exact = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(-1, dtype=exact).to(scores.dtype)
        read = self.dropout(weights)
        if related is not None:
            read = read * related  # Eq. 6; rows without a relation read nothing
        attended = (read @ value).sum(1) if related is not None else (read @ value).mean(1)  # [B, H, R, d]
        return attended.transpose(1, 2).flatten(2), weights


def plain_attention(config: ImageTransformerConfig) -> MultiHeadAttention:
    """Build the self-attention of an encoder layer that ignores the graph."""
    return MultiHeadAttention(
        config, config.hidden_size, config.num_heads, dropout=config.encoder_dropout, output_projection=False
    )


def attention_output(config: ImageTransformerConfig) -> nn.Module:
    """Build the module after a self-attention: attention on attention, or a linear layer."""
    if config.encoder_attention_on_attention:
        return AttentionOnAttention(config.hidden_size, config.aoa_dropout)
    return nn.Linear(config.hidden_size, config.hidden_size)


class ImageTransformerLayer(RefiningLayer):
    """Encoder layer of Image Transformer (section 3.2), with or without the spatial graph.

    Args:
        config: sizes and switches of the encoder.
        spatial: whether the layer reads the graph.
        shared: whether it has the attention and the output that plain layers share, instead of its own.
    """

    def __init__(self, config: ImageTransformerConfig, spatial: bool, shared: bool) -> None:
        # Also made where they are shared: random numbers of a seed are those of earlier versions.
        attention = SpatialSubTransformers(config) if spatial else plain_attention(config)
        parts = (None, None) if shared else (attention, attention_output(config))
        super().__init__(config.hidden_size, *parts, config.encoder_ffn_dim, config.encoder_dropout)
        self.spatial = spatial

    def read(self, step: RefiningStep) -> tuple[Any, ...]:
        """Return the arguments of the attention beside queries and keys: mask and, with the graph, relations."""
        return (step.region_mask, step.relations) if self.spatial else super().read(step)


class ImageTransformerEncoder(ImageTransformerPreTrainedModel, RefiningEncoder):
    """Spatial graph encoder (section 3.2); also returns keys, values and mean region for the decoder."""

    def __init__(self, config: ImageTransformerConfig) -> None:
        super().__init__(config)
        width, sub_transformers = config.hidden_size, config.num_sub_transformers
        self.projection = RegionProjection(config.region_feature_size, width, dropout=config.dropout)
        spatial = [index in config.spatial_layers for index in range(config.encoder_layers)]
        shared = config.share_plain_attention and not all(spatial)
        self.layers = nn.ModuleList([ImageTransformerLayer(config, graph, shared and not graph) for graph in spatial])
        self.shared_attention = plain_attention(config) if shared else None
        self.shared_output = attention_output(config) if shared else None
        self.norm = UnbiasedLayerNorm(width)
        self.key_projection = nn.Linear(width, sub_transformers * width)
        self.value_projection = nn.Linear(width, sub_transformers * width)
        self.add_global_vector(config)
        self.post_init()

    def relations_of(self, regions: RegionFeatures, given: Tensor | None) -> Tensor | None:
        """Return the relations `[B, R, R]`: passed by the caller or computed of boxes; None if no layer reads any.

        Raises:
            ValueError: a given relation is not 0, 1, 2 or 3.
        """
        if not self.config.reads_relations:
            return None
        if given is None:
            assert regions.region_boxes is not None  # the base class has checked it
            relations = relations_of_boxes(
                regions.region_boxes, self.config.overlap_threshold, self.config.overlap_rule
            )
        else:
            relations = given.long()
            if (
                not torch.compiler.is_compiling()
                and not ((relations == given) & (relations >= 0) & (relations <= 3)).all()
            ):
                wrong = given[(relations != given) | (relations < 0) | (relations > 3)][0].item()
                raise ValueError(
                    f"`region_relations` holds {wrong:g}, expected 0 (not related), 1 (the column's region is a child "
                    "of the row's), 2 (neighbour) or 3 (parent)."
                )
        return visible_relations(relations, regions.region_mask, regions.region_views)

    def encode_regions(
        self,
        regions: RegionFeatures,
        output_attentions: bool,
        output_hidden_states: bool,
        output_gates: bool,
        region_relations: Tensor | None = None,
        global_features: Tensor | None = None,
    ) -> CaptioningEncoderOutput:
        """Refine regions `[B, R, features]` to `[B, R, D]`, and project keys and values for the decoder.

        Args:
            region_relations: `[B, R, R]`, relations to use instead of those of the boxes: what the column's region is
                of the row's, 0 = not related, 1 = child, 2 = neighbour, 3 = parent.
            global_features: `[B, G]`, read by `global_vector="given"`.

        Returns:
            `CaptioningEncoderOutput`: keys and values of the M sub-transformers of the decoder in `level_states`
            `[B, 2, R, M * D]`, `global_state` `[B, D]`, on request the gates `[B, R, D]` of the layers and the
            `relations` `[B, R, R]`. The attentions of a layer with the graph are `[B, S, H, R, R]` for the S relations
            of `config.spatial_relations`, in the order child, neighbour, parent, before they are cut to the related
            regions; those of a plain layer are `[B, H, R, R]`.
        """
        relations = self.relations_of(regions, region_relations)
        projected = self.projection(regions.region_features, regions.region_mask)
        if regions.region_mask is not None:  # a decoder without a mask reads hidden regions
            projected = projected.masked_fill(~regions.region_mask[..., None], 0.0)
        step = RefiningStep(
            create_region_mask(self.config, projected, projected, regions.region_mask),
            regions.region_mask,
            relations,
            None if self.shared_attention is None else (self.shared_attention, self.shared_output),
        )
        recorded = (output_attentions, output_hidden_states, output_gates)
        outputs = self.refine(regions, projected, step, global_features, *recorded)
        outputs.relations = relations if output_gates else None
        return outputs


class ParallelDotAttention(PreparedDotAttention):
    """M dot-product attentions in parallel, over keys and values `[B, R, M * D]` (Eq. 9).

    Args:
        config: sizes of the decoder. With `share_queries`, all use the same queries; otherwise scores are divided by
            sqrt(M) more, as in the released code.
    """

    def __init__(self, config: ImageTransformerConfig) -> None:
        width, count = config.hidden_size, config.num_sub_transformers
        super().__init__(config, width, count * config.num_heads, count, config.encoder_dropout)
        self.groups = count
        if config.share_queries:
            self.q_proj = nn.Linear(width, width)
        else:
            self.scaling = (count * self.key_dim) ** -0.5

    def split_heads(self, states: Tensor) -> Tensor:
        """Split heads: `[B, T, M * D]` to `[B, M * H, T, d]`; shared queries `[B, T, D]` are repeated."""
        heads = states.unflatten(-1, (-1, self.key_dim)).transpose(1, 2)  # [B, M * H or H, T, d]
        return heads.repeat(1, self.num_heads // heads.shape[1], 1, 1)


class SubTransformers(DotRegionAttention):
    """Parallel sub-transformers of the decoder, and their mean or gated sum (section 3.3, Eq. 9 and 10).

    Args:
        config: sizes and switches of the decoder.
    """

    def __init__(self, config: ImageTransformerConfig) -> None:
        width, count = config.hidden_size, config.num_sub_transformers
        super().__init__(config, width, config.num_heads, norm=UnbiasedLayerNorm(width))
        self.attention = ParallelDotAttention(config)
        self.count, self.masked = count, config.mask_decoder_attention
        gated = config.sub_transformer_mixture == "gates"
        self.gate = nn.Linear((count + 1) * width, count) if gated else None

    def prepare(self, encoder_outputs: CaptioningEncoderOutput, rows: int) -> tuple[Any, ...]:
        """Return keys, values and mask, which all steps share; no mask without `mask_decoder_attention`."""
        keys, values, mask = super().prepare(encoder_outputs, rows)
        return keys, values, mask if self.masked else None

    def forward(  # type: ignore[override]
        self, hidden: Tensor, keys: Tensor, values: Tensor, mask: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return attended vectors of states `[B * K, D]`, weights `[B * K, M, H, R]` and gates `[B * K, M]`."""
        query = self.norm(hidden)
        attended, weights = self.attention(query, keys, values, mask)
        parts = attended.unflatten(-1, (self.count, -1))  # [B * K, M, D]
        if self.gate is None:
            return parts.mean(1), weights, None
        gates = self.gate(torch.cat((query, parts.flatten(1)), dim=-1)).sigmoid()  # [B * K, M]
        return (gates[..., None] * parts).sum(1), weights, gates


class AttendedVector(nn.Module):
    """Context of one step that is the attended vector itself (released code without the gated linear layer)."""

    has_memory = False

    def forward(self, attended: Tensor, hidden: Tensor, state: LSTMState) -> tuple[LSTMState, None]:
        """Return the attended vector `[B * K, D]` as context, without cell state and gate."""
        return LSTMState(attended, None), None


class ImageTransformerDecoder(ImageTransformerPreTrainedModel, AttentionLSTMDecoder):
    """LSTM decoder with the implicit decoding transformer layer (section 3.3), without the vocabulary projection."""

    def __init__(self, config: ImageTransformerConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        gated = config.decoder_attention_on_attention
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layer = AttentionLSTMLayer(
            config.embedding_size,
            width,
            SubTransformers(config),
            AttendedContext("aoa", width, width) if gated else AttendedVector(),
            config.context_dropout,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()


class ImageTransformerModel(ImageTransformerPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = ImageTransformerEncoder
    decoder_class = ImageTransformerDecoder


class ImageTransformerForConditionalGeneration(ImageTransformerPreTrainedModel, CaptioningForConditionalGeneration):
    """Image Transformer with the projection to the vocabulary (Eq. 11)."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embedding.weight"}
    model_class = ImageTransformerModel
    head_bias = True

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the gates of attention on attention and of the sub-transformers for each token `[B * K, T]`."""
        mixture = outputs.gates[-1].attention if outputs.gates else None  # [B * K, T, M]
        gates = () if mixture is None else mixture.unbind(-1)
        of_parts = {f"gate of sub-transformer {index}": gate for index, gate in enumerate(gates, start=1)}
        return {**super().token_gates(outputs), **of_parts}
