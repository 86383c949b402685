"""Base classes of captioners: models from images or region features to logits over caption tokens."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import ModelOutput, can_return_tuple, logging
from transformers.utils.deprecation import deprecate_kwarg

from .configuration_captioning import CaptioningConfig
from .generation_captioning import SEARCH_OPTIONS, CaptionGenerationMixin, ExplanationMixin
from .inputs_captioning import (
    REGION_INPUTS,
    RegionFeatures,
    check_inputs,
    check_regions,
    declare_inputs,
    input_names,
    read_inputs,
    without_padding,
)
from .layers_vision import VisionBackbone, regions_of_images, supported_attentions
from .losses_captioning import IGNORED_LABEL, CaptionLossMixin

logger = logging.get_logger(__name__)


@dataclass
class CaptioningEncoderOutput(ModelOutput):
    """Encoder outputs of B images; `generate()` does not repeat them for beams.

    A decoder attends to the encoded regions. An architecture that also attends to other encoder states (a "memory", of
    attributes, for instance) adds a field `NAME_states` `[B, N, D]` and a field `NAME_mask` `[B, N]` for each in a
    subclass, and sets `encoder_output_class`; `memory(NAME)` returns both.

    Args:
        last_hidden_state: `[B, R, D]`, the last encoder level.
        level_states: `[B, N, R, W]`, what cross-attention reads: the output of every encoder layer (Transformers), or
            the projected keys and values of the decoder's attention (recurrent decoders, see the architecture).
        region_mask: `[B, R]`, True = visible; None when nothing is hidden.
        global_state: `[B, D]`, one vector per image, for decoders that read one.
        hidden_states: tuple of `[B, R, D]`: the projected regions, then every layer.
        attentions: tuple of `[B, H, R, R]`, one per layer.
        gates: tuple over layers, on request; the architecture documents the content.
        relations: `[B, R, R]` relations between regions, on request (with gates); see the architecture.
    """

    last_hidden_state: Tensor | None = None
    level_states: Tensor | None = None
    region_mask: Tensor | None = None
    global_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    gates: tuple[Any, ...] | None = None
    relations: Tensor | None = None

    def memory(self, name: str = "region") -> tuple[Tensor, Tensor | None]:
        """Return the encoder states `[B, N, D]`, and their mask or None, that cross-attention to `name` reads.

        Raises:
            KeyError: there is no memory of this name.
        """
        if name == "region":
            assert self.last_hidden_state is not None
            return self.last_hidden_state, self.region_mask
        states = getattr(self, f"{name}_states", None)
        if states is None:
            raise KeyError(f"{type(self).__name__} has no memory {name!r}.")
        return states, getattr(self, f"{name}_mask", None)


def encoder_outputs_of(value: Any) -> CaptioningEncoderOutput:
    """Convert the argument `encoder_outputs`, an output object or a tuple of one tensor, to `CaptioningEncoderOutput`.

    Raises:
        ValueError: a tuple has more entries, whose meaning is not known.
    """
    if isinstance(value, ModelOutput):
        return value  # type: ignore[return-value]
    if isinstance(value, (tuple, list)) and len(value) == 1:
        return CaptioningEncoderOutput(last_hidden_state=value[0])
    entries = f" of {len(value)} entries" if isinstance(value, (tuple, list)) else ""
    raise ValueError(
        f"`encoder_outputs` is a {type(value).__name__}{entries}, expected what the encoder returns: pass "
        "`model.get_encoder()(...)` as it is (return_dict=True)."
    )


@dataclass
class CaptioningDecoderOutput(ModelOutput):
    """Decoder output for text rows (B images x K captions each).

    Args:
        last_hidden_state: `[B * K, T, D]`.
        cache: the cache, with `use_cache=True`.
        hidden_states: tuple of `[B * K, T, D]`: the embeddings, then every layer.
        attentions: tuple of `[B * K, H, T, T]`.
        cross_attentions: tuple over layers; the shape is documented by the architecture.
        gates: tuple over layers; the content is documented by the architecture.
    """

    last_hidden_state: Tensor | None = None
    cache: Any = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    gates: tuple[Any, ...] | None = None


@dataclass
class CaptioningModelOutput(Seq2SeqModelOutput):
    """Outputs of encoder and decoder: `Seq2SeqModelOutput` with fusion gates and spatial relations of regions.

    An architecture that returns more (the locations of hard attention, for instance) has fields of the same names in
    subclasses of this class, of `CaptioningDecoderOutput` and of `CaptioningLMOutput`.

    Args:
        gates: of the decoder, see `CaptioningDecoderOutput`.
        encoder_gates, encoder_relations: of the encoder, see `CaptioningEncoderOutput`.
    """

    gates: tuple[Any, ...] | None = None
    encoder_gates: tuple[Any, ...] | None = None
    encoder_relations: Tensor | None = None


@dataclass
class CaptioningLMOutput(Seq2SeqLMOutput):
    """Outputs with logits and loss: `Seq2SeqLMOutput` of transformers with gates and relations."""

    gates: tuple[Any, ...] | None = None
    encoder_gates: tuple[Any, ...] | None = None
    encoder_relations: Tensor | None = None


class CaptioningPreTrainedModel(PreTrainedModel):
    """Base class of all models of captioners: initialisation, attention implementations, saving with code."""

    config: CaptioningConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    # Output classes of an architecture that returns more than the common fields.
    model_output_class: ClassVar[type[CaptioningModelOutput]] = CaptioningModelOutput
    lm_output_class: ClassVar[type[CaptioningLMOutput]] = CaptioningLMOutput
    # Whether a decoder runs no step for the padding after a caption in training.
    skips_padding = False
    # Class of the decoder's cache, where it is not that of transformers.
    cache_class: ClassVar[type[Cache] | None] = None
    # Called with the directory of every saved checkpoint. The package registers a function that adds the files with
    # which a checkpoint loads without the package.
    checkpoint_completions: ClassVar[list[Callable[[Any], None]]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the inputs that the configuration declares to the signature of `forward`."""
        super().__init_subclass__(**kwargs)
        names, listed = REGION_INPUTS + input_names(cls.declared_inputs()), inspect.signature(cls.forward).parameters
        if "inputs" in listed and not set(names) <= set(listed):
            cls.forward = declare_inputs(cls.forward, names)  # type: ignore[method-assign]

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Initialise a module unless all its tensors are loaded; also modules without tensors, for `_init_weights`.

        transformers skips such modules in code that is not its own, but `_init_weights` initialises the parts of
        layers and encoders by their parents.
        """
        if getattr(module, "_is_hf_initialized", False):  # every part initialises its own modules before its parent
            return
        tensors = chain(module.parameters(), module.buffers())
        are_loaded = (getattr(tensor, "_is_hf_initialized", False) for tensor in tensors)
        if next(are_loaded, False) and all(are_loaded):
            module._is_hf_initialized = True  # type: ignore[assignment]
            return
        super()._initialize_weights(module, is_custom_code=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as transformers does, and learned memory slots as the M2 code."""
        super()._init_weights(module)
        if getattr(module, "memory_slots", 0):  # of `MultiHeadAttention`
            module.reset_memory()

    @classmethod
    def declared_inputs(cls) -> dict[str, str]:
        """Return the inputs that the configuration declares for vision model, encoder and decoder, name to layout."""
        config = cls.config_class or CaptioningConfig
        return {**config.vision_inputs, **config.encoder_inputs, **config.decoder_inputs}

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """Return True, which transformers would guess from the source file of the architecture."""
        return True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return cls.cache_class is None

    def set_attn_implementation(self, attn_implementation: str | dict[str, Any], **kwargs: Any) -> None:
        """Set the attention implementation as in transformers; parts that lack it use eager attention."""
        requested: dict[str, Any] = {"": attn_implementation}
        of_vision: Any = attn_implementation
        if isinstance(attn_implementation, dict):
            requested, of_vision = dict(attn_implementation), attn_implementation.get("vision_config")
        backbone = next((part for part in self.modules() if isinstance(part, VisionBackbone)), None)
        if backbone is not None and isinstance(of_vision, str):
            requested["vision_config"] = supported_attentions(backbone.auto_class, backbone.model.config, of_vision)
        super().set_attn_implementation(requested, **kwargs)
        if isinstance(attn_implementation, dict):
            return
        for name in self.config.sub_configs.keys() - {"vision_config"}:
            if (part := getattr(self.config, name)) is not None:  # of no submodel, about which transformers would warn
                part._attn_implementation_internal = self.config._attn_implementation

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, **kwargs: Any) -> None:
        """Save as in transformers, with the code that the Auto classes need where this package is not installed."""
        if self.can_generate() and any(
            getattr(self.generation_config, name, None) is not None for name in SEARCH_OPTIONS
        ):
            self.generation_config._from_model_config = False  # so marked, it would lose these entries when loaded
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)
        is_adapter = getattr(self, "_hf_peft_config_loaded", False)  # without configuration and weights of the model
        for complete in self.checkpoint_completions if is_main_process and not is_adapter else ():
            complete(save_directory)


class CaptioningEncoder(CaptioningPreTrainedModel):
    """Vision backbone and visual encoder, which `generate()` runs once per image.

    A subclass implements `encode_regions` and ends its `__init__` with `self.post_init()`.
    """

    def __init__(self, config: CaptioningConfig) -> None:
        super().__init__(config)
        self.vision = None if config.vision_config is None else self.make_vision(config)

    @staticmethod
    def make_vision(config: CaptioningConfig) -> VisionBackbone:
        """Build the vision part, a backbone or a detector."""
        if not config.has_detector:
            return VisionBackbone(config)
        from .layers_detector import VisionDetector  # captioners of grids are loaded without it

        return VisionDetector(config)

    @property
    def input_dtype(self) -> torch.dtype:
        """Data type of the encoder's parameters; the default data type if it has none."""
        return next((parameter.dtype for parameter in self.parameters()), torch.get_default_dtype())

    def get_region_features(
        self,
        pixel_values: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_mask: Tensor | None = None,
        view_mask: Tensor | None = None,
        region_views: Tensor | None = None,
        **vision_inputs: Tensor,
    ) -> RegionFeatures:
        """Return checked regions: those of images (`pixel_values`), or `region_features` themselves.

        Args:
            pixel_values: `[B, C, H, W]`, or several views of each image `[B, V, C, H, W]`.
            region_features: `[B, R, D]`, instead of `pixel_values`.
            region_boxes: `[B, R, 4]`, normalised xyxy.
            region_mask: `[B, R]`, True = a real region.
            view_mask: `[B, V]`, True = a real view of `pixel_values`; None: all are.
            region_views: `[B, R]`, the view that a region is in; None: there is one view.
            **vision_inputs: inputs that the vision part declares (`CaptioningConfig.vision_inputs`).

        Returns:
            The regions of each image. Several views give one set `[B, V * R, D]`, view after view, with boxes within
            each view and the number of the view in `region_views`.

        Raises:
            ValueError: both or neither are given, shapes or values are wrong, or there is no backbone for images.
        """
        if (pixel_values is None) == (region_features is None):
            given = "both" if pixel_values is not None else "neither"
            raise ValueError(f"Pass either `pixel_values` or `region_features`, got {given}.")
        if region_features is not None:
            regions = RegionFeatures(
                region_features=region_features.to(self.input_dtype),
                region_boxes=None if region_boxes is None else region_boxes.float(),
                region_mask=None if region_mask is None else region_mask.bool(),
                region_views=region_views,
            )
        else:
            if self.vision is None:
                stored = self.config.region_extractor
                attach = (
                    f" It reads features of {stored['name']}, which `attach_extractor` makes its part."
                    if stored
                    else ""
                )
                raise ValueError(
                    "This captioner has no vision model (`config.vision_config` is None): pass `region_features`, or "
                    f"build it with `from_pretrained_parts(vision_model=...)`.{attach}"
                )
            regions = regions_of_images(self.vision, pixel_values, view_mask, vision_inputs, self.input_dtype)
        if self.config.region_mask_rule == "explicit":
            regions = without_padding(regions)
        return check_regions(regions, self.config.region_feature_size)

    def load_vision_weights(self, vision_model: PreTrainedModel) -> None:
        """Copy weights and statistics from a vision model of the same configuration.

        Raises:
            ValueError: if a weight is missing, except those of a pooler, which regions do not depend on.
        """
        result = self.vision.model.load_state_dict(vision_model.state_dict(), strict=False)
        wrong = [name for name in result.missing_keys if "pooler" not in name] + result.unexpected_keys
        if wrong:
            raise ValueError(f"The vision model does not fit its configuration: {', '.join(wrong[:5])} ...")

    def _check_boxes(self, regions: RegionFeatures, inputs: Mapping[str, Tensor]) -> None:
        """Raise a `ValueError` if the configuration needs region boxes, but boxes and relations are missing."""
        needed = self.config.needs_region_boxes
        relations = [name for name, layout in self.config.encoder_inputs.items() if layout == "relation"]
        if not needed or regions.region_boxes is not None or any(name in inputs for name in relations):
            return
        instead = "".join(f", or `{name}` [images, regions, regions]" for name in relations)
        raise ValueError(f"{needed}: pass `region_boxes` [images, regions, 4] as well{instead}.")

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Encode checked regions; implemented by the architecture.

        The architecture adds a keyword argument for each input that its configuration declares for the encoder.
        """
        raise NotImplementedError

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        output_gates: bool = False,
        **inputs: Any,
    ) -> CaptioningEncoderOutput:
        """Encode images, views or region features.

        Args:
            pixel_values: `[B, C, H, W]`, see `get_region_features`.
            output_gates: return gates and relations, where the architecture has any.
            **inputs: what else `get_region_features` reads, and the inputs that the configuration declares for the
                encoder; those of the decoder are passed over.

        Raises:
            TypeError: an input is not declared.
            ValueError: see `get_region_features`; a declared input does not fit the images or regions; or boxes are
                missing that the configuration needs (relations between the regions, where declared, replace them).
        """
        config = self.config
        model_inputs = read_inputs(inputs, self)
        of_images = (*REGION_INPUTS, *input_names(config.vision_inputs))
        regions = self.get_region_features(
            pixel_values, **{name: model_inputs[name] for name in of_images if name in model_inputs}
        )
        encoder_inputs = {
            name: model_inputs[name] for name in input_names(config.encoder_inputs) if name in model_inputs
        }
        check_inputs(encoder_inputs, config.encoder_inputs, regions)
        self._check_boxes(regions, encoder_inputs)
        return self.encode_regions(
            regions,
            output_attentions=config.output_attentions if output_attentions is None else output_attentions,
            output_hidden_states=(
                config.output_hidden_states if output_hidden_states is None else output_hidden_states
            ),
            output_gates=output_gates,
            **encoder_inputs,
        )


class CaptioningModel(CaptioningPreTrainedModel):
    """Encoder and decoder without the language-modelling head. Subclasses set their two classes."""

    encoder_class: ClassVar[type[CaptioningEncoder]]
    decoder_class: ClassVar[type[CaptioningPreTrainedModel]]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder = self.make_encoder(config)
        self.decoder: Any = self.decoder_class(config)
        self.post_init()

    def make_encoder(self, config: Any) -> CaptioningEncoder:
        """Build the encoder."""
        return self.encoder_class(config)

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.decoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.decoder.set_input_embeddings(value)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Any = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        output_gates: bool = False,
        **inputs: Any,
    ) -> CaptioningModelOutput:
        """Encode images or regions (unless `encoder_outputs` are passed) and run the decoder.

        Args:
            pixel_values: `[B, C, H, W]`, see `CaptioningEncoder.get_region_features`.
            decoder_input_ids: `[B * K, T]`; the K captions of an image are consecutive rows.
            decoder_attention_mask: `[B * K, past + T]`, 1 = a real token.
            encoder_outputs: what the encoder returned for the B images.
            cache: a cache; use_cache: return one.
            output_gates: return the gates of every decoder layer, and gates and relations of the encoder.
            **inputs: what else `get_region_features` reads, and the inputs that the configuration declares.

        Raises:
            TypeError: an input is not declared.
            ValueError: no `decoder_input_ids`, or their number is not a multiple of the number of images.
        """
        model_inputs = read_inputs(inputs, self)
        if decoder_input_ids is None:
            raise ValueError("`decoder_input_ids` is missing: pass the caption so far, at least the begin token.")
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = (
            self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        )
        of_decoder = {
            name: model_inputs.pop(name) for name in input_names(self.config.decoder_inputs) if name in model_inputs
        }
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                pixel_values=pixel_values,
                output_attentions=output_attentions,
                output_hidden_states=output_hidden_states,
                output_gates=output_gates,
                return_dict=True,
                **model_inputs,
            )
        else:
            encoder_outputs = encoder_outputs_of(encoder_outputs)
        images, rows = encoder_outputs.last_hidden_state.shape[0], decoder_input_ids.shape[0]
        if rows % images:
            raise ValueError(f"{rows} rows of `decoder_input_ids` cannot be divided among {images} image(s).")
        decoded = self.decoder(
            decoder_input_ids,
            encoder_outputs,
            attention_mask=decoder_attention_mask,
            cache=cache,
            use_cache=self.config.use_cache if use_cache is None else use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            output_gates=output_gates,
            return_dict=True,
            **of_decoder,
        )
        if output_attentions and None in (decoded.cross_attentions or ()):
            logger.warning_once(
                f"`output_attentions=True` gives None with {self.config._attn_implementation!r} attention, which "
                'computes no weights. Call `model.set_attn_implementation("eager")` first.'
            )
        renamed = {"hidden_states": "decoder_hidden_states", "attentions": "decoder_attentions"}
        return self.model_output_class(
            **{renamed.get(name, name): value for name, value in decoded.items()},
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            encoder_gates=encoder_outputs.get("gates") if output_gates else None,
            encoder_relations=encoder_outputs.get("relations") if output_gates else None,
        )


class CaptioningForConditionalGeneration(
    CaptioningPreTrainedModel, CaptionLossMixin, CaptionGenerationMixin, ExplanationMixin
):
    """Captioner with a language-modelling head. Subclasses set the class of the model without it."""

    model_class: ClassVar[type[CaptioningModel]]
    head_bias: ClassVar[bool] = False
    # Whether the captioner was built from parts and not trained since: its captions are random words. The trainers
    # set it to False after their first step; a training loop of your own does the same.
    is_untrained = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head: nn.Module = self.make_head(config)
        self.post_init()

    def make_head(self, config: Any) -> nn.Linear:
        """Build the projection to the vocabulary."""
        return nn.Linear(config.hidden_size, config.vocab_size, bias=self.head_bias)

    @property
    def captions_depend_on_batch(self) -> bool:
        """True if a caption depends on the other images of its batch, as in some released code."""
        return False

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the gates of the last decoder layer for each token by name, averaged over features.

        Args:
            outputs: outputs of the model, with `output_gates=True`.

        Returns:
            Tensors `[B * K, T]` in [0, 1] by the name of the gate; none where the architecture has no gates.
        """
        return {}

    @property
    def has_visual_scores(self) -> bool:
        """True if the model has `visual_scores(sequences, **images)`, the share of the image in each token."""
        return False

    def get_region_features(
        self, pixel_values: Tensor, view_mask: Tensor | None = None, **vision_inputs: Tensor
    ) -> RegionFeatures:
        """Compute the regions of images `[B, C, H, W]`, which can be stored and passed instead of images.

        For several views `[B, V, C, H, W]` see `CaptioningEncoder.get_region_features`.
        """
        return self.model.encoder.get_region_features(pixel_values, view_mask=view_mask, **vision_inputs)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels `[B, T]` right to decoder inputs: the start token, then all labels but the last.

        -100 becomes the padding id.
        """
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)  # [B, T]
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        output_gates: bool = False,
        logits_to_keep: int = 0,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **inputs: Any,
    ) -> CaptioningLMOutput:
        """Compute the logits of the next tokens and, with `labels`, the loss.

        Args:
            pixel_values: `[B, C, H, W]` images, or several views per image `[B, V, C, H, W]` with view_mask `[B, V]`.
            decoder_input_ids: `[B * K, T]`; default: `labels`, shifted right.
            decoder_attention_mask: `[B * K, past + T]`, 1 = a real token.
            labels: `[B * K, T]`, the tokens that follow (end token included), -100 where nothing is to be predicted.
            logits_to_keep: only the logits of the last positions; 0 = all.
            return_logits: with `labels` in training, logits are computed at real target positions only and not
                returned, unless this is True. Everywhere else they are returned.
            num_items_in_batch: number of real target tokens over all accumulated batches; the loss is this batch's
                share of theirs, so that they add up to that of one large batch.
            **inputs: `region_features` `[B, R, D]`, instead of `pixel_values`, with `region_boxes` `[B, R, 4]`
                (normalised xyxy) and `region_mask` `[B, R]`, see `CaptioningEncoder.get_region_features`; and the
                inputs that the configuration declares.

        Returns:
            `CaptioningLMOutput` with `loss`, `logits` `[B * K, T, V]`, the cache and the requested records.

        Raises:
            TypeError: an input is not declared.
            ValueError: see `CaptioningModel.forward` and `CaptioningEncoder.get_region_features`.
        """
        given = read_inputs(inputs, self)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            use_cache = False if use_cache is None else use_cache  # teacher forcing reads all tokens at once
        if self.training and labels is not None and decoder_attention_mask is None and use_cache is False:
            decoder_attention_mask = self.tokens_of_loss(labels)
        outputs = self.model(
            pixel_values=pixel_values,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            use_cache=use_cache,
            output_attentions=True if labels is not None and self.loss_reads_attentions else output_attentions,
            output_hidden_states=output_hidden_states,
            output_gates=output_gates,
            return_dict=True,
            **given,
        )
        logits, loss = None, None
        if return_logits or labels is None or (return_logits is None and not self.training):
            logits = self.lm_head(outputs.last_hidden_state[:, -logits_to_keep:])
        if labels is not None:
            # Cut logits do not line up with the labels, so the loss computes its own.
            loss = self.caption_loss(outputs, labels, logits if logits_to_keep == 0 else None, num_items_in_batch)
        recorded = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        if not (self.config.output_attentions if output_attentions is None else output_attentions):
            recorded.pop("cross_attentions", None)
        return self.lm_output_class(loss=loss, logits=logits, **recorded)

    @classmethod
    def from_pretrained_parts(cls, vision_model: Any = None, tokenizer: Any = None, **config_fields: Any) -> Any:
        """Build a new captioner with a pretrained vision model.

        Args:
            vision_model: see `load_vision_model`; None for a captioner of region features.
            tokenizer: the captioner's tokenizer; the configuration takes its size and its begin, end and padding ids.
            config_fields: fields of the architecture's configuration.

        Returns:
            The captioner in evaluation mode; all parts but the vision model are newly initialised.
        """
        from .loading_vision import load_vision_model_for  # a saved captioner is loaded without it

        vision, fields = load_vision_model_for(vision_model, config_fields)
        if tokenizer is not None:
            ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
            fields = {"vocab_size": len(tokenizer)} | ids | fields
        model = cls(cls.config_class(**fields))
        if vision is not None:
            model.get_encoder().load_vision_weights(vision)
        model.is_untrained = True
        return model.eval()
