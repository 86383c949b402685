"""Decoding of captions without repeating encoder states, with the beam searches of captioning papers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache, GenerationMixin
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.utils import ModelOutput

from .search_captioning import BOOKKEEPINGS, CaptionBeams

# Inputs with one row per image, not per text row; they are not expanded for beams.
IMAGE_INPUTS = ("pixel_values", "view_mask", "region_features", "region_boxes", "region_mask", "encoder_outputs")


@dataclass
class CaptionBeamOutput(GenerateBeamEncoderDecoderOutput):
    """Output of the caption beam search: that of transformers with the log-probability of every token.

    Args:
        sequences: `[B * n, prompt + L]`, padded after the end token.
        sequences_scores: `[B * n]`, sum of the log-probabilities including that of the end token, normalised as the
            bookkeeping requires.
        beam_indices: `[B * n, L]`, the row (of B * K) that each token extended; -1 after the end.
        token_logprobs: `[B * n, L]`, log-probability of each generated token; 0 after the end.
    """

    token_logprobs: Tensor | None = None


class CaptionCache(EncoderDecoderCache):
    """Cache of the keys and values of B x K text rows and of B images.

    Only the text side is reordered with the beams; the image side has one row per image and does not change.
    """

    @classmethod
    def of(cls, cache: Any) -> "CaptionCache":
        """Return a `CaptionCache` that shares the storage of `cache`, an `EncoderDecoderCache`."""
        if isinstance(cache, cls):
            return cache
        shared = cls(cache.self_attention_cache, cache.cross_attention_cache)
        shared.is_updated = cache.is_updated  # so that the caller can continue with `cache` itself
        return shared

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let text rows `[B * K]` continue the rows `beam_idx`, which stay within their image."""
        self.self_attention_cache.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every text row."""
        self.self_attention_cache.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some text rows; all images stay."""
        self.self_attention_cache.batch_select_indices(indices)


class CaptionGenerationMixin(GenerationMixin):
    """`generate()` of transformers for captioners.

    Differences: `generate(region_features=...)` works; encoder states keep one row per image; the argument
    `bookkeeping` (also an entry of the generation configuration) selects how a beam search treats finished
    hypotheses: `"transformers"` (default), `"live"` (M2, VisualGPT), `"pool"` (the ImageCaptioning.pytorch family),
    `"shrinking"` or `"shrinking_finished"` (Show, Attend and Tell: its program, its re-implementation).
    """

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        bookkeeping = kwargs.pop("bookkeeping", None)
        prepared, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        prepared.bookkeeping = bookkeeping or getattr(prepared, "bookkeeping", None) or "transformers"
        known = ("transformers", *BOOKKEEPINGS)
        if prepared.bookkeeping not in known:
            raise ValueError(f"`bookkeeping` is {prepared.bookkeeping!r}, expected one of {known}.")
        if prepared.bookkeeping != "transformers" and prepared.do_sample and prepared.num_beams > 1:
            raise ValueError(
                f"`bookkeeping={prepared.bookkeeping!r}` is a deterministic search; pass `do_sample=False` or "
                '`bookkeeping="transformers"`.'
            )
        return prepared, model_kwargs

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
            raise ValueError("`generate` needs `pixel_values`, `region_features` or `encoder_outputs`, got none.")
        model_kwargs.pop("region_features", None)
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Repeat the text rows only."""
        of_images = {name: model_kwargs.pop(name) for name in IMAGE_INPUTS if name in model_kwargs}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=False, input_ids=input_ids, **model_kwargs
        )
        return input_ids, model_kwargs | of_images

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        cache = model_kwargs.get("past_key_values")
        if isinstance(cache, EncoderDecoderCache):
            model_kwargs["past_key_values"] = CaptionCache.of(cache)  # that of transformers reorders the images too
        elif cache is None and self.cache_class is not None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = self.cache_class()

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Prepare inputs as in transformers; the `"pad_id"` rule computes the mask from all tokens so far."""
        if getattr(self.config, "token_mask_rule", "explicit") == "pad_id":
            kwargs["decoder_attention_mask"] = (input_ids != self.config.pad_token_id).long()  # [B * K, prompt + t]
        return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)

    def _get_top_k_continuations(self, accumulated_log_probs: Tensor, **kwargs: Any) -> tuple[Tensor, ...]:
        """Select continuations as in transformers, from the best few of every beam instead of K x V candidates."""
        beams, keep = kwargs["num_beams"], kwargs["beams_to_keep"]
        vocabulary = accumulated_log_probs.shape[-1] // beams
        if not kwargs["do_sample"] and keep < vocabulary:
            # The best `keep` candidates are among the best `keep` of each beam, which are cheaper to find.
            per_beam = accumulated_log_probs.unflatten(-1, (beams, vocabulary))  # [B, K, V]
            best = per_beam.topk(keep, dim=-1).indices
            kept = torch.full_like(per_beam, -torch.inf).scatter(-1, best, per_beam.gather(-1, best))
            accumulated_log_probs = kept.flatten(1)  # [B, K * V]
        return super()._get_top_k_continuations(accumulated_log_probs, **kwargs)

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Run the beam search of transformers, or the requested bookkeeping."""
        arguments = (input_ids, logits_processor, stopping_criteria, generation_config)
        if generation_config.bookkeeping == "transformers":
            return super()._beam_search(*arguments, synced_gpus=synced_gpus, **model_kwargs)
        return self._caption_beam_search(*arguments, synced_gpus=synced_gpus, **model_kwargs)

    def _caption_beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool,
        **model_kwargs: Any,
    ) -> Any:
        """Run a beam search in which a `CaptionBeams` object selects the hypotheses."""
        beams: CaptionBeams = BOOKKEEPINGS[generation_config.bookkeeping](input_ids, generation_config)
        record = StepRecord(generation_config)
        outputs = self._prefill(input_ids, generation_config, model_kwargs, is_first_iteration=True)
        while True:
            model_kwargs = self._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=True)
            logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32)  # [B * K, V]
            log_probs = logits_processor(beams.rows(), logits.log_softmax(-1))
            record.add(outputs, logits, log_probs)
            del outputs  # frees the logits of the first step, which has all tokens of the prompt
            parents = beams.step(log_probs)  # [B * K]
            beams.end_rows(stopping_criteria(beams.rows(), record.scores))
            if not self._has_unfinished_sequences(beams.is_done(), synced_gpus, device=input_ids.device):
                break
            self._continue_rows(model_kwargs, parents)
            model_inputs = self.prepare_inputs_for_generation(
                beams.rows(), next_sequence_length=1 if model_kwargs["use_cache"] else None, **model_kwargs
            )
            outputs = self(**model_inputs, return_dict=True)
        result = beams.finish(generation_config.num_return_sequences)
        if not generation_config.return_dict_in_generate:
            return result.sequences
        return self._beam_output(result, record, generation_config, model_kwargs)

    @staticmethod
    def _continue_rows(model_kwargs: dict[str, Any], parents: Tensor) -> None:
        """Reorder the cache to the kept rows."""
        cache: Cache | None = model_kwargs.get("past_key_values")
        if cache is not None:
            cache.reorder_cache(parents)

    @staticmethod
    def _beam_output(
        result: Any, record: "StepRecord", generation_config: Any, model_kwargs: dict[str, Any]
    ) -> CaptionBeamOutput:
        encoder_outputs: ModelOutput = model_kwargs["encoder_outputs"]
        return CaptionBeamOutput(
            sequences=result.sequences,
            sequences_scores=result.scores,
            beam_indices=result.parents,
            token_logprobs=result.token_logprobs,
            scores=record.scores,
            logits=record.logits,
            encoder_attentions=encoder_outputs.get("attentions"),
            encoder_hidden_states=encoder_outputs.get("hidden_states"),
            decoder_attentions=record.decoder_attentions,
            cross_attentions=record.cross_attentions,
            decoder_hidden_states=record.decoder_hidden_states,
            past_key_values=model_kwargs.get("past_key_values"),
        )


class StepRecord:
    """Records of every step for `return_dict_in_generate`: tuples over steps, or None if not requested."""

    def __init__(self, generation_config: Any) -> None:
        def wanted(flag: Any) -> tuple | None:
            return () if generation_config.return_dict_in_generate and flag else None

        self.scores = wanted(generation_config.output_scores)
        self.logits = wanted(generation_config.output_logits)
        self.decoder_attentions = wanted(generation_config.output_attentions)
        self.cross_attentions = wanted(generation_config.output_attentions)
        self.decoder_hidden_states = wanted(generation_config.output_hidden_states)

    def add(self, outputs: Any, logits: Tensor, log_probs: Tensor) -> None:
        """Append the records of this step."""
        if self.scores is not None:
            self.scores += (log_probs.clone(),)
        if self.logits is not None:
            self.logits += (logits,)
        for name in ("decoder_attentions", "cross_attentions", "decoder_hidden_states"):
            if getattr(self, name) is not None:
                setattr(self, name, (*getattr(self, name), getattr(outputs, name)))
