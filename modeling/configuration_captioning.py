"""Base configurations: of all captioners, of those with a GPT-2 decoder, and of those with an attention LSTM."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Literal

from transformers import AutoConfig, PreTrainedConfig

RegionMaskRule = Literal["explicit", "zero_projected_sum"]
TokenMaskRule = Literal["explicit", "pad_id", "after_end"]
LabelSmoothingOver = Literal["other_words", "all_words"]
LossReduction = Literal["token_mean", "caption_mean", "sum"]

# Names without effect on a captioner that callers pass along: `transformers` asks for outputs by this one.
IGNORED_NAMES = ("return_dict",)
# Layouts of declared inputs, see `CaptioningConfig.encoder_inputs`.
INPUT_LAYOUTS = ("ids", "region", "relation", "vector", "image", "text")


# Detectors of transformers whose queries can be regions, by model type: the field with the number of queries.
DETECTORS = {
    **dict.fromkeys(("detr", "conditional_detr", "dab-detr", "deformable_detr", "table-transformer"), "num_queries"),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine", "deimv2", "lw_detr", "rf_detr"), "num_queries"),
    "yolos": "num_detection_tokens",
}
# Regions of an image that a captioner takes from a detector unless its configuration says otherwise.
MAX_REGIONS = 50


def queries_field(config: Any) -> str:
    """Return the field of a detector's configuration that has its number of queries."""
    field = DETECTORS[config.model_type]
    return "two_stage_num_proposals" if getattr(config, "two_stage", False) else field


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


def declare_inputs(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """Return a forward method whose signature names further inputs, which it receives in its `**inputs`.

    `generate()` and the Trainer of transformers read the signature of `forward` to find out which inputs a model has.

    Args:
        function: a method with a parameter `**inputs`.
        names: keyword arguments to add to its signature, each with the default None.
    """

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    *listed, rest = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Tensor | None")
        for name in names
        if name not in signature.parameters
    ]
    forward.__signature__ = signature.replace(parameters=[*listed, *added, rest])  # type: ignore[attr-defined]
    return forward


def read_inputs(given: Mapping[str, Any], declared: Mapping[str, str], owner: Any) -> dict[str, Any]:
    """Return the declared inputs among the keyword arguments that a forward method got.

    Args:
        given: keyword arguments that are not in the method's own signature.
        declared: names and layouts, as in `CaptioningConfig.encoder_inputs`.
        owner: the module that was called, for the message.

    Raises:
        TypeError: a name is unknown and its value is not None; the message has the nearest name.
    """
    names = input_names(declared)
    unknown = [
        name for name, value in given.items() if name not in names and name not in IGNORED_NAMES and value is not None
    ]
    if unknown:
        known = [name for name in inspect.signature(owner.forward).parameters if name != "inputs"]
        nearest = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean `{nearest[0]}`?" if nearest else f"it reads {', '.join(f'`{name}`' for name in known)}."
        raise TypeError(f"`{unknown[0]}` is not an input of {type(owner).__name__}; {hint}")
    return {name: given[name] for name in names if given.get(name) is not None}


def require_choice(field: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise a `ValueError` with the field, its value and the allowed values, unless `value` is one of `choices`."""
    if value not in choices:
        nearest = get_close_matches(str(value), map(str, choices), n=1)
        hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
        raise ValueError(f"`{field}` is {value!r}, expected one of {', '.join(map(repr, choices))}.{hint}")


def require_range(field: str, value: float, low: float, high: float, *, high_open: bool = False) -> None:
    """Raise a `ValueError` unless `low <= value <= high` (or `< high`)."""
    if not isinstance(value, int | float):
        raise ValueError(f"`{field}` is {value!r}, expected a number.")
    inside = low <= value < high if high_open else low <= value <= high
    if not inside:
        bracket = ")" if high_open else "]"
        raise ValueError(f"`{field}` is {value}, expected a number in [{low}, {high}{bracket}.")


def require_minimum(field: str, value: float, minimum: float) -> None:
    """Raise a `ValueError` unless `value >= minimum`."""
    if not isinstance(value, int | float):
        raise ValueError(f"`{field}` is {value!r}, expected a number.")
    if value < minimum:
        raise ValueError(f"`{field}` is {value}, expected at least {minimum}.")


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

    # What `__post_init__` requires of fields. The declarations of base classes hold too; a subclass that declares a
    # field again replaces what its base class requires of it.
    #   field_choices   the values that a field may have
    #   field_rates     fields with a number in [0, 1): dropout, for instance
    #   field_minimums  the smallest value of a field; None is allowed where it is the default
    #   field_ranges    the smallest and the largest value of a field
    field_choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "region_mask_rule": RegionMaskRule.__args__,
        "token_mask_rule": TokenMaskRule.__args__,
        "label_smoothing_over": LabelSmoothingOver.__args__,
        "loss_reduction": LossReduction.__args__,
    }
    field_rates: ClassVar[tuple[str, ...]] = ("label_smoothing",)
    field_minimums: ClassVar[Mapping[str, int]] = {}
    field_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}

    vision_config: PreTrainedConfig | dict | None = None
    vision_feature_layer: int = -1
    vision_grid_size: int | list[int] | None = None
    vision_max_regions: int | None = None
    vision_min_regions: int = 1
    vision_score_threshold: float | int = 0.0
    vision_nms_threshold: float | int | None = None
    freeze_vision: bool = True
    region_feature_size: int = 2048
    region_extractor: dict | None = None
    weights_license: dict | None = None
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
        """Build sub-configurations and check the declared values of fields.

        A subclass first builds its other sub-configurations, then calls this method, then checks and resolves what
        depends on several fields.
        """
        self.vision_config = build_sub_config(self.vision_config)
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        self._check_declared_fields()
        require_grid_size(self.vision_grid_size)
        self._check_choice_of_regions()
        super().__post_init__(**kwargs)

    @property
    def has_detector(self) -> bool:
        """Whether the regions of images are queries of a detector."""
        return self.vision_config is not None and self.vision_config.model_type in DETECTORS

    def _check_choice_of_regions(self) -> None:
        """Check the fields that choose among the queries of a detector, and resolve the largest number of regions."""
        names = ("vision_max_regions", "vision_min_regions", "vision_score_threshold", "vision_nms_threshold")
        if not self.has_detector:
            given = [name for name in names if getattr(self, name) != getattr(CaptioningConfig, name)]
            if given and self.vision_config is not None:
                raise ValueError(
                    f"`{given[0]}` is {getattr(self, given[0])}, and a {self.vision_config.model_type!r} vision model "
                    f"has no queries to choose from. Leave it out, or pass a detector: {', '.join(DETECTORS)}."
                )
            return
        field = queries_field(self.vision_config)
        queries = getattr(self.vision_config, field)
        if self.vision_max_regions is None:
            self.vision_max_regions = min(MAX_REGIONS, queries)
        require_minimum("vision_min_regions", self.vision_min_regions, 1)
        require_minimum("vision_max_regions", self.vision_max_regions, self.vision_min_regions)
        if self.vision_max_regions > queries:
            raise ValueError(
                f"`vision_max_regions` is {self.vision_max_regions}, and the {self.vision_config.model_type!r} "
                f"detector has {queries} queries (`{field}`): expected at most {queries}."
            )
        require_range("vision_score_threshold", self.vision_score_threshold, 0.0, 1.0)
        if self.vision_nms_threshold is not None:
            require_range("vision_nms_threshold", self.vision_nms_threshold, 0.0, 1.0)
        if self.vision_feature_layer != -1:
            raise ValueError(
                f"`vision_feature_layer` is {self.vision_feature_layer}, and the regions of a "
                f"{self.vision_config.model_type!r} detector are its queries: leave it out. For cells of its encoder "
                "beside them, pass `vision_grid_size`."
            )

    def _check_declared_fields(self) -> None:
        for field, choices in self._declared("field_choices").items():
            require_choice(field, getattr(self, field), choices)
        for field in self._declared("field_rates"):
            require_range(field, getattr(self, field), 0.0, 1.0, high_open=True)
        for field, minimum in self._declared("field_minimums").items():
            if getattr(self, field) is not None or getattr(type(self), field) is not None:
                require_minimum(field, getattr(self, field), minimum)
        for field, (low, high) in self._declared("field_ranges").items():
            require_range(field, getattr(self, field), low, high)

    @classmethod
    def _declared(cls, name: str) -> dict[str, Any]:
        """Return the entries of a declaration in this class and its base classes; of rates, field to None."""
        declared: dict[str, Any] = {}
        for part in reversed(cls.__mro__):
            of_part = part.__dict__.get(name, ())
            declared |= of_part if isinstance(of_part, Mapping) else dict.fromkeys(of_part)
        return declared

    @property
    def needs_region_boxes(self) -> str | None:
        """The reason why this configuration needs boxes, for messages; None if the captioner also works without."""
        return None

    @property
    def required_vectors(self) -> dict[str, int]:
        """Widths of the declared inputs of the layout `"vector"` without which this captioner cannot run, by name."""
        return {}

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


class GPT2CaptioningConfig(CaptioningConfig):
    """Fields that captioners with a GPT-2 decoder share: the language model, the region encoder and dropouts.

    Args:
        text_config (`GPT2Config` or `dict`, *optional*): the language model; the decoder takes its widths, depth,
            vocabulary, context length and dropouts. The default is GPT-2 small with embedding and attention dropout 0,
            which have no effect in the released code of VisualGPT.
        encoder_layers (`int`, defaults to 3): layers of the region encoder (released and paper: 3).
        encoder_attention_heads (`int`, *optional*): heads of the region encoder; default: as many as the
            language model has.
        encoder_key_dim, encoder_value_dim (`int`, *optional*): width of the keys and values per head;
            default: hidden size / heads.
        encoder_dropout (`float`, defaults to 0.1): rate on the projection and in the layers of the region encoder.
        cross_levels (`list[int]`, *optional*): encoder levels (0-based) that the decoder reads; default: the last.
        cross_attention_dropout (`float`, defaults to 0.2): rate on cross-attention weights (released; not in the
            paper).
        aoa_dropout (`float`, defaults to 0.2): rate inside attention-on-attention blocks.
        residual_dropout_on (`str`, defaults to `"stream"`): `"stream"` (released) applies dropout to the sum of stream
            and branch; `"branch"` is transformers' GPT-2. The rate is `text_config.resid_pdrop`.

    Raises:
        ValueError: if a value is out of range.
    """

    sub_configs = {"text_config": AutoConfig, "vision_config": AutoConfig}
    field_choices = {"residual_dropout_on": ("stream", "branch")}
    field_rates = ("encoder_dropout", "cross_attention_dropout", "aoa_dropout")
    field_minimums = {"encoder_layers": 1}

    text_config: PreTrainedConfig | dict | None = None
    encoder_layers: int = 3
    encoder_attention_heads: int | None = None
    encoder_key_dim: int | None = None
    encoder_value_dim: int | None = None
    encoder_dropout: float | int = 0.1
    cross_levels: list[int] | None = None
    cross_attention_dropout: float | int = 0.2
    aoa_dropout: float | int = 0.2
    residual_dropout_on: str = "stream"
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = 50256

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the language model's configuration, resolve the levels and check ranges."""
        # GPT2Config has ids of its own; those of the captioner hold for both, unless `text_config` gives others.
        special = {key: getattr(self, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        if self.text_config is None:
            self.text_config = {"embd_pdrop": 0.0, "attn_pdrop": 0.0}
        if isinstance(self.text_config, dict):
            self.text_config = special | self.text_config
        self.text_config = build_sub_config(self.text_config, "gpt2")
        if self.text_config.model_type != "gpt2":
            raise ValueError(f"`text_config` is a {self.text_config.model_type!r} configuration, expected 'gpt2'.")
        super().__post_init__(**kwargs)
        if self.encoder_attention_heads is None:
            self.encoder_attention_heads = self.text_config.num_attention_heads
        if self.cross_levels is None:
            self.cross_levels = (
                list(range(self.encoder_layers)) if self.reads_all_levels else [self.encoder_layers - 1]
            )
        self._check_levels()

    def _check_levels(self) -> None:
        outside = [level for level in self.cross_levels if not 0 <= level < self.encoder_layers]
        if outside or not self.cross_levels:
            raise ValueError(
                f"`cross_levels` is {self.cross_levels}, expected levels between 0 and {self.encoder_layers - 1}: "
                f"the encoder has `encoder_layers={self.encoder_layers}`."
            )
        if len(self.cross_levels) > 1 and not self.reads_all_levels:
            raise ValueError(f"The decoder reads one level, got `cross_levels={self.cross_levels}`.")
        if self.encoder_key_dim is None and self.hidden_size % self.encoder_attention_heads:
            raise ValueError(
                f"hidden size {self.hidden_size} is not a multiple of `encoder_attention_heads="
                f"{self.encoder_attention_heads}`; choose a different number of heads or set `encoder_key_dim`."
            )

    @property
    def reads_all_levels(self) -> bool:
        """Whether the decoder can read several encoder levels; it then reads all by default."""
        return False

    @property
    def hidden_size(self) -> int:
        """D, width of the decoder's stream and of the region encoder."""
        return self.text_config.hidden_size

    @property
    def vocab_size(self) -> int:
        """V, size of the vocabulary."""
        return self.text_config.vocab_size


class AttentionLSTMConfig(CaptioningConfig):
    """Fields that captioners with the attention LSTM of AoANet share: its widths, its inputs and dropouts.

    Args:
        embedding_size (`int`, defaults to 1024): E, width of the word embeddings.
        hidden_size (`int`, defaults to 1024): D, width of regions, states and contexts.
        num_heads (`int`, defaults to 8): H, of all attentions with several heads.
        global_vector (`str`, defaults to `"mean"`): the vector of the image that the LSTM reads: `"mean"` of the
            encoded regions; `"projected"`, a rectified projection of the mean of the regions as they come in;
            `"given"`, a rectified projection of `global_features` `[B, global_feature_size]`.
        global_feature_size (`int`, defaults to 2048): width of `global_features`.
        dropout (`float`, defaults to 0.5): rate on words, regions, projected global vectors and the output.
        context_dropout (`float`, defaults to 0.5): rate on the previous context.
        aoa_dropout (`float`, defaults to 0.3): rate on the input of attention on attention in the encoder.

    Raises:
        ValueError: if a value is out of range, or tied matrices have different widths.
    """

    sub_configs = {"vision_config": AutoConfig}
    encoder_inputs: ClassVar[Mapping[str, str]] = {"global_features": "vector"}
    field_choices = {
        "region_mask_rule": ("explicit",),
        "token_mask_rule": ("explicit",),
        "global_vector": ("mean", "projected", "given"),
    }
    field_rates = ("dropout", "context_dropout", "aoa_dropout")
    field_minimums = {"embedding_size": 1, "hidden_size": 1, "num_heads": 1, "global_feature_size": 1}

    embedding_size: int = 1024
    hidden_size: int = 1024
    num_heads: int = 8
    global_vector: str = "mean"
    global_feature_size: int = 2048
    dropout: float | int = 0.5
    context_dropout: float | int = 0.5
    aoa_dropout: float | int = 0.3
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Check that tied matrices have one width."""
        super().__post_init__(**kwargs)
        if self.tie_word_embeddings and self.hidden_size != self.embedding_size:
            raise ValueError(
                "`tie_word_embeddings=True` needs states as wide as the word embeddings, got "
                f"{self.hidden_size} and {self.embedding_size}: use `hidden_size={self.embedding_size}`."
            )

    @property
    def required_vectors(self) -> dict[str, int]:
        """`global_features`, if the vector of the image is given."""
        return {"global_features": self.global_feature_size} if self.global_vector == "given" else {}
