"""Sampling of captions without gradients, and scores of their tokens with gradients.

Captioners of this library read B images with B * K captions. For those of transformers the inputs of an image are
repeated along its captions where all of them lie along the batch; otherwise there is one pass over the B images for
the first caption of each, one for the second, and so on.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_captioners.pipelines.image_captioning import is_native_processor, special_ids
from hf_captioners.pipelines.instructed_inputs import generating_part
from hf_captioners.training.evaluation import generating_by, generation_config_for, packed_weights
from hf_captioners.training.instructed_encoding import InstructedEncoder

from .token_scores import TokenScores, TokenScoring, output_layer, output_layer_reads, placed

# Values that leave the distribution unchanged, as a policy gradient requires, whatever the checkpoint's settings are.
NEUTRAL_SAMPLING = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
}
# The same for settings that only one sampling method reads; the others would warn about them, so they unset them.
NEUTRAL_SAMPLES = {"top_k": 0, "top_p": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
NEUTRAL_BEAMS = {"length_penalty": 0.0}
UNSET = dict.fromkeys(
    (
        *NEUTRAL_SAMPLES,
        *NEUTRAL_BEAMS,
        "temperature",
        "min_p",
        "top_h",
        "min_new_tokens",
        "exponential_decay_length_penalty",
        "forced_eos_token_id",
        "bad_words_ids",
        "begin_suppress_tokens",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "guidance_scale",
        "sequence_bias",
    )
)


@dataclass(frozen=True)
class CaptionSamples:
    """K captions of each of B images, grouped by image.

    Args:
        sequences: `[B * K, S + T]`, the S tokens that a decoder reads before a caption first (of most one, the begin
            token; of those that follow a prompt none); padding tokens after the end token.
        real: `[B * K, T]`, for every token after the first S whether it belongs to the caption, end token included.
        ended: `[B * K]`, whether the caption has an end token.
    """

    sequences: Tensor
    real: Tensor
    ended: Tensor

    @property
    def tokens(self) -> Tensor:
        """Sampled tokens `[B * K, T]`."""
        return self.sequences[:, self.sequences.shape[1] - self.real.shape[1] :]

    @classmethod
    def of(cls, sequences: Tensor, end: int | list[int], padding: int, begin: int = 1) -> "CaptionSamples":
        """Make samples from an output of `generate()`; tokens after the end token become padding.

        Args:
            sequences: `[B * K, begin + T]`.
            end: the tokens that end captions.
            padding: the padding token.
            begin: number of tokens before captions.
        """
        ends = torch.tensor([end] if isinstance(end, int) else end, device=sequences.device)
        is_end = torch.isin(sequences[:, begin:], ends)
        real = is_end.long().cumsum(-1) - is_end.long() == 0
        kept = torch.cat((sequences[:, :begin], sequences[:, begin:].masked_fill(~real, padding)), 1)
        return cls(kept, real, is_end.any(-1))


class RandomState:
    """Saved random state of a device's dropout.

    The first pass of a run finds out how logits can be computed. A resumed run does, too, and its dropout must be that
    of a run that was not interrupted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" and torch.cuda.is_available() else None
        self._state = torch.get_rng_state() if self._device is None else torch.cuda.get_rng_state(self._device)

    def restore(self) -> None:
        """Restore the saved random state, so that dropout repeats."""
        if self._device is None:
            torch.set_rng_state(self._state)
        else:
            torch.cuda.set_rng_state(self._state, self._device)


class CaptionSampling:
    """Sampling of captions, and computation of their token scores.

    Args:
        model: the captioner, perhaps wrapped in an adapter.
        base_model: the captioner without the adapter.
        processor: its processor.
        max_new_tokens: maximum caption length in tokens, end token included.
        encoder: its encoder, if it captions by an instruction.
        by_pieces: compute the scores of some tokens at a time. False: those of all at once, as in compiled models.
    """

    def __init__(
        self,
        model: Any,
        base_model: PreTrainedModel,
        processor: Any,
        max_new_tokens: int,
        encoder: Any = None,
        by_pieces: bool = True,
    ) -> None:
        self.model, self.base_model, self.max_new_tokens = model, base_model, max_new_tokens
        self.is_own = is_native_processor(processor)
        self.encoder = encoder if isinstance(encoder, InstructedEncoder) else None
        tokenizer = processor.tokenizer
        if self.encoder is not None:
            self.ends, self.padding = self.encoder.ends, self.encoder.padding
        else:
            _, end = (None, tokenizer.eos_token_id) if self.is_own else special_ids(base_model, tokenizer)
            several = base_model.generation_config.eos_token_id
            is_one = self.is_own or not isinstance(several, list) or end not in several
            self.ends = [int(end)] if is_one else several  # type: ignore[arg-type,list-item]
            self.padding = self.ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        # True where the logits are what the output layer returns, so that pieces of them can be computed.
        self._has_plain_logits: bool | None = None if by_pieces else False

    def greedy(self, images: Mapping[str, Tensor], precision: AbstractContextManager[Any]) -> CaptionSamples:
        """Decode one caption per image greedily, without dropout."""
        return self._generate(images, precision, False, {})

    def multinomial(
        self,
        images: Mapping[str, Tensor],
        precision: AbstractContextManager[Any],
        number: int,
        temperature: float,
        with_dropout: bool,
    ) -> CaptionSamples:
        """Sample `number` independent captions per image from the full vocabulary."""
        settings = NEUTRAL_SAMPLES | {"do_sample": True, "temperature": temperature, "num_return_sequences": number}
        return self._generate(images, precision, with_dropout, settings)

    def beams(
        self,
        images: Mapping[str, Tensor],
        precision: AbstractContextManager[Any],
        number: int,
        with_dropout: bool,
    ) -> CaptionSamples:
        """Find the `number` best captions by beam search; this library's models keep finished beams as M2 does."""
        settings: dict[str, Any] = NEUTRAL_BEAMS | {"num_beams": number, "num_return_sequences": number}
        options = {"bookkeeping": "live"} if self.is_own else {}
        return self._generate(images, precision, with_dropout, settings, **options)

    @torch.no_grad()
    def _generate(
        self,
        images: Mapping[str, Tensor],
        precision: AbstractContextManager[Any],
        with_dropout: bool,
        settings: Mapping[str, Any],
        **options: Any,
    ) -> CaptionSamples:
        config = generation_config_for(
            self.base_model,
            NEUTRAL_SAMPLING | UNSET | {"max_new_tokens": self.max_new_tokens} | dict(settings),
        )
        config.suppress_tokens = self.suppressed or None
        was_training = self.model.training
        self.model.train(with_dropout)
        try:
            # Layers with dropout compute with plain weights in any case.
            packed = nullcontext() if with_dropout else packed_weights(self.model)
            with precision, packed, generating_by(self.model, config):
                sequences = self.model.generate(**images, generation_config=config, **options)
        finally:
            self.model.train(was_training)
        if self.encoder is None:
            return CaptionSamples.of(sequences, self.ends, self.padding)
        begin = len(self.encoder.inputs.decoder_start) if self.encoder.inputs.is_encoder_decoder else 0
        return CaptionSamples.of(self.encoder.without_prompt(sequences, images), self.ends, self.padding, begin)

    @property
    def suppressed(self) -> list[int]:
        """Ids of tokens that are never sampled or scored: suppressed by the configuration, or image tokens."""
        ids = generating_part(self.base_model).generation_config.suppress_tokens or []
        return sorted({*ids, *(() if self.encoder is None else self.encoder.inputs.unsampled)})

    def scores(
        self,
        model: Any,
        images: Mapping[str, Tensor],
        samples: CaptionSamples,
        temperature: float = 1.0,
        with_entropy: bool = False,
        reference: Any = None,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> tuple[TokenScores, Any]:
        """Compute the scores of the sampled tokens.

        Args:
            model: the captioner, perhaps wrapped for several processes.
            images: its inputs for the B images.
            samples: B * K captions.
            temperature: temperature of the distribution that they were sampled from.
            with_entropy: compute entropies too.
            reference: a different model of the same class, to compute the divergence from.
            precision: makes the context that the reference computes in.

        Returns:
            The scores, and the model's output of the last pass; without its logits where they were computed in pieces.
        """
        scoring = TokenScoring(self.suppressed, temperature, with_entropy)
        parts, outputs = [], None
        for rows, inputs in self._passes(images, samples):
            tokens, at = samples.tokens[rows], samples.real[rows].flatten().nonzero()[:, 0]
            if reference is not None and self._has_plain_logits is None:
                state = RandomState(tokens.device)
                with torch.no_grad():
                    self._of_pass(model, inputs, tokens, at, scoring, None)
                state.restore()
            with precision():
                compared = None if reference is None else self._reference_states(reference, inputs, tokens, at)
            scores, outputs = self._of_pass(model, inputs, tokens, at, scoring, compared)
            parts.append(placed(scores, at, tokens.shape))
        joined = parts[0] if len(parts) == 1 else torch.stack(parts, 1).flatten(0, 1)  # passes are the captions 1 to K
        return scoring.split(joined), outputs

    @torch.no_grad()
    def _reference_states(
        self, reference: Any, inputs: dict[str, Any], tokens: Tensor, at: Tensor
    ) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """Return hidden states of a reference model at tokens `[N, T]`, and the function from states to logits."""
        length, kept = tokens.shape[1], []

        def keep(transform: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
            kept.append((transform, states[:, -length:].flatten(0, 1)[at]))
            return states[:, -length:, :1]

        if self._has_plain_logits:
            with output_layer_reads(output_layer(reference), keep):
                reference(**inputs)
            return kept[0]
        return (lambda logits: logits), self._whole_logits(reference, inputs, length)[0].flatten(0, 1)[at]

    def _of_pass(
        self, model: Any, inputs: dict[str, Any], tokens: Tensor, at: Tensor, scoring: TokenScoring, reference: Any
    ) -> tuple[Tensor, Any]:
        """Return scores `[tokens, F]` at positions `at` of tokens `[N, T]` in a forward pass, and its output."""
        length, chosen = tokens.shape[1], tokens.flatten()[at]
        batches: list[Tensor] = []

        def read(own: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
            scores = scoring.of_states(own, states[:, -length:].flatten(0, 1)[at], chosen, reference)
            batches.append(placed(scores, at, tokens.shape))
            return batches[-1]

        if self._has_plain_logits is not False:
            state = RandomState(tokens.device) if self._has_plain_logits is None else None
            with output_layer_reads(output_layer(self.base_model), read):
                outputs = model(**inputs)
            if self._has_plain_logits is None:  # a model may change what its output layer returns
                self._has_plain_logits = len(batches) == 1 and torch.equal(outputs.logits, batches[0])
                if state is not None and not self._has_plain_logits:
                    state.restore()
            if self._has_plain_logits:
                scores, outputs.logits = outputs.logits.flatten(0, 1)[at], None
                return scores, outputs
        logits, outputs = self._whole_logits(model, inputs, length)
        logits = logits.flatten(0, 1)[at]
        return scoring.of_logits(logits, chosen, None if reference is None else reference[0](reference[1])), outputs

    def _whole_logits(self, model: Any, inputs: dict[str, Any], length: int) -> tuple[Tensor, Any]:
        """Return the logits of the last `length` positions, and the model's output."""
        if "logits_to_keep" in inspect.signature(self.base_model.forward).parameters:
            inputs = {**inputs, "logits_to_keep": length}
        outputs = model(**inputs)
        return outputs.logits[:, -length:], outputs  # GIT, for one, also returns logits at the tokens of the image

    def logits(self, model: Any, images: Mapping[str, Tensor], samples: CaptionSamples) -> tuple[Tensor, Any]:
        """Compute the logits at every sampled token.

        Args:
            model: the captioner, perhaps wrapped for several processes, or a different model of the same class.
            images: its inputs for the B images.
            samples: B * K captions.

        Returns:
            Logits `[tokens, V]` at the real tokens (`samples.real`), with suppressed tokens as in sampling, and the
            model's output of the last pass.
        """
        length, pieces, outputs = samples.tokens.shape[1], [], None
        for _, inputs in self._passes(images, samples):
            logits, outputs = self._whole_logits(model, inputs, length)
            pieces.append(logits)
        joined = pieces[0] if len(pieces) == 1 else torch.stack(pieces, 1).flatten(0, 1)
        return TokenScoring(self.suppressed).adjusted(joined[samples.real]), outputs

    def _passes(self, images: Mapping[str, Tensor], samples: CaptionSamples) -> Iterator[tuple[slice, dict[str, Any]]]:
        """Yield the captions and the model inputs of each forward pass."""
        every, read = slice(None), samples.sequences[:, :-1]
        if self.is_own:
            options: dict[str, Any] = {"use_cache": False, "output_gates": True}
            if self.base_model.model.decoder.skips_padding:
                prompt = torch.ones_like(read[:, : read.shape[1] - samples.tokens.shape[1]])
                options["decoder_attention_mask"] = torch.cat((prompt, samples.real.long()), 1)
            yield every, {**images, "decoder_input_ids": read, **options}
            return
        count = len(images.get("input_ids", next(iter(images.values()))))
        number = len(read) // count
        if number > 1 and any(len(values) != count for values in images.values()):
            for place in range(number):
                rows = slice(place, None, number)
                yield rows, self._with_captions(images, samples.tokens[rows], samples.real[rows], read[rows])
            return
        repeated = {name: values.repeat_interleave(number, 0) for name, values in images.items()}
        yield every, self._with_captions(repeated, samples.tokens, samples.real, read)

    def _with_captions(
        self, images: Mapping[str, Tensor], tokens: Tensor, real: Tensor, read: Tensor
    ) -> dict[str, Any]:
        """Return inputs for a model of transformers that computes logits of the caption tokens `[N, T]` only."""
        if self.encoder is not None:
            if not self.encoder.inputs.is_encoder_decoder:
                tokens, real = tokens[:, :-1], real[:, :-1]
            inputs = self.encoder.with_tokens(images, tokens, real)
            return {name: value for name, value in inputs.items() if name != "labels"}
        if self.base_model.config.is_encoder_decoder:
            return {**images, "decoder_input_ids": read}
        mask = torch.cat((torch.ones_like(real[:, :1]), real[:, :-1]), 1)
        return {**images, "input_ids": read, "attention_mask": mask.long()}
