"""Generation of captions: beam searches of the papers, one encoding per image, attention and relevance maps."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput
from transformers.utils import ModelOutput

from .configuration_captioning import require_choice
from .inputs_captioning import IMAGE_INPUTS, input_names, visible_tokens
from .layers_attention import CaptionCache, gradient_of_weights
from .layers_packed import PACKING, can_pack, generating, pack, packed_as, unpack
from .search_captioning import (
    BOOKKEEPINGS,
    CaptionBeams,
    GroupPoolBeams,
    Hypotheses,
    NextTokens,
    NoBadEndings,
    NoEarlyEnd,
    NoImmediateRepetition,
    TrigramPenalty,
    best_of_groups,
    with_one_min_length,
)


@dataclass
class CaptionBeamOutput(GenerateBeamEncoderDecoderOutput):
    """Beam search output of transformers, and the log-probability of every generated token.

    Args:
        sequences: `[B * n, prompt + L]`, padded after the end token.
        sequences_scores: `[B * n]`, sum of the log-probabilities including that of the end token, normalised as the
            bookkeeping requires.
        beam_indices: `[B * n, L]`, the row (of B * K) that each token extended; -1 after the end.
        token_logprobs: `[B * n, L]`, log-probability that each generated token was chosen by; 0 after the end.
        model_logprobs: `[B * n, L]`, the same before temperature and other processing of logits.
    """

    token_logprobs: Tensor | None = None
    model_logprobs: Tensor | None = None


@dataclass
class CaptionSampleOutput(GenerateEncoderDecoderOutput):
    """Output of greedy decoding or sampling in transformers, and the log-probability of every generated token.

    Args:
        model_logprobs: `[rows, L]`, before temperature and other processing of logits; 0 after the end.
    """

    model_logprobs: Tensor | None = None


def check_search_options(config: Any) -> None:
    """Raise a `ValueError` if an option of `SEARCH_OPTIONS` has a wrong value or excludes another one."""
    require_choice("bookkeeping", config.bookkeeping, tuple(BOOKKEEPINGS))
    require_choice("pool_length_penalty", config.pool_length_penalty, (None, "avg", "wu"))
    if config.bookkeeping != "transformers" and config.do_sample and config.num_beams > 1:
        raise ValueError(
            f"`bookkeeping={config.bookkeeping!r}` is a deterministic search; pass `do_sample=False` or "
            '`bookkeeping="transformers"`.'
        )
    if config.pool_groups < 1 or config.num_beams % config.pool_groups:
        raise ValueError(
            f"`pool_groups` is {config.pool_groups}, expected a number that divides `num_beams={config.num_beams}`."
        )
    if config.pool_temperature <= 0:
        raise ValueError(f"`pool_temperature` is {config.pool_temperature}, expected more than 0.")
    for name, default in SEARCH_OPTIONS.items():
        if name.startswith("pool_") and getattr(config, name) != default and config.bookkeeping != "pool":
            raise ValueError(f'`{name}` needs `bookkeeping="pool"`, got {config.bookkeeping!r}.')


# Options of `generate()` beside those of transformers, and their defaults.
SEARCH_OPTIONS: dict[str, Any] = {
    "bookkeeping": "transformers",
    "pool_length_penalty": None,
    "pool_length_alpha": 0.9,
    "pool_groups": 1,
    "pool_diversity": 0.5,
    "pool_temperature": 1.0,
    "no_immediate_repetition": False,
    "bad_ending_ids": None,
    "trigram_penalty": 0.0,
    "return_cache": True,
}


# Processors of transformers that only forbid tokens, whatever the batch is: they may precede the normalisation.
FORBIDDING_PROCESSORS = {
    "SuppressTokensLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "NoBadWordsLogitsProcessor",
}
# Criteria that judge every row alone.
ROW_CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria", "MaxTimeCriteria", "StopStringCriteria"}


def only_lower_scores(processors: Any) -> bool:
    """Return True if all logits processors only forbid or lower tokens, by the tokens of the same row.

    They may then be applied to logits as well as to log-probabilities, and scores of hypotheses never rise.
    """
    caption_processors = (NoEarlyEnd, NoImmediateRepetition, NoBadEndings, TrigramPenalty)
    return all(
        type(processor) in caption_processors or type(processor).__name__ in FORBIDDING_PROCESSORS
        for processor in processors
    )


def stop_rows_separately(criteria: Any) -> bool:
    """Return True if no stopping criterion compares rows with each other."""
    return all(type(criterion).__name__ in ROW_CRITERIA for criterion in criteria)


def caption_logits_processors(generation_config: Any, prompt_length: int) -> list[LogitsProcessor]:
    """Return the logits processors of captioning papers that a generation configuration switches on.

    Args:
        generation_config: read are `no_immediate_repetition`, `bad_ending_ids`, `trigram_penalty` and the end ids.
        prompt_length: length of the rows before the first generated token.
    """
    processors: list[LogitsProcessor] = []
    if generation_config.no_immediate_repetition:
        processors.append(NoImmediateRepetition(prompt_length))
    if generation_config.bad_ending_ids:
        ends = generation_config._eos_token_tensor.flatten().tolist()
        processors.append(NoBadEndings(list(generation_config.bad_ending_ids), ends, prompt_length))
    if generation_config.trigram_penalty:
        processors.append(TrigramPenalty(generation_config.trigram_penalty, prompt_length))
    return processors


class CaptionGenerationMixin(GenerationMixin):
    """Mixin with `generate()` of transformers for captioners, and the beam searches of captioning papers.

    `generate(region_features=...)` works, and encoder states keep one row per image. Further options, each also an
    entry of the generation configuration that is saved with the model:

    - `bookkeeping`: what a beam search does with finished hypotheses: `"transformers"` (default), `"live"` (M2,
      VisualGPT), `"pool"` (the ImageCaptioning.pytorch family), `"shrinking"` or `"shrinking_finished"` (Show, Attend
      and Tell: its program, its re-implementation).
    - `pool_length_penalty` (None, `"avg"` or `"wu"`) with `pool_length_alpha`, `pool_groups` with `pool_diversity`:
      see `PoolBeams` and `GroupPoolBeams`. `pool_temperature` divides the log-probabilities of every step but the
      first. They need `bookkeeping="pool"`.
    - `return_cache` (True): with `return_dict_in_generate`, return the cache. Without it, and without other records of
      every step, images leave the batch of a beam search when their captions are known.
    - `no_immediate_repetition`, `bad_ending_ids` and `trigram_penalty`: see `NoImmediateRepetition`, `NoBadEndings`
      and `TrigramPenalty`.
    """

    # Whether outputs of `generate()` have `model_logprobs`.
    returns_model_logprobs = True

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate token ids as in transformers; uses packed weights after `optimize_for_generation`."""
        with generating(self):  # type: ignore[arg-type]
            return super().generate(*args, **kwargs)

    def optimize_for_generation(self, weights: str = "float32", drop_plain: bool = False) -> None:
        """Pack the weights of linear layers in oneDNN's own layout, so that `generate()` on a CPU is faster.

        Nothing else changes: training, saving and copies of the model use the plain weights. A copy is made again
        when its weight has changed. Without a CPU or oneDNN, the captioner generates as before, and says so in the
        log.

        Args:
            weights: number format of the copies: `"float32"` (equal results up to rounding), `"float16"` (inputs and
                sums in float32), `"bfloat16"`, or `"int8"`, with one scale for each output and for each row of the
                input.
            drop_plain: free the plain weights that nothing else reads. The captioner then only generates: it can be
                neither trained, saved, copied nor restored.

        Raises:
            ValueError: `weights` is unknown, or the captioner's weights are not float32.
            RuntimeError: the plain weights were dropped before.
        """
        pack(self, weights, drop_plain)  # type: ignore[arg-type]

    @property
    def packings(self) -> tuple[str, ...]:
        """Number formats in which this machine can compute with packed weights, see `optimize_for_generation`."""
        return tuple(weights for weights in PACKING if can_pack(weights))

    @property
    def packed_weights(self) -> str | None:
        """Number format of the packed weights, see `optimize_for_generation`; None if none are packed."""
        return packed_as(self)  # type: ignore[arg-type]

    def restore_weights(self) -> None:
        """Undo `optimize_for_generation`.

        Raises:
            RuntimeError: the plain weights were dropped.
        """
        unpack(self)  # type: ignore[arg-type]

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        search_options = {name: kwargs.pop(name) for name in SEARCH_OPTIONS if name in kwargs}
        prepared, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, default in SEARCH_OPTIONS.items():
            value = search_options.get(name)
            value = getattr(prepared, name, None) if value is None else value
            setattr(prepared, name, default if value is None else value)
        check_search_options(prepared)
        if prepared.guidance_scale not in (None, 1):
            raise ValueError(
                f"`guidance_scale` is {prepared.guidance_scale}, and captioners have no classifier-free guidance: "
                "leave it out."
            )
        return prepared, model_kwargs

    def _get_logits_processor(
        self, generation_config: Any, input_ids_seq_length: int | None = None, **kwargs: Any
    ) -> LogitsProcessorList:
        """Return the logits processors of transformers, then those of captioning papers."""
        defaults = super()._get_logits_processor(generation_config, input_ids_seq_length, **kwargs)
        processors = with_one_min_length(defaults)
        processors.extend(caption_logits_processors(generation_config, input_ids_seq_length or 1))
        return processors

    def _prepare_model_inputs(
        self, inputs: Tensor | None, bos_token_id: Any, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, str | None, dict[str, Any]]:
        """Accept region features as inputs; transformers would pass begin tokens to the encoder instead."""
        if inputs is not None and inputs.ndim == 3:  # assisted decoding passes the inputs of this model by position
            inputs, model_kwargs = None, model_kwargs | {"region_features": inputs}
        has_images = inputs is not None or model_kwargs.get("pixel_values") is not None
        if model_kwargs.get("encoder_outputs") is not None:
            states = model_kwargs["encoder_outputs"][0]
            return states, self.main_input_name, model_kwargs
        if model_kwargs.get("region_features") is not None:
            if has_images:
                raise ValueError("Pass either `pixel_values` or `region_features` to `generate`, not both.")
            model_kwargs = {key: value for key, value in model_kwargs.items() if key != "pixel_values"}
            return model_kwargs.pop("region_features"), "region_features", model_kwargs
        if not has_images:
            raise ValueError(
                "`generate` needs `pixel_values`, `region_features` or `encoder_outputs`, got none. The pipeline "
                '"image-text-to-text" needs an image and a text, which may be empty: pipeline(images=image, text="").'
            )
        model_kwargs.pop("region_features", None)
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)

    def image_input_names(self) -> tuple[str, ...]:
        """Return the names of the inputs with one row per image, declared ones included."""
        config = self.config
        return IMAGE_INPUTS + input_names(config.vision_inputs) + input_names(config.encoder_inputs)

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Repeat the text rows for beams or samples; images are not repeated."""
        of_images = {name: model_kwargs.pop(name) for name in self.image_input_names() if name in model_kwargs}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=False, input_ids=input_ids, **model_kwargs
        )
        return input_ids, model_kwargs | of_images

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        cache = model_kwargs.get("cache")
        if isinstance(cache, EncoderDecoderCache):  # that of transformers reorders the images too
            model_kwargs["cache"] = CaptionCache.of(cache)
            model_kwargs["cache"]._is_user_defined = is_of_caller(cache)
        elif cache is None and self.cache_class is not None and generation_config.use_cache is not False:
            model_kwargs["cache"] = self.cache_class()

    def _prefill(
        self, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any], is_first_iteration: bool = True
    ) -> Any:
        """Run the first decoding step once per image if its K prompts are equal, and repeat the outputs K times."""
        rows = self._rows_of_distinct_prompts(input_ids, generation_config, model_kwargs)
        if rows == 1 or not is_first_iteration:
            return super()._prefill(input_ids, generation_config, model_kwargs, is_first_iteration)
        images = set(self.image_input_names())
        few = {
            name: value[::rows] if isinstance(value, Tensor) and name not in images and value.ndim else value
            for name, value in model_kwargs.items()
        }
        outputs = super()._prefill(input_ids[::rows], generation_config, few, is_first_iteration)
        if outputs.cache is not None:
            outputs.cache.batch_repeat_interleave(rows)
        for name in ("logits", "decoder_hidden_states", "decoder_attentions", "cross_attentions"):
            if outputs.get(name) is not None:
                outputs[name] = _repeated(outputs[name], rows)
        return outputs

    def _rows_of_distinct_prompts(
        self, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any]
    ) -> int:
        """Return K if the K prompts of every image are equal and no token is cached yet, else 1."""
        cache, encoded = model_kwargs.get("cache"), model_kwargs.get("encoder_outputs")
        if encoded is None or generation_config.prefill_chunk_size is not None:
            return 1
        if cache is not None and (cache.get_seq_length() or cache.is_compileable):
            return 1  # text is cached already, or rows have fixed places in static memory
        images = encoded[0].shape[0]
        rows = input_ids.shape[0] // images
        if rows == 1 or input_ids.shape[0] % images:
            return 1
        mask = model_kwargs.get("decoder_attention_mask")
        return rows if all(_equal_rows(values, rows) for values in (input_ids, mask) if values is not None) else 1

    def decoding_mask(self, input_ids: Tensor) -> Tensor | None:
        """Return the mask of the tokens `[B * K, T]` so far; None: the caller's mask is used, if any."""
        return visible_tokens(self.config, input_ids)

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the model inputs of a decoding step as in transformers, with the mask of `decoding_mask`."""
        visible = self.decoding_mask(input_ids)
        if visible is not None:
            kwargs["decoder_attention_mask"] = visible
        return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)

    def _sample(
        self, input_ids: Tensor, logits_processor: Any, *args: Any, generation_config: Any, **kwargs: Any
    ) -> Any:
        """Decode greedily or sample as in transformers, and return the log-probability of every token."""
        if not generation_config.return_dict_in_generate:
            return super()._sample(input_ids, logits_processor, *args, generation_config=generation_config, **kwargs)
        reader = ModelLogprobs()
        processors = LogitsProcessorList([reader, *logits_processor])
        output = super()._sample(input_ids, processors, *args, generation_config=generation_config, **kwargs)
        model_logprobs = reader.of(output.sequences)
        if (ends := generation_config._eos_token_tensor) is not None:
            is_end = torch.isin(output.sequences[:, -model_logprobs.shape[1] :], ends).long()
            model_logprobs = model_logprobs.masked_fill(is_end.cumsum(-1) - is_end > 0, 0.0)
        return CaptionSampleOutput(**output, model_logprobs=model_logprobs)

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Run the beam search of `generation_config.bookkeeping`, or that of transformers for sampling and low memory.

        The loop of `_search` runs the model, and `CaptionBeams` decides.
        """
        if generation_config.do_sample or generation_config.low_memory:
            return super()._beam_search(
                input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, **model_kwargs
            )
        search = (logits_processor, stopping_criteria, generation_config, synced_gpus)
        if generation_config.pool_groups > 1:
            result, record = self._search_in_groups(input_ids, *search, model_kwargs)
        else:
            beams = BOOKKEEPINGS[generation_config.bookkeeping](input_ids, generation_config)
            record = self._search(beams, *search, model_kwargs)
            result = beams.finish_all()
        if not generation_config.return_dict_in_generate:
            return result.tokens
        return self._beam_output(result, record, generation_config, model_kwargs)

    def _search(
        self,
        beams: CaptionBeams,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool,
        model_kwargs: dict[str, Any],
    ) -> "StepRecord":
        """Run decoding steps until the beam search ends; return their records and update `model_kwargs` in place."""
        record, input_ids = StepRecord(generation_config), beams.rows()
        beams.may_leave = (
            record.is_empty()
            and (not generation_config.return_dict_in_generate or not generation_config.return_cache)
            and only_lower_scores(logits_processor)
            and stop_rows_separately(stopping_criteria)
            and not (synced_gpus or self.captions_depend_on_batch)
            and not (is_of_caller(model_kwargs.get("cache")) or generation_config.cache_implementation)
        )
        outputs, is_first = self._prefill(input_ids, generation_config, model_kwargs, is_first_iteration=True), True
        while True:
            model_kwargs |= self._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=True)
            temperature = 1.0 if is_first else generation_config.pool_temperature
            next_tokens = self._next_tokens(beams.rows(), outputs, logits_processor, temperature, record)
            is_first = False
            del outputs  # frees the logits of the first step, which has all tokens of the prompt
            beams.step(next_tokens)
            del next_tokens
            beams.end_rows(stopping_criteria(beams.candidate_rows(), record.scores))
            has_ended, done = beams.read_done()
            if not self._has_unfinished_sequences(has_ended, synced_gpus, device=input_ids.device):
                return record
            if (cache := model_kwargs.get("cache")) is not None:
                cache.reorder_cache(beams.parents)
            if beams.may_leave and done.any():
                self._keep_images(model_kwargs, beams.drop_images(done), len(done), beams.num_beams)
            model_inputs = self.prepare_inputs_for_generation(
                beams.rows(), next_sequence_length=1 if model_kwargs["use_cache"] else None, **model_kwargs
            )
            outputs = self(**model_inputs, return_dict=True)

    def _next_tokens(
        self, rows: Tensor, outputs: Any, logits_processor: Any, temperature: float, record: "StepRecord"
    ) -> NextTokens:
        """Return the scores of each row's next token, in as few passes over the vocabulary as possible."""
        logits = outputs.logits[:, -1].float()
        if temperature == 1 and record.scores is None and only_lower_scores(logits_processor):
            normalizer = logits.logsumexp(-1, keepdim=True)
            record.add(outputs, logits, logits)
            if not logits_processor:
                return NextTokens(logits, normalizer)
            return NextTokens(logits_processor(rows, logits), normalizer, logits, normalizer)
        of_model = logits.log_softmax(-1)
        log_probs = of_model if temperature == 1 else (of_model / temperature).log_softmax(-1)
        # Processors of others may change what they are given.
        log_probs = logits_processor(rows, log_probs.clone() if logits_processor else log_probs)
        record.add(outputs, logits, log_probs)
        return NextTokens(log_probs, None, of_model)

    def _keep_images(self, model_kwargs: dict[str, Any], images: Tensor, before: int, beams: int) -> None:
        """Select the images that are still searched, and their `beams` text rows, in the inputs and the cache."""
        of_images = set(self.image_input_names())
        rows = (images[:, None] * beams + torch.arange(beams, device=images.device)).flatten()
        for name, value in model_kwargs.items():
            if name == "cache" and value is not None:
                value.batch_select_indices(rows)
                if hasattr(value, "select_images"):
                    value.select_images(images)
            elif name in of_images:
                model_kwargs[name] = _selected(value, images, before)
            elif isinstance(value, Tensor) and name != "cache_position":
                model_kwargs[name] = _selected(value, rows, before * beams)

    def _search_in_groups(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool,
        model_kwargs: dict[str, Any],
    ) -> tuple[Hypotheses, "StepRecord"]:
        """Run diverse beam search, one group of beams after the other, each with its own copy of the cache."""
        rows, groups = input_ids.shape[0], generation_config.pool_groups
        of_images, cache = set(self.image_input_names()), model_kwargs.pop("cache", None)
        members = torch.arange(rows, device=input_ids.device).view(-1, groups, generation_config.num_beams // groups)
        done: list[GroupPoolBeams] = []
        records = []
        for index in members.unbind(1):  # rows of the group, [B, K / groups]
            own = {
                name: value[index.flatten()] if isinstance(value, Tensor) and value.shape[:1] == (rows,) else value
                for name, value in model_kwargs.items()
                if name not in of_images
            }
            own |= {name: value for name, value in model_kwargs.items() if name in of_images}
            own["cache"] = copy.deepcopy(cache)
            if cache is not None and cache.get_seq_length():
                own["cache"].batch_select_indices(index.flatten())
            beams = GroupPoolBeams(input_ids[index.flatten()], generation_config, list(done))
            records.append(
                self._search(beams, logits_processor, stopping_criteria, generation_config, synced_gpus, own)
            )
            done.append(beams)
        result = best_of_groups(done, generation_config.num_return_sequences)
        return result, StepRecord.joined(records, members.shape[0])

    @staticmethod
    def _beam_output(
        result: Any, record: "StepRecord", generation_config: Any, model_kwargs: dict[str, Any]
    ) -> CaptionBeamOutput:
        encoder_outputs: ModelOutput = model_kwargs["encoder_outputs"]
        wanted = generation_config.output_scores or generation_config.bookkeeping != "transformers"
        return CaptionBeamOutput(
            sequences=result.tokens,
            sequences_scores=result.scores if wanted else None,
            beam_indices=result.parents,
            token_logprobs=result.token_logprobs,
            model_logprobs=result.model_logprobs,
            scores=record.scores,
            logits=record.logits,
            encoder_attentions=encoder_outputs.get("attentions"),
            encoder_hidden_states=encoder_outputs.get("hidden_states"),
            decoder_attentions=record.decoder_attentions,
            cross_attentions=record.cross_attentions,
            decoder_hidden_states=record.decoder_hidden_states,
            cache=model_kwargs.get("cache") if generation_config.return_cache else None,
        )


class ModelLogprobs(LogitsProcessor):
    """Logits processor that records the model's log-probability of each chosen token; placed before all others."""

    def __init__(self) -> None:
        self.columns: list[Tensor] = []
        self.log_probs: Tensor | None = None  # of the step whose tokens are not known yet, [rows, V]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Read the log-probabilities of the last tokens; return the logits `[rows, V]` unchanged."""
        self._read(input_ids[:, -1])
        self.log_probs = scores.float().log_softmax(-1)
        return scores

    def _read(self, tokens: Tensor) -> None:
        if self.log_probs is not None:
            self.columns.append(self.log_probs.gather(-1, tokens[:, None]))

    def of(self, sequences: Tensor) -> Tensor:
        """Return the log-probabilities `[rows, L]` of the generated tokens of finished sequences."""
        self._read(sequences[:, -1])
        return torch.cat(self.columns, dim=-1)


def is_of_caller(cache: Any) -> bool:
    """Return True if this cache was passed to `generate()` by its caller, and not made there."""
    return getattr(cache, "_is_user_defined", False)


def _selected(value: Any, index: Tensor, size: int) -> Any:
    """Select the rows `index` of all tensors with `size` rows, also inside tuples and model outputs."""
    if isinstance(value, Tensor):
        return value[index] if value.shape[:1] == (size,) else value
    if isinstance(value, ModelOutput):
        return type(value)(**{name: _selected(entry, index, size) for name, entry in value.items()})
    if isinstance(value, (tuple, list)):
        parts = [_selected(entry, index, size) for entry in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _equal_rows(values: Tensor, rows: int) -> bool:
    """Return True if, in each group of `rows` consecutive entries of `values` `[B * rows, ...]`, all are equal."""
    grouped = values.unflatten(0, (-1, rows))
    return bool((grouped == grouped[:, :1]).all())


def _repeated(value: Any, repeats: int) -> Any:
    """Repeat each row of a tensor, or of the tensors in nested tuples, `repeats` times."""
    if isinstance(value, (tuple, list)):
        return tuple(_repeated(entry, repeats) for entry in value)
    return value.repeat_interleave(repeats, dim=0) if isinstance(value, Tensor) else value


def _join_rows(parts: list[Any], images: int) -> Any:
    """Join tensors `[B * n, ...]` of groups of beams to `[B * sum of n, ...]`, also inside nested tuples."""
    if isinstance(parts[0], Tensor):
        return torch.cat([part.unflatten(0, (images, -1)) for part in parts], dim=1).flatten(0, 1)
    if isinstance(parts[0], tuple):
        return tuple(_join_rows(list(entries), images) for entries in zip(*parts, strict=True))
    return parts[0]


class StepRecord:
    """Scores, attentions and hidden states of all decoding steps, as `return_dict_in_generate` requests them."""

    def __init__(self, generation_config: Any) -> None:
        def wanted(flag: Any) -> tuple | None:
            return () if generation_config.return_dict_in_generate and flag else None

        self.scores = wanted(generation_config.output_scores)
        self.logits = wanted(generation_config.output_logits)
        self.decoder_attentions = wanted(generation_config.output_attentions)
        self.cross_attentions = wanted(generation_config.output_attentions)
        self.decoder_hidden_states = wanted(generation_config.output_hidden_states)

    @classmethod
    def joined(cls, records: list["StepRecord"], images: int) -> "StepRecord":
        """Join the records of groups of beams: rows `[B * K / groups, ...]` to `[B * K, ...]`.

        Args:
            records: of every group, equally long.
            images: B.
        """
        record = copy.copy(records[0])
        for name, first in vars(record).items():
            if first is not None:
                setattr(record, name, _join_rows([getattr(group_record, name) for group_record in records], images))
        return record

    def is_empty(self) -> bool:
        """Return True if no scores, attentions or hidden states are requested."""
        return all(value is None for value in vars(self).values())

    def add(self, outputs: Any, logits: Tensor, log_probs: Tensor) -> None:
        """Append the scores, attentions and hidden states of a decoding step."""
        if self.scores is not None:
            self.scores += (log_probs.clone(),)
        if self.logits is not None:
            self.logits += (logits.clone(),)
        for name in ("decoder_attentions", "cross_attentions", "decoder_hidden_states"):
            if getattr(self, name) is not None:
                setattr(self, name, (*getattr(self, name), getattr(outputs, name)))


def over_regions(weights: Tensor) -> Tensor:
    """Average attention weights `[B * K, ..., T, R]` over heads and encoder levels to `[B * K, T, R]`."""
    return weights.flatten(1, -3).mean(1) if weights.ndim > 3 else weights


class ExplanationMixin:
    """Attention and relevance maps over regions, from the cross-attention of the decoder's last layer."""

    def last_attention(self, outputs: ModelOutput) -> Tensor | None:
        """Return the cross-attention weights `[B * K, ..., T, R]` of the decoder's last layer."""
        return outputs.cross_attentions[-1]

    def required_attention(self, outputs: ModelOutput) -> Tensor:
        """Return the weights of `last_attention`, or raise an error if there are none.

        Raises:
            ValueError: the attention implementation computes no weights.
        """
        weights = self.last_attention(outputs)
        if weights is None:
            raise ValueError(
                f"{self.config._attn_implementation!r} attention computes no weights; call "  # type: ignore[attr-defined]
                '`model.set_attn_implementation("eager")` first.'
            )
        return weights

    @torch.no_grad()
    def attention_maps(self, sequences: Tensor, **images: Any) -> Tensor:
        """Return the attention of the decoder's last layer over the regions for each generated token.

        Args:
            sequences: `[B * K, T]` as `generate()` returns them, begin token first.
            images: `pixel_values`, or `region_features` with mask and boxes, or `encoder_outputs`, of B images.

        Returns:
            `[B * K, T - 1, R]`: weights of the regions for every token after the first, averaged over heads and
            encoder levels. Entries after the end token are meaningless.

        Raises:
            ValueError: if the attention implementation computes no weights.
        """
        outputs = self(decoder_input_ids=sequences[:, :-1], output_attentions=True, **images)  # type: ignore[operator]
        return over_regions(self.required_attention(outputs))

    @torch.enable_grad()
    def relevance_maps(self, sequences: Tensor, **images: Any) -> Tensor:
        """Return the relevance of the regions for each generated token: gradient times attention of the last layer.

        The gradient is that of the token's log-probability with respect to the attention weights of its step. Negative
        products are set to 0 (Chefer et al., ICCV 2021, "Generic Attention-model Explainability", Eq. 5), and the mean
        is taken over heads and encoder levels. The model should be in evaluation mode.

        Args:
            sequences: `[B * K, T]` as `generate()` returns them, begin token first.
            images: `pixel_values`, or `region_features` with mask and boxes, or `encoder_outputs`, of B images.

        Returns:
            `[B * K, T - 1, R]`: shares of the regions for every token after the first. They sum to 1, or are all 0
            where more attention to any region would make the token less probable. Entries after the end token are
            meaningless.

        Raises:
            ValueError: the attention implementation computes no weights, or hard attention uses single regions.
        """
        with torch.no_grad():
            encoded = images.pop("encoder_outputs", None) or self.get_encoder()(**images)  # type: ignore[attr-defined]
        # Gradients are computed down to the encoder's outputs, also where all parameters are frozen.
        leaves = {
            name: value.detach().requires_grad_() if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in encoded.items()
        }
        outputs = self(  # type: ignore[operator]
            decoder_input_ids=sequences[:, :-1],
            encoder_outputs=type(encoded)(**leaves),
            output_attentions=True,
            use_cache=False,
        )
        weights = self.required_attention(outputs)
        chosen = outputs.logits.float().log_softmax(-1).gather(-1, sequences[:, 1:, None])[..., 0]  # [B * K, T - 1]
        maps = []
        for step in range(chosen.shape[1]):
            gradient = gradient_of_weights(chosen[:, step].sum(), weights)
            positive = (gradient * weights)[..., step : step + 1, :].clamp(min=0)  # [B * K, ..., 1, R]
            maps.append(over_regions(positive).detach())
        relevance = torch.cat(maps, dim=1)
        return relevance / relevance.sum(-1, keepdim=True).clamp(min=torch.finfo(relevance.dtype).tiny)
