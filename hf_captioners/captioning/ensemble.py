"""Ensembles: several captioners that choose every word together."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils import ModelOutput

from hf_captioners.loading import load_captioner
from hf_captioners.modeling.generation_captioning import CaptionGenerationMixin
from hf_captioners.modeling.inputs_captioning import IMAGE_INPUTS, input_names
from hf_captioners.modeling.modeling_captioning import CaptioningLMOutput, CaptioningPreTrainedModel

# What members must agree in, since they read and write the same tokens.
SHARED_FIELDS = (
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "token_mask_rule",
)


@dataclass
class EnsembleEncoderOutput(ModelOutput):
    """Encoder outputs of all members.

    Args:
        last_hidden_state: `[B, R, D]` of the first member.
        members: the outputs of each member.
    """

    last_hidden_state: Tensor | None = None
    members: tuple[Any, ...] | None = None


class EnsembleCache(Cache):
    """Caches of all members of an ensemble, created by each member in the first decoding step."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.caches: tuple[Any, ...] = ()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of cached tokens."""
        return self.caches[0].get_seq_length() if self.caches else 0

    @property
    def is_compileable(self) -> bool:
        """False: caches grow with the caption, which `torch.compile` does not support."""
        return False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the cached text rows by the beam indices `beam_idx` `[B * K]`."""
        for cache in self.caches:
            cache.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every cached text row."""
        for cache in self.caches:
            cache.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the given text rows of the caches."""
        for cache in self.caches:
            cache.batch_select_indices(indices)

    def select_images(self, images: Tensor) -> None:
        """Keep only the encoder outputs of the given images; `batch_select_indices` does this for text rows."""
        for cache in self.caches:
            if hasattr(cache, "select_images"):
                cache.select_images(images)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens of every text row from the caches."""
        for cache in self.caches:
            cache.crop(tokens_to_remove)

    def reset(self) -> None:
        """Clear the caches."""
        self.caches = ()


class EnsembleEncoder(nn.Module):
    """Runs the encoder of every member on the inputs that it reads."""

    main_input_name = "pixel_values"

    def __init__(self, members: nn.ModuleList) -> None:
        super().__init__()
        self.members: Any = members

    def forward(self, **kwargs: Any) -> EnsembleEncoderOutput:
        """Encode images or regions, see `CaptioningEncoder.forward`."""
        outputs = []
        for member in self.members:
            foreign = {name for other in self.members for name in input_names(other.declared_inputs())}
            foreign -= set(input_names(member.declared_inputs()))
            inputs = {name: value for name, value in kwargs.items() if name not in foreign}
            outputs.append(member.get_encoder()(**inputs))
        return EnsembleEncoderOutput(last_hidden_state=outputs[0].last_hidden_state, members=tuple(outputs))


class CaptionerEnsemble(CaptioningPreTrainedModel, CaptionGenerationMixin):
    """Several captioners whose next word has the weighted mean of their probabilities.

    `generate()` is that of a captioner, with the settings of the first member. The rule is that of
    ImageCaptioning.pytorch (and ZoDIAC); the M2 code averages log-probabilities instead.

    ```python
    from hf_captioners import CaptionerEnsemble, load_captioner

    models, processors = zip(*(load_captioner(name) for name in ("run_0", "run_1")))
    ensemble = CaptionerEnsemble(models)
    tokens = ensemble.generate(**processors[0](images=image, return_tensors="pt"))
    ```

    Args:
        members: captioners of this library with one vocabulary.
        weights: a positive weight for each member; they are divided by their sum. Default: equal ones.

    Raises:
        ValueError: there is no member, the vocabularies differ, or the weights are not positive numbers.
    """

    cache_class = EnsembleCache

    def __init__(self, members: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        members = list(members)
        require_alike(members)
        super().__init__(copy.deepcopy(members[0].config))
        self.members: Any = nn.ModuleList(members)
        self.weights: Tensor
        self.register_buffer("weights", normalized(weights, len(members)), persistent=False)
        self.generation_config = copy.deepcopy(members[0].generation_config)
        self.name_or_path = ", ".join(str(member.name_or_path) for member in members)
        self._is_stateful = any(member._is_stateful for member in members)
        self.eval()

    @property
    def device(self) -> torch.device:
        """Device of the first member."""
        return self.members[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the first member's weights."""
        return self.members[0].dtype

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        """Return one encoder that runs the encoders of all members."""
        return EnsembleEncoder(self.members)

    def get_output_embeddings(self) -> nn.Module:
        """Return the first member's projection to the vocabulary."""
        return self.members[0].get_output_embeddings()

    def image_input_names(self) -> tuple[str, ...]:
        """Names of all members' model inputs that have one row per image."""
        return tuple(dict.fromkeys(name for member in self.members for name in member.image_input_names()))

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        accepted = {*self.image_input_names(), *IMAGE_INPUTS}
        super()._validate_model_kwargs({name: value for name, value in model_kwargs.items() if name not in accepted})

    @property
    def captions_depend_on_batch(self) -> bool:
        """True if any member's captions depend on the batch."""
        return any(member.captions_depend_on_batch for member in self.members)

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Prepare the generation configuration; members whose captions depend on the batch warn or disable caches."""
        cached = {name: kwargs[name] for name in ("use_cache", "cache") if name in kwargs}
        for member in self.members:
            if member.captions_depend_on_batch and not member._prepare_generation_config(None, **cached)[0].use_cache:
                kwargs["use_cache"] = False
        return super()._prepare_generation_config(generation_config, **kwargs)

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Prepare the inputs of a decoding step as in a single captioner, with the token mask of each member."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        default, masks = inputs.get("decoder_attention_mask"), [each.decoding_mask(input_ids) for each in self.members]
        return inputs | {"decoder_attention_mask": tuple(default if mask is None else mask for mask in masks)}

    def forward(
        self,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | tuple[Tensor | None, ...] | None = None,
        encoder_outputs: EnsembleEncoderOutput | None = None,
        cache: EnsembleCache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> CaptioningLMOutput:
        """Return the logits `[B * K, T, V]`: the log of the members' mean probability.

        Args:
            decoder_input_ids: `[B * K, T]`.
            decoder_attention_mask: `[B * K, past + T]`, 1 = a real token; or one for each member.
            encoder_outputs: of the members; default: of the images or regions in `inputs`.
            cache: the caches of the members; use_cache: return them.
            return_dict: has no effect.
            **inputs: images or regions, and other inputs that a member declares.
        """
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(**inputs)
        assert encoder_outputs.members is not None
        use_cache = bool(use_cache or cache is not None)
        cache = EnsembleCache() if cache is None else cache
        masks = decoder_attention_mask
        if not isinstance(masks, tuple):
            masks = (masks,) * len(self.members)
        total, caches = None, []
        for index, (member, encoded) in enumerate(zip(self.members, encoder_outputs.members, strict=True)):
            out = member(
                encoder_outputs=encoded,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=masks[index],
                cache=cache.caches[index] if cache.caches else None,
                use_cache=use_cache,
                return_dict=True,
            )
            caches.append(out.cache)
            share = out.logits.float().log_softmax(-1) + self.weights[index].log()
            total = share if total is None else torch.logaddexp(total, share)
        cache.caches = tuple(caches) if use_cache else ()
        return CaptioningLMOutput(logits=total, cache=cache if use_cache else None)


def normalized(weights: Sequence[float] | None, count: int) -> Tensor:
    """Return weights `[count]` of ensemble members that sum to 1.

    Raises:
        ValueError: their number differs, or one is not a positive number.
    """
    values = torch.ones(count) if weights is None else torch.tensor([float(weight) for weight in weights])
    if len(values) != count or not bool((values > 0).all()) or not bool(values.isfinite().all()):
        raise ValueError(f"`weights` is {values.tolist()}, expected {count} positive numbers, one for each captioner.")
    return values / values.sum()


def require_alike(members: Sequence[Any]) -> None:
    """Check that captioners can be members of an ensemble.

    Raises:
        ValueError: there is none, one is not a captioner of this library, or they differ in their tokens.
    """
    if not members:
        raise ValueError("An ensemble needs at least one captioner, got none.")
    for member in members:
        if not isinstance(member, CaptionGenerationMixin):
            raise ValueError(f"A member is a {type(member).__name__}, expected a captioner of this library.")
        for field in SHARED_FIELDS:
            values = [getattr(each.config, field) for each in (members[0], member)]
            if values[0] != values[1]:
                raise ValueError(
                    f"{members[0].name_or_path or 'The first captioner'} has `{field}={values[0]!r}` and "
                    f"{member.name_or_path or 'another one'} {values[1]!r}: an ensemble needs captioners with one "
                    "vocabulary, such as runs of one recipe with different seeds."
                )


def load_ensemble(
    sources: Sequence[str], weights: Sequence[float] | None = None, **options: Any
) -> tuple[CaptionerEnsemble, Any]:
    """Load captioners as an ensemble, and the processor of the first.

    Args:
        sources: names or directories of captioners.
        weights: see `CaptionerEnsemble`.
        **options: see `load_captioner`.

    Raises:
        ValueError: vocabularies or image preparations differ, or a captioner cannot be read.
    """
    models, processors = zip(*(load_captioner(source, **options) for source in sources), strict=True)
    for source, processor in zip(sources, processors, strict=True):
        if processor.tokenizer.get_vocab() != processors[0].tokenizer.get_vocab():
            raise ValueError(
                f"{source} has another vocabulary than {sources[0]}: an ensemble needs captioners with one "
                "vocabulary, such as runs of one recipe with different seeds."
            )
        if processor.image_processor.to_dict() != processors[0].image_processor.to_dict():
            raise ValueError(f"{source} prepares images otherwise than {sources[0]}; an ensemble reads the same ones.")
    return CaptionerEnsemble(models, weights), processors[0]
