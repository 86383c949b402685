"""Encoder of images, an instruction and captions for instruction-following models of transformers."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from hf_captioners.data.schema import IMAGES, image_column
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.pipelines.instructed_inputs import VALUE_OF_CAPTION, InstructedInputs, generating_part
from hf_captioners.processing.image_reading import read_image
from hf_captioners.processing.vocabulary import composed

ANSWER = "caption"  # stands for an answer where the text around it is looked for
FIELD = re.compile(r"(?<!\{)\{[^{}]*\}(?!\})")  # of an instruction
# Inputs along the tokens whose value is 1 at the tokens of an image, not of a caption.
IMAGE_MARKS = ("gemma3",)


class InstructedEncoder:
    """Encoder of images with one instruction, and of captions as answers.

    The tokens of a decoder are the prompt, padded on the left, and the caption with its end, padded on the right; the
    labels of the prompt are ignored. An encoder-decoder reads the caption after the tokens that begin its decoder.
    The end of a caption is what the chat template writes after an answer, up to a token that ends generation.

    Args:
        processor: the whole processor of the checkpoint.
        model: the captioner, perhaps in an adapter.
        max_tokens: maximum caption length in tokens, end included; None for no limit.
        instruction: what the model is asked about every image. None: the default of its family.

    Raises:
        ValueError: the model reads no instruction, thinks aloud, or has no end token; or the instruction has fields.
    """

    declared_inputs: Mapping[str, str] = {}

    def __init__(
        self, processor: Any, model: Any, max_tokens: int | None = None, instruction: str | None = None
    ) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        if instruction is not None and (field := FIELD.search(instruction)):
            raise ValueError(
                f"`instruction` is {instruction!r}, and training gives all images the same one: leave out the field "
                f"{field[0]}."
            )
        self.inputs, self.instruction, self.max_tokens = InstructedInputs(processor, base), instruction, max_tokens
        self.inputs.require_instruction_read(instruction)
        if self.inputs.thinking is not None and "enable_thinking" not in (self.inputs.template or ""):
            raise ValueError(
                f"This {type(base).__name__} thinks aloud, and its chat template has no switch for it "
                "(`enable_thinking`). Train one that captions at once."
            )
        self.tokenizer, self.dtype = processor.tokenizer, base.dtype
        self.ends = end_tokens(base, self.tokenizer)
        self.padding = self.ends[0] if self.tokenizer.pad_token_id is None else int(self.tokenizer.pad_token_id)
        self.shifts_inside = not self.inputs.is_encoder_decoder
        self.anchor, self.before, self.tail = self._text_around_answers()

    def _text_around_answers(self) -> tuple[str, str, list[int]]:
        """Return the prompt's last word, the text between prompt and answer, and the tokens after an answer."""
        used = self.inputs.default_instruction if self.instruction is None else self.instruction
        if self.inputs.form is not None:
            joined = self.inputs.form.joins and not self.inputs.is_encoder_decoder and bool(used)
            return (_last_word(used) if joined else ""), (" " if joined else ""), self.ends[:1]
        prompt, answered = self.inputs.rendered_turns(used), self.inputs.rendered_turns(used, ANSWER)
        head, _, after = answered.rpartition(ANSWER)
        between = head[len(prompt) :] if head.startswith(prompt) else ""
        tokens = self.tokenizer(after, add_special_tokens=False)["input_ids"] if after else []
        place = next((place for place, token in enumerate(tokens) if token in self.ends), None)
        return _last_word(prompt), between, self.ends[:1] if place is None else tokens[: place + 1]

    def encode_columns(self, columns: Mapping[str, Sequence[Any]], images: int) -> dict[str, Tensor]:
        """Return nothing: captioners of transformers read no further columns."""
        return {}

    def encode_images(self, images: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the inputs of `generate()`: images, each with the instruction.

        Raises:
            ValueError: rows have several views.
        """
        if image_column(images[0]) == IMAGES:
            raise ValueError(
                "Rows with several views (`images`) need a captioner of this library. Load one view per row with "
                "max_views=1."
            )
        requests = [self.inputs.request(read_image(item["image"]), self.instruction, "") for item in images]
        tensors = self.inputs.encode(requests).tensors
        return {
            name: values.to(self.dtype) if values.is_floating_point() else values for name, values in tensors.items()
        }

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return `labels` `[B, T]`: caption and end tokens, padded with the ignored label."""
        kept = None if self.max_tokens is None else max(0, self.max_tokens - len(self.tail))
        rows = [self._tokens_after_prompt(composed(caption))[:kept] + self.tail for caption in captions]
        return {"labels": _padded(rows, IGNORED_LABEL)}

    def _tokens_after_prompt(self, caption: str) -> list[int]:
        """Return the tokens of a caption when it follows the prompt's last word."""
        text = self.before + caption
        if self.anchor:
            head, whole = self.inputs.tokens_of(self.anchor), self.inputs.tokens_of(self.anchor + text)
            if whole[: len(head)] == head:
                return whole[len(head) :]
        return self.inputs.tokens_of(text)

    def with_captions(self, inputs: dict[str, Tensor], captions: Sequence[str]) -> dict[str, Tensor]:
        """Return the model inputs for images, instruction and captions, including `labels`."""
        labels = self.encode_captions(captions)["labels"]
        real = labels != IGNORED_LABEL
        return self.with_tokens(inputs, labels.masked_fill(~real, self.padding), real)

    def with_tokens(self, inputs: Mapping[str, Tensor], tokens: Tensor, real: Tensor) -> dict[str, Tensor]:
        """Return the model inputs for B images and captions given as tokens, including `labels`.

        Args:
            inputs: see `encode_images`.
            tokens: `[B, T]`, captions without a token before them.
            real: `[B, T]`, whether a token belongs to the caption, end included.
        """
        labels = tokens.masked_fill(~real, IGNORED_LABEL)
        if self.inputs.is_encoder_decoder:
            start = torch.tensor([self.inputs.decoder_start]).expand(len(tokens), -1).to(tokens)
            unlabelled = torch.full_like(start[:, 1:], IGNORED_LABEL)
            read = torch.cat((start, tokens[:, :-1]), 1)
            return {**inputs, "decoder_input_ids": read, "labels": torch.cat((unlabelled, labels), 1)}
        prompt = inputs["input_ids"]
        grown = {
            name: self._grown(name, values, real)
            for name, values in inputs.items()
            if values.shape[:2] == prompt.shape and name != "input_ids"
        }
        before = torch.full_like(prompt, IGNORED_LABEL)
        joined = {"input_ids": torch.cat((prompt, tokens), 1), "labels": torch.cat((before, labels), 1)}
        return {**inputs, **grown, **joined}

    def _grown(self, name: str, values: Tensor, real: Tensor) -> Tensor:
        """Extend a per-token input `[B, P, ...]` by values for the caption's tokens."""
        value = 0 if self.inputs.model_type in IMAGE_MARKS else VALUE_OF_CAPTION.get(name, 0)
        tail = values.new_full((*real.shape, *values.shape[2:]), value)
        if name == "attention_mask":
            tail = real.to(values)
        return torch.cat((values, tail), 1)

    def without_prompt(self, sequences: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the generated tokens without the prompt."""
        return self.inputs.without_prompt(sequences, dict(inputs))

    def settings(self) -> dict[str, str]:
        """Return the instruction and a digest of the chat template, for the card."""
        used = self.inputs.settings(self.instruction)
        template = used["chat_template"]
        digest = {} if template is None else {"chat_template": f"sha256 {sha256(template.encode()).hexdigest()}"}
        return {"instruction": used["instruction"], **digest}

    def decode(self, tokens: Tensor) -> list[str]:
        """Decode generated tokens `[B, T]` to captions, see `without_prompt`.

        Of a model that is still thinking aloud at its last token the caption is empty.
        """
        return [self._decoded(row) for row in tokens]

    def _decoded(self, row: Tensor) -> str:
        try:
            return self.inputs.decode(row)
        except self.inputs.unfinished:
            return ""


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the ids of the tokens that end generation.

    Raises:
        ValueError: there is none.
    """
    ends = generating_part(model).generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    ends = ends or ([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])
    if not ends:
        raise ValueError(
            f"{type(model).__name__} names no end token in its generation configuration, and its tokenizer has none; "
            "set model.generation_config.eos_token_id."
        )
    return [int(end) for end in ends]


def _last_word(text: str) -> str:
    """Return the last word of a text and the spaces after it; empty if a special token ends the text."""
    match = re.search(r"[\w:.!?]+\s*$", text)
    return match[0] if match else ""


def _padded(rows: list[list[int]], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)
