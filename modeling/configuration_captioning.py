"""Base configuration of all captioners: image or region inputs, special tokens, and the loss."""

from typing import Any, Literal

from transformers import AutoConfig, PreTrainedConfig

RegionMaskRule = Literal["explicit", "zero_projected_sum"]
TokenMaskRule = Literal["explicit", "pad_id"]
LossReduction = Literal["token_mean", "caption_mean", "sum"]


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
        vision_grid_size (`int`, *optional*): average-pool the backbone's map adaptively to n x n cells; None keeps
            the backbone's own grid.
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
            the stream at its position is zeroed, also where the model generated that token.
        label_smoothing (`float`, defaults to 0.0): share s of the target distribution that is spread evenly over the
            other words; the loss is the divergence from that distribution (AoANet's program, with s = 0.2).
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

    vision_config: PreTrainedConfig | dict | None = None
    vision_feature_layer: int = -1
    vision_grid_size: int | None = None
    freeze_vision: bool = True
    region_feature_size: int = 2048
    region_extractor: dict | None = None
    region_mask_rule: str = "explicit"
    token_mask_rule: str = "explicit"
    label_smoothing: float | int = 0.0
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
        require_choice("loss_reduction", self.loss_reduction, LossReduction.__args__)
        require_range("label_smoothing", self.label_smoothing, 0.0, 1.0, high_open=True)
        super().__post_init__(**kwargs)

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
