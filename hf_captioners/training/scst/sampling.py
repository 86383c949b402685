"""Sampling of captions without a graph, and their logits with a graph.

Captioners of this library read B images with B * K captions; for those of transformers (BLIP, GIT,
vision-encoder-decoder) the images are repeated.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_captioners.pipelines.image_captioning import is_native_processor, special_ids
from hf_captioners.training.evaluation import generating_by, generation_config_for, packed_weights

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
    )
)


# Logit of suppressed tokens (`suppress_tokens`): probability zero, and finite in every precision.
SUPPRESSED_LOGIT = -1e4


@dataclass(frozen=True)
class CaptionSamples:
    """K captions of each of B images, those of an image next to each other.

    Args:
        sequences: `[B * K, 1 + T]`, begin token first; padding tokens after the end token.
        real: `[B * K, T]`, for every token after the first whether it belongs to the caption, end token included.
        ended: `[B * K]`, whether the caption has an end token.
    """

    sequences: Tensor
    real: Tensor
    ended: Tensor

    @property
    def tokens(self) -> Tensor:
        """Sampled tokens `[B * K, T]`."""
        return self.sequences[:, 1:]

    @classmethod
    def of(cls, sequences: Tensor, end: int, padding: int) -> "CaptionSamples":
        """Return the samples of an output of `generate()`, with padding after the end tokens."""
        is_end = sequences[:, 1:] == end
        real = is_end.long().cumsum(-1) - is_end.long() == 0
        kept = torch.cat((sequences[:, :1], sequences[:, 1:].masked_fill(~real, padding)), 1)
        return cls(kept, real, is_end.any(-1))


class CaptionSampling:
    """Sampling of captions and computation of their logits.

    Args:
        model: the captioner, perhaps wrapped in an adapter.
        base_model: the captioner without the adapter.
        processor: its processor.
        max_new_tokens: maximum caption length in tokens, end token included.
    """

    def __init__(self, model: Any, base_model: PreTrainedModel, processor: Any, max_new_tokens: int) -> None:
        self.model, self.base_model, self.max_new_tokens = model, base_model, max_new_tokens
        self.is_own = is_native_processor(processor)
        tokenizer = processor.tokenizer
        _, end = (None, tokenizer.eos_token_id) if self.is_own else special_ids(base_model, tokenizer)
        self.end = int(end)  # type: ignore[arg-type]
        self.padding = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id

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
        """Sample `number` independent captions per image from the whole vocabulary."""
        settings = NEUTRAL_SAMPLES | {"do_sample": True, "temperature": temperature, "num_return_sequences": number}
        return self._generate(images, precision, with_dropout, settings)

    def beams(
        self,
        images: Mapping[str, Tensor],
        precision: AbstractContextManager[Any],
        number: int,
        with_dropout: bool,
    ) -> CaptionSamples:
        """Search the `number` best captions by beams; this library's captioners keep finished beams as M2 does."""
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
            self.base_model, NEUTRAL_SAMPLING | UNSET | {"max_new_tokens": self.max_new_tokens} | dict(settings)
        )
        was_training = self.model.training
        self.model.train(with_dropout)
        try:
            # Layers with dropout compute with plain weights in any case.
            packed = nullcontext() if with_dropout else packed_weights(self.model)
            with precision, packed, generating_by(self.model, config):
                sequences = self.model.generate(**images, generation_config=config, **options)
        finally:
            self.model.train(was_training)
        return CaptionSamples.of(sequences, self.end, self.padding)

    def logits(self, model: Any, images: Mapping[str, Tensor], samples: CaptionSamples) -> tuple[Tensor, Any]:
        """Compute the logits at every token of the samples, in one pass.

        Args:
            model: the captioner, perhaps wrapped for several processes, or a different model of the same class.
            images: its inputs for the B images.
            samples: B * K captions.

        Returns:
            Logits `[tokens, V]` at the real tokens (`samples.real`), with suppressed tokens as in sampling, and the
            model's output.
        """
        read, length = samples.sequences[:, :-1], samples.tokens.shape[1]
        if self.is_own:
            options: dict[str, Any] = {"use_cache": False, "output_gates": True}
            if self.base_model.model.decoder.skips_padding:
                prompt = torch.ones_like(read[:, : read.shape[1] - length])
                options["decoder_attention_mask"] = torch.cat((prompt, samples.real.long()), 1)
            outputs = model(**images, decoder_input_ids=read, **options)
        else:
            number = len(read) // len(next(iter(images.values())))
            repeated = {name: value.repeat_interleave(number, 0) for name, value in images.items()}
            if self.base_model.config.is_encoder_decoder:
                outputs = model(**repeated, decoder_input_ids=read)
            else:
                mask = torch.cat((torch.ones_like(samples.real[:, :1]), samples.real[:, :-1]), 1)
                outputs = model(**repeated, input_ids=read, attention_mask=mask.long())
        logits = outputs.logits[:, -length:][samples.real]  # GIT also returns logits at the tokens of the image
        suppressed = self.base_model.generation_config.suppress_tokens
        if suppressed:
            logits = logits.index_fill(-1, torch.tensor(suppressed, device=logits.device), SUPPRESSED_LOGIT)
        return logits, outputs
