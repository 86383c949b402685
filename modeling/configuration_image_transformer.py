"""Configuration of Image Transformer (He et al., ACCV 2020, "Image Captioning through Image Transformer")."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from .configuration_attention_lstm import AttentionLSTMConfig
from .configuration_captioning import (
    Integers,
    build_sub_config,
    grid_sizes,
    positive,
    rate,
    require_choice,
    within,
)

CHILD, NEIGHBOUR, PARENT = "child", "neighbour", "parent"
# What a number in `region_relations` says of the column's region, seen from the row's; 0: the two are not related.
RELATION_NUMBERS = {CHILD: 1, NEIGHBOUR: 2, PARENT: 3}


class ImageTransformerConfig(AttentionLSTMConfig):
    """Configuration of Image Transformer: a graph of region boxes in the encoder, parallel attentions in the decoder.

    | model | fields |
    |---|---|
    | "Ours" of Table 1, "layer1,2,3 (M=3)" of Table 3 | the defaults |
    | "layer1,2,3", "(M=2)", "(M=4)" of Table 3 | `num_sub_transformers=1`, `2`, `4` |
    | "layer1" (likewise 2, 3) of Table 3 | `spatial_layers=[0], num_sub_transformers=1` |
    | the same in the released code | and `share_plain_attention=True` |
    | "baseline(AoA)" of Table 3 | `spatial_layers=[], num_sub_transformers=1` |
    | "w/o spatial rela" of Table 3 | `relation_weights="mean", num_sub_transformers=1` |
    | the same in the released code | and `mask_decoder_attention=False` |
    | `aoa3_no_c`, `aoa3_no_p` of the released code | `spatial_relations` without `"parent"`, `"child"`, see there |
    | `aoa1`, `aoa3d2` of the released code | `relation_weights="related_regions"`, `sub_transformer_mixture="gates"` |
    | `aoa3d3` of the released code | `sub_transformer_mixture="gates", decoder_attention_on_attention=False` |
    | `aoa3d1_24h` of the released code | `share_queries=False` |

    Args:
        vocab_size (`int`, defaults to 10370): V (paper: 10,369 words).
        embedding_size (`int`, defaults to 1024): E, width of the word embeddings (code: 1,024).
        hidden_size (`int`, defaults to 1024): D, width of regions, LSTM and context (paper, section 4.2).
        num_heads (`int`, defaults to 8): H (code: 8).
        encoder_layers (`int`, defaults to 3): layers of the encoder (section 3.2: 3).
        spatial_layers (`list[int]`, *optional*): encoder layers with the graph, counted from 0; None: all. The others
            are plain layers of AoANet.
        share_plain_attention (`bool`, defaults to False): the plain layers share one self-attention (released code for
            "layer1", "layer2" and "layer3"; the paper does not say so).
        spatial_relations (`list[str]`, *optional*): relations with a sub-transformer of their own, any of `"child"`,
            `"neighbour"` and `"parent"`; None: all three. A missing relation counts as neighbourhood. The released
            names are turned round: its "child" is the paper's parent (`aoa3_no_c` has no `"parent"`).
        relation_weights (`str`, defaults to `"all_regions"`): `"all_regions"` (Eq. 6, code): a softmax over all
            regions, of which only the related ones are read. `"related_regions"` (code `aoa1`): a softmax over the
            related regions. `"mean"` (section 4.4): the mean of the sub-transformers, without relations.
        overlap_rule (`str`, defaults to `"clamped"`): intersection of two boxes. `"clamped"` is the geometric one
            (Eq. 5). `"released"` multiplies negative extents, so that boxes that are apart in both directions may
            become parent and child; the authors' checkpoints were trained with relations of their script.
        overlap_threshold (`float`, defaults to 0.9): epsilon of Eq. 5, inclusive (paper, code: 0.9).
        encoder_attention_on_attention (`bool`, defaults to True): attention on attention after the self-attention
            (code; not in Eq. 7, but in its baseline); False: a linear map (Eq. 2).
        encoder_ffn_dim (`int`, *optional*): width inside of a feed-forward layer in every encoder layer (Eq. 4); None:
            there is none (code; with its option `use_ff`: 2,048).
        num_sub_transformers (`int`, defaults to 3): M of Eq. 10, parallel attentions in the decoder.
        sub_transformer_mixture (`str`, defaults to `"mean"`): `"mean"` (Eq. 10), or `"gates"` that are computed from
            the query and all outputs (code `aoa3d2`).
        share_queries (`bool`, defaults to True): one query projection for all sub-transformers (Eq. 9). False: one
            each, with scores divided by sqrt(M) more (code `aoa3d1_24h`).
        mask_decoder_attention (`bool`, defaults to True): hide padding from the decoder. False is a defect of the
            released code without spatial relations, for exact comparison.
        decoder_attention_on_attention (`bool`, defaults to True): the gated linear layer of Eq. 10; False: the
            attended vector is the context (code `aoa3d3`).
        global_vector (`str`, defaults to `"mean"`): vector of the image that the LSTM reads: `"mean"` of the refined
            regions (Eq. 8); `"projected"`, a rectified projection of the mean of the regions as they come in;
            `"given"`, a rectified projection of `global_features` `[B, global_feature_size]` (code with
            `mean_feats=0`).
        global_feature_size (`int`, defaults to 2048): width of `global_features`.
        dropout (`float`, defaults to 0.5): rate on words, projected regions and output (code: 0.5).
        context_dropout (`float`, defaults to 0.5): rate on the previous context (code: 0.5).
        encoder_dropout (`float`, defaults to 0.1): rate on attention weights and sub-layers of the encoder, and on
            attention weights of the decoder (code: 0.1).
        aoa_dropout (`float`, defaults to 0.3): rate inside of the encoder's attention on attention (code: 0.3).
        vision_grid_size (`int` or `list[int]`, defaults to `[1, 2, 4]`, with a detector to None): the cells of one
            grid are all neighbours; those of several scales contain each other.

    Raises:
        ValueError: if a value is out of range.
    """

    model_type = "captioning_image_transformer"
    encoder_inputs: ClassVar[Mapping[str, str]] = {"region_relations": "relation", "global_features": "vector"}

    vocab_size: int = 10370
    encoder_layers: int = positive(default=3)
    spatial_layers: Integers | None = None
    share_plain_attention: bool = False
    spatial_relations: list[str] | tuple[str, ...] | None = None
    relation_weights: Literal["all_regions", "related_regions", "mean"] = "all_regions"
    overlap_rule: Literal["clamped", "released"] = "clamped"
    overlap_threshold: float | int = within(0.0, 1.0)(default=0.9)
    encoder_attention_on_attention: bool = True
    encoder_ffn_dim: int | None = positive(default=None)
    num_sub_transformers: int = positive(default=3)
    sub_transformer_mixture: Literal["mean", "gates"] = "mean"
    share_queries: bool = True
    mask_decoder_attention: bool = True
    decoder_attention_on_attention: bool = True
    encoder_dropout: float | int = rate(default=0.1)
    vision_grid_size: int | Integers | None = grid_sizes(default=(1, 2, 4))

    def __post_init__(self, **kwargs: Any) -> None:
        """Resolve the defaults of `vision_grid_size`, `spatial_layers` and `spatial_relations`."""
        if isinstance(self.vision_grid_size, tuple):  # the default: cells where there are no objects
            self.vision_config = build_sub_config(self.vision_config)
            self.vision_grid_size = None if self.has_detector else list(self.vision_grid_size)
        super().__post_init__(**kwargs)
        if self.spatial_layers is None:
            self.spatial_layers = list(range(self.encoder_layers))
        relations = tuple(RELATION_NUMBERS) if self.spatial_relations is None else self.spatial_relations
        for relation in relations:
            require_choice("spatial_relations", relation, tuple(RELATION_NUMBERS))
        self.spatial_relations = [name for name in RELATION_NUMBERS if name in relations]

    def validate_graph_and_heads(self) -> None:
        """Check `spatial_layers` and `spatial_relations`, and that the number of heads divides the width."""
        if self.hidden_size % self.num_heads:
            raise ValueError(f"`hidden_size` is {self.hidden_size}, expected a multiple of {self.num_heads} heads.")
        outside = [layer for layer in self.spatial_layers if not 0 <= layer < self.encoder_layers]
        if outside:
            raise ValueError(
                f"`spatial_layers` is {self.spatial_layers}, expected layers between 0 and {self.encoder_layers - 1}."
            )
        if NEIGHBOUR not in self.spatial_relations:
            raise ValueError(
                f"`spatial_relations` is {self.spatial_relations}, expected {NEIGHBOUR!r} among them: a missing "
                "relation counts as neighbourhood."
            )

    @property
    def reads_relations(self) -> bool:
        """True if any encoder layer reads the spatial relations between regions."""
        return bool(self.spatial_layers) and self.relation_weights != "mean"

    @property
    def relation_numbers(self) -> dict[str, list[int]]:
        """Values of `region_relations` that each sub-transformer of the encoder reads, by the name of its relation."""
        missing = [number for name, number in RELATION_NUMBERS.items() if name not in self.spatial_relations]
        return {
            name: [RELATION_NUMBERS[name], *(missing if name == NEIGHBOUR else ())] for name in self.spatial_relations
        }

    @property
    def parent_number(self) -> int:
        """Value of `region_relations` for a parent region."""
        return RELATION_NUMBERS[PARENT]

    @property
    def needs_region_boxes(self) -> str | None:
        """Reason why the encoder needs region boxes: its graph; None if no layer reads relations."""
        return "Image Transformer makes its graph of the boxes of the regions" if self.reads_relations else None
