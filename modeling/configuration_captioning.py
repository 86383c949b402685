"""Base configuration of all captioners: image or region inputs, special tokens, and the loss."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from transformers import AutoConfig, PreTrainedConfig

RegionMaskRule = Literal["explicit", "zero_projected_sum"]
TokenMaskRule = Literal["explicit", "pad_id", "after_end"]
LabelSmoothingOver = Literal["other_words", "all_words"]
LossReduction = Literal["token_mean", "caption_mean", "sum"]


# Layouts of declared inputs, see `CaptioningConfig.encoder_inputs`.
INPUT_LAYOUTS = ("ids", "region", "relation", "vector", "image", "text")


def mask_name(name: str) -> str:
    """Return the name of the mask of an input of the layout `"ids"`: of `attribute_ids` it is `attribute_mask`."""
    return f"{name.removesuffix('_ids')}_mask"


def input_names(inputs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keyword arguments of declared inputs: their names, and the masks of those of the layout `"ids"`."""
    return tuple(
        keyword
        for name, layout in inputs.items()
        for keyword in ((name, mask_name(name)) if layout == "ids" else (name,))
    )


def require_choice(field: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise a `ValueError` with the field, its value and the allowed values, unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"`{field}` is {value!r}, expected one of {', '.join(repr(choice) for choice in choices)}.")


def require_range(field: str, value: float, low: float, high: float, *, high_open: bool = False) -> None:
    """Raise a `ValueError` unless `low <= value <= high` (or `< high`)."""
    inside = low <= value < high if high_open else low <= value <= high
    if not inside:
        bracket = ")" if high_open else "]"
        raise ValueError(f"`{field}` is {value}, expected a number in [{low}, {high}{bracket}.")


def require_grid_size(value: int | list[int] | None) -> None:
    """Raise a `ValueError` unless the value is None, a positive integer or a list of different ones."""
    sizes = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    right = all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes)
    if not right or len(set(sizes)) != len(sizes) or (isinstance(value, (list, tuple)) and not sizes):
        raise ValueError(
            f"`vision_grid_size` is {value!r}, expected a number of cells per side (7), several different ones "
            "([1, 2, 4]) or None."
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


class CaptioningConfig(PreTrainedConfig):
    """Base configuration with the fields that all captioners share.

    Args:
        vision_config (`PreTrainedConfig` or `dict`, *optional*): the backbone that computes region features from
            images: any vision model of transformers, or a timm model as `{"model_type": "timm_wrapper",
                "architecture": ...}`.
            None: the captioner reads region features only.
        vision_feature_layer (`int`, defaults to -1): output of the backbone that the regions are taken from: -1 is
            its last hidden state, any other number indexes its `hidden_states` (stages of a CNN, layers of a ViT).
        vision_grid_size (`int` or `list[int]`, *optional*): average-pool the backbone's map adaptively to n x n cells;
            a list pools to several scales (`[1, 2, 4]`: 1 + 4 + 16 nested cells, in this order); None keeps the
            backbone's own grid.
        freeze_vision (`bool`, defaults to True): keep the backbone in evaluation mode and without gradients, so that
            its features can be computed once per image and stored. False trains it with fixed normalisation
            statistics.
        region_feature_size (`int`, defaults to 2048): width of `region_features`. It must equal the width of the
            backbone's output when there is one (`from_pretrained_parts` measures it); 2,048 is the size of
            bottom-up features (ResNet-101 res5c).
        region_extractor (`dict`, *optional*): extractor of the stored features that the captioner was trained on
            (`{"name": ..., "revision": ...}`); training refuses features of a different extractor. None: the captioner
            was trained on images, or the extractor is unknown.
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
    vision_inputs: ClassVar[Mapping[str, str]] = {}
    encoder_inputs: ClassVar[Mapping[str, str]] = {}
    decoder_inputs: ClassVar[Mapping[str, str]] = {}

    vision_config: PreTrainedConfig | dict | None = None
    vision_feature_layer: int = -1
    vision_grid_size: int | list[int] | None = None
    freeze_vision: bool = True
    region_feature_size: int = 2048
    region_extractor: dict | None = None
    region_mask_rule: str = "explicit"
    token_mask_rule: str = "explicit"
    label_smoothing: float | int = 0.0
    label_smoothing_over: str = "other_words"
    loss_reduction: str = "token_mean"
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    use_cache: bool = True
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        """Build sub-configurations and check ranges."""
        self.vision_config = build_sub_config(self.vision_config)
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        require_choice("region_mask_rule", self.region_mask_rule, RegionMaskRule.__args__)
        require_choice("token_mask_rule", self.token_mask_rule, TokenMaskRule.__args__)
        require_choice("label_smoothing_over", self.label_smoothing_over, LabelSmoothingOver.__args__)
        require_choice("loss_reduction", self.loss_reduction, LossReduction.__args__)
        require_range("label_smoothing", self.label_smoothing, 0.0, 1.0, high_open=True)
        require_grid_size(self.vision_grid_size)
        super().__post_init__(**kwargs)

    @property
    def needs_region_boxes(self) -> str | None:
        """The reason why this configuration needs boxes, for messages; None if the captioner also works without."""
        return None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration as in transformers; a different model type is an error instead of a warning.

        Raises:
            ValueError: if `config_dict` has a different `model_type`.
        """
        found = config_dict.get("model_type")
        if found is not None and cls.model_type and found != cls.model_type:
            raise ValueError(
                f"This is the configuration of a {found!r} model, expected {cls.model_type!r}. "
                f"Use `AutoConfig.from_pretrained(...)` to load it by its own type."
            )
        return super().from_dict(config_dict, **kwargs)
