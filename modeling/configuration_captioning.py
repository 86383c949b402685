"""Base configuration of captioners, and the checks of its fields."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from huggingface_hub.dataclasses import as_validated_field
from huggingface_hub.dataclasses import strict as strict_dataclass
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoConfig, PreTrainedConfig

RegionMaskRule = Literal["explicit", "zero_projected_sum"]
TokenMaskRule = Literal["explicit", "pad_id", "after_end"]
LabelSmoothingOver = Literal["other_words", "all_words"]
LossReduction = Literal["token_mean", "caption_mean", "sum"]
Integers = list[int] | tuple[int, ...]
T = TypeVar("T", bound=PreTrainedConfig)

# Detectors of transformers whose queries can be regions, by model type: the field with the number of queries.
DETECTORS = {
    **dict.fromkeys(("detr", "conditional_detr", "dab-detr", "deformable_detr", "table-transformer"), "num_queries"),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine", "deimv2", "lw_detr", "rf_detr"), "num_queries"),
    "yolos": "num_detection_tokens",
}
# Regions of an image that a captioner takes from a detector unless its configuration says otherwise.
MAX_REGIONS = 50


def queries_field(config: Any) -> str:
    """Return the name of the configuration field that holds a detector's number of queries."""
    field = DETECTORS[config.model_type]
    return "two_stage_num_proposals" if getattr(config, "two_stage", False) else field


def require_choice(field: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise a `ValueError` with the field, its value and the allowed values, unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"`{field}` is {value!r}, expected one of {', '.join(repr(choice) for choice in choices)}.")


def within(low: float, high: float = inf, *, high_open: bool = False) -> Callable[..., Any]:
    """Return a function that declares a configuration field for numbers in an interval: `within(0, 1)(default=0.5)`.

    This is `interval` of transformers for fields that may also be None, with the interval as in `[0, 1)` in messages.

    Args:
        low: the smallest value.
        high: the largest value.
        high_open: the value stays below `high`.
    """
    expected = f"at least {low}" if high == inf else f"a number in [{low}, {high}{')' if high_open else ']'}"

    def require_inside(value: float | None) -> None:
        if value is not None and not (low <= value < high if high_open else low <= value <= high):
            raise ValueError(f"expected {expected}.")

    return as_validated_field(require_inside)


rate = within(0.0, 1.0, high_open=True)  # of dropout, for instance
positive = within(1)


@as_validated_field
def grid_sizes(value: int | Integers | None) -> None:
    """Declare a configuration field for grid sizes: None, a positive integer, or a list of different ones."""
    sizes = value if isinstance(value, (list, tuple)) else [1 if value is None else value]
    if not sizes or any(type(size) is not int or size < 1 for size in sizes) or len(set(sizes)) != len(sizes):
        raise ValueError("expected a number of cells per side (7), several different ones ([1, 2, 4]) or None.")


def check_field(config_class: type[PreTrainedConfig], name: str, value: Any) -> None:
    """Check a new value of a configuration field by the field's type, choices and range.

    Args:
        config_class: the configuration.
        name: of the field; names that are no field are not checked.
        value: its new value.

    Raises:
        ValueError: type, choice or range are wrong; the message has field, value and what is expected.
    """
    # The annotation comes last, since the other declarations of a field have the better sentences.
    for require in reversed(config_class.__validators__.get(name, ())):  # type: ignore[attr-defined]
        try:
            require(value)
        except ValueError as error:
            raise ValueError(f"`{name}` is {value!r}, {error}") from error
        except TypeError as error:  # of the annotation
            annotation = config_class.__dataclass_fields__[name].type
            expected, hint = inspect.formatannotation(annotation), ""
            if get_origin(annotation) is Literal:
                choices = get_args(annotation)
                expected = f"one of {', '.join(map(repr, choices))}"
                nearest = get_close_matches(str(value), map(str, choices), n=1)
                hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
            raise ValueError(f"`{name}` is {value!r}, expected {expected}.{hint}") from error


def strict(config_class: type[T]) -> type[T]:
    """Class decorator like `@strict` of huggingface_hub that raises a `ValueError` for every wrong field.

    Fields are checked whenever they are set, see `check_field`; methods `validate_*` check what depends on several
    fields, after `__post_init__` and in `validate()`.
    """
    set_field = config_class.__setattr__  # `CaptioningConfig.__setattr__`
    validate = strict_dataclass(config_class).validate  # type: ignore[attr-defined]

    @functools.wraps(validate)
    def validate_with_value_error(self: Any) -> None:
        try:
            validate(self)
        except StrictDataclassClassValidationError as error:
            raise error.__cause__ or error from None

    config_class.__setattr__ = set_field  # type: ignore[method-assign]
    config_class.validate = validate_with_value_error  # type: ignore[attr-defined]
    return config_class


def require_levels(levels: Sequence[int], encoder_layers: int) -> None:
    """Raise a `ValueError` unless `cross_levels` number existing encoder layers, from 0."""
    if not levels or not all(0 <= level < encoder_layers for level in levels):
        raise ValueError(
            f"`cross_levels` is {levels}, expected levels between 0 and {encoder_layers - 1}: "
            f"the encoder has `encoder_layers={encoder_layers}`."
        )


def require_equal_heads(hidden_size: int, heads: int, widths: Sequence[int | None] = ()) -> None:
    """Raise a `ValueError` unless `num_attention_heads` divides `hidden_size`, or all widths of heads are given.

    Args:
        hidden_size: width that the heads divide.
        heads: their number.
        widths: `key_dim` and `value_dim` of a configuration that has these fields.
    """
    if hidden_size % heads and (not widths or None in widths):
        remedy = ", or set `key_dim` and `value_dim`" if widths else ""
        raise ValueError(
            f"`hidden_size={hidden_size}` is not a multiple of `num_attention_heads={heads}`; "
            f"choose a different number of heads{remedy}."
        )


def build_sub_config(value: Any, default_model_type: str | None = None) -> PreTrainedConfig | None:
    """Build a sub-configuration from a dictionary, a configuration or None, as in `config.json` or given by a user."""
    if isinstance(value, dict):
        value = dict(value)  # `pop` must not change the dictionary of the caller
        model_type = value.pop("model_type", default_model_type)
        if model_type is None:
            raise ValueError(f"A sub-configuration needs a `model_type`, got the keys {sorted(value)}.")
        return AutoConfig.for_model(model_type, **value)
    if value is None and default_model_type is not None:
        return AutoConfig.for_model(default_model_type)
    return value


@strict
class CaptioningConfig(PreTrainedConfig):
    """Base configuration with the fields that all captioners share.

    Args:
        vision_config (`PreTrainedConfig` or `dict`, *optional*): the backbone that computes region features from
            images: any vision model of transformers, or a timm model as `{"model_type": "timm_wrapper",
                "architecture": ...}`; or a detector of transformers (`DETECTORS`), whose best queries are the regions.
            None: the captioner reads region features only.
        vision_feature_layer (`int`, defaults to -1): output of the backbone that the regions are taken from: -1 is
            its last hidden state, any other number indexes its `hidden_states` (stages of a CNN, layers of a ViT).
        vision_grid_size (`int` or `list[int]`, *optional*): average-pool the backbone's map adaptively to n x n cells;
            a list pools to several scales (`[1, 2, 4]`: 1 + 4 + 16 nested cells, in this order); None keeps the
            backbone's own grid. With a detector: cells of its encoder's map, which follow its queries; None: no cells.
        vision_max_regions (`int`, *optional*): with a detector, the queries with the best scores that are regions; at
            most as many as the detector has. Default: 50, or all if it has fewer. Bottom-up features have 100.
        vision_min_regions (`int`, defaults to 1): regions that an image has at least, whatever their scores. Bottom-up
            features have 10.
        vision_score_threshold (`float`, defaults to 0.0): beyond `vision_min_regions`, only queries with at least this
            score are regions, the others are masked. Bottom-up features have 0.2.
        vision_nms_threshold (`float`, *optional*): a query whose box overlaps that of a better one by more than this
            intersection over union is no region (non-maximum suppression, classes together). None: all remain.
        freeze_vision (`bool`, defaults to True): keep the backbone in evaluation mode and without gradients, so that
            its features can be computed once per image and stored. False trains it with fixed normalisation
            statistics.
        region_feature_size (`int`, defaults to 2048): width of `region_features`. It must equal the width of the
            backbone's output when there is one (`from_pretrained_parts` measures it); 2,048 is the size of
            bottom-up features (ResNet-101 res5c).
        region_extractor (`dict`, *optional*): extractor of the stored features that the captioner was trained on
            (`{"name": ..., "revision": ...}`); training refuses features of a different extractor. None: the captioner
            was trained on images, or the extractor is unknown.
        weights_license (`dict`, *optional*): terms of weights that are not under the licence of the code, which every
            captioner made from them keeps: `license` (as in cards of the Hub), `license_name`, `base_model`, `summary`
            and `notice`, the text of the file NOTICE.
        region_mask_rule: `"explicit"` (default) hides exactly the regions that `region_mask` marks as padding.
            `"zero_projected_sum"` is the rule of the M2 and VisualGPT code: a region is hidden when its projected,
            normalised features sum to exactly zero; `region_mask` is ignored. It rarely detects padding and is meant
            for converted checkpoints.
        token_mask_rule: `"explicit"` (default) hides the tokens that `decoder_attention_mask` marks as padding.
            `"pad_id"` is the rule of the M2 and VisualGPT code: every token equal to `pad_token_id` is hidden, and
            the stream at its position is zeroed, also where the model generated that token. `"after_end"` hides
            the tokens that follow the first end token, never the first position: for code whose begin, end and padding
            ids are one (the ImageCaptioning.pytorch family).
        label_smoothing (`float`, defaults to 0.0): share s of the target distribution that is spread evenly over the
            other words; the loss is the divergence from that distribution (AoANet's program, with s = 0.2).
        label_smoothing_over: `"other_words"` (default; AoANet, ZoDIAC) divides s among the V - 1 other words;
            `"all_words"` divides it among all V words, the target included (the Transformer, Entangled Transformer).
        loss_reduction: `"token_mean"` (default, the released code of VisualGPT and M2) averages the negative
            log-likelihood over real target tokens; `"caption_mean"` sums it per caption and averages over captions
            (the program of Show, Attend and Tell); `"sum"` sums over the batch (VisualGPT, Eq. 7).
        bos_token_id, eos_token_id, pad_token_id (`int`): ids of the tokenizer; three distinct ones, except in
            converted checkpoints.
        decoder_start_token_id (`int`, *optional*): first decoder input; defaults to `bos_token_id`.
        tie_word_embeddings (`bool`, defaults to True): share one matrix between input embedding and output projection.

    Raises:
        ValueError: if a value is outside of its range or choices.
    """

    model_type = "captioning"

    # Inputs that an architecture reads beside `pixel_values`, `view_mask`, `region_features`, `region_boxes`,
    # `region_mask` and `region_views`: name -> layout. The forward methods, `generate()`, processors, the collator,
    # data set columns and the pipeline read these declarations and refuse other names. Layouts, for B images:
    #   "ids"       lists of integers, padded with 0 to `[B, N]` int64, with a mask `[B, N]`, see `mask_name`
    #   "region"    one entry per region, `[B, R, ...]`
    #   "relation"  one entry per pair of regions, `[B, R, R]`
    #   "vector"    `[B, D]`
    #   "image"     what the image processor returns beside `pixel_values`
    #   "text"      one entry per token, `[B * K, T]`, or a tuple of these
    # `pixel_mask` `[B, H, W]` is 1 at the pixels of an image and 0 at its padding, below and to the right of it; a
    # detector reads it.
    vision_inputs: ClassVar[Mapping[str, str]] = {"pixel_mask": "image"}
    encoder_inputs: ClassVar[Mapping[str, str]] = {}
    decoder_inputs: ClassVar[Mapping[str, str]] = {}

    # Annotations and `rate`, `positive` or `within` say what a field may be, see `strict`. A subclass that declares a
    # field again replaces both.

    vision_config: PreTrainedConfig | dict | None = None
    vision_feature_layer: int = -1
    vision_grid_size: int | Integers | None = grid_sizes(default=None)
    vision_max_regions: int | None = positive(default=None)
    vision_min_regions: int = positive(default=1)
    vision_score_threshold: float | int = within(0.0, 1.0)(default=0.0)
    vision_nms_threshold: float | int | None = within(0.0, 1.0)(default=None)
    freeze_vision: bool = True
    region_feature_size: int = 2048
    region_extractor: dict | None = None
    weights_license: dict | None = None
    region_mask_rule: RegionMaskRule = "explicit"
    token_mask_rule: TokenMaskRule = "explicit"
    label_smoothing: float | int = rate(default=0.0)
    label_smoothing_over: LabelSmoothingOver = "other_words"
    loss_reduction: LossReduction = "token_mean"
    bos_token_id: int | None = None
    eos_token_id: int | Integers | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    use_cache: bool = True
    initializer_range: float | int = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        """Build sub-configurations and resolve defaults that depend on other fields.

        A subclass first builds its other sub-configurations, then calls this method, then resolves its own fields.
        """
        self.vision_config = build_sub_config(self.vision_config)
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        if self.has_detector and self.vision_max_regions is None:
            self.vision_max_regions = min(MAX_REGIONS, getattr(self.vision_config, queries_field(self.vision_config)))
        super().__post_init__(**kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make every subclass check its fields, see `strict`."""
        super().__init_subclass__(**kwargs)
        strict(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        """Check a value, and set the field to it."""
        check_field(type(self), self.attribute_map.get(name, name), value)
        super().__setattr__(name, value)

    @property
    def has_detector(self) -> bool:
        """True if the regions of an image are queries of a detector."""
        return self.vision_config is not None and self.vision_config.model_type in DETECTORS

    def validate_regions(self) -> None:
        """Check the fields that select queries of a detector as regions."""
        names = ("vision_max_regions", "vision_min_regions", "vision_score_threshold", "vision_nms_threshold")
        if not self.has_detector:
            changed = [name for name in names if getattr(self, name) != getattr(CaptioningConfig, name)]
            if changed and self.vision_config is not None:
                raise ValueError(
                    f"`{changed[0]}` is {getattr(self, changed[0])}, and a {self.vision_config.model_type!r} vision "
                    "model has no queries to choose from. Leave it out, or pass a detector: "
                    f"{', '.join(DETECTORS)}."
                )
            return
        field = queries_field(self.vision_config)
        queries = getattr(self.vision_config, field)
        if self.vision_max_regions < self.vision_min_regions:
            raise ValueError(
                f"`vision_max_regions` is {self.vision_max_regions}, expected at least {self.vision_min_regions}, "
                "`vision_min_regions`."
            )
        if self.vision_max_regions > queries:
            raise ValueError(
                f"`vision_max_regions` is {self.vision_max_regions}, and the {self.vision_config.model_type!r} "
                f"detector has {queries} queries (`{field}`): expected at most {queries}."
            )
        if self.vision_feature_layer != -1:
            raise ValueError(
                f"`vision_feature_layer` is {self.vision_feature_layer}, and the regions of a "
                f"{self.vision_config.model_type!r} detector are its queries: leave it out. For cells of its encoder "
                "beside them, pass `vision_grid_size`."
            )

    @property
    def needs_region_boxes(self) -> str | None:
        """Reason why this configuration needs region boxes, for messages; None if they are optional."""
        return None

    @property
    def required_vectors(self) -> dict[str, int]:
        """Widths of the vectors of an image that callers must pass, by input name (layout `"vector"`)."""
        return {}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration as in transformers; a different model type is an error instead of a warning.

        Raises:
            ValueError: if `config_dict` has a different `model_type`.
        """
        model_type = config_dict.get("model_type")
        if model_type is not None and cls.model_type and model_type != cls.model_type:
            raise ValueError(
                f"This is the configuration of a {model_type!r} model, expected {cls.model_type!r}. "
                f"Use `AutoConfig.from_pretrained(...)` to load it by its own type."
            )
        return super().from_dict(config_dict, **kwargs)
