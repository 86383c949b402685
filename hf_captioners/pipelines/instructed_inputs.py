"""Inputs of image-to-text models of transformers that caption by an instruction, and decoding of their output.

One class serves all of them, through the whole processor of a checkpoint: parts of a processor make other inputs than
the processor does. Models with a chat template differ in nothing else; `PROMPTS` has the families without one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch

DEFAULT_INSTRUCTION = "Describe this image."
NO_TOKEN = -1  # before shorter sequences


@dataclass(frozen=True)
class PromptForm:
    """Prompt of a model family without a chat template.

    Args:
        text: the text, with `{}` in place of the instruction. None: the processor reads images alone, or writes the
            instruction into the image.
        instruction: the default instruction.
        joins: the beginning of a caption follows the instruction as further text of the prompt. False: its tokens are
            appended to the prompt, which ends with tokens of the processor.
        generates: attribute of the part whose `generate()` the model calls, with that part's generation configuration.
    """

    text: str | None
    instruction: str = DEFAULT_INSTRUCTION
    joins: bool = True
    generates: str = ""


PROMPTS = {
    "blip-2": PromptForm("{}", "", generates="language_model"),
    "florence2": PromptForm("{}", "<CAPTION>"),
    "instructblip": PromptForm("{}", generates="language_model"),
    "kosmos-2": PromptForm("{}", "<grounding>An image of", generates="text_model"),
    "paligemma": PromptForm("<image>{}", "caption en", joins=False),
    "pix2struct": PromptForm(None, ""),
}
# Families with a chat template whose captions are known to be those of their own processors and `generate()`.
CHAT_FAMILIES = (
    "gemma3",
    "idefics3",
    "internvl",
    "llava",
    "llava_next",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "smolvlm",
)
# Value of the places of a caption in inputs that run along the tokens; 0 in others.
VALUE_OF_CAPTION = {"attention_mask": 1, "token_type_ids": 1}
PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
# Tokens around an image, by which models find its place too.
AROUND_IMAGES = (
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_end_token_id",
    "image_start_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
)
THINKING = ("enable_thinking", "thinking", "reasoning_content")  # variables of templates of models that think aloud
# Marks between which a model thinks aloud.
THINKING_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel>thought", "<channel|>"),
)


class UnfinishedThoughtError(ValueError):
    """A reasoning model reached its last token before it finished thinking."""


class CaptionRequest(NamedTuple):
    """Image, instruction about it, and beginning of its caption.

    Args:
        image: the image, upright RGB.
        instruction: what the model is asked. None: the default of the model.
        beginning: text that the caption begins with.
    """

    image: Any
    instruction: str | None = None
    beginning: str = ""


class EncodedRequests(NamedTuple):
    """Model inputs of B requests.

    Args:
        tensors: inputs of `generate()` by name.
        beginnings: the beginning of each caption.
    """

    tensors: dict[str, torch.Tensor]
    beginnings: list[str]


class InstructedInputs:
    """Converter of images and instructions to model inputs, and of generated tokens to captions.

    It keeps no reference to the model, so it can be pickled for processes that prepare images.

    Args:
        processor: the whole processor of the checkpoint.
        model: the model, of whose configurations the special tokens are read.
        forms: families without a chat template. None: `PROMPTS`.

    Raises:
        ValueError: the processor has no chat template and its family is not in `forms`, or its model thinks aloud
            and no known marks tell where that ends.
    """

    # The pipeline, whose file is part of checkpoints, imports no name of this file and takes all from this class.
    unfinished = UnfinishedThoughtError

    def __init__(self, processor: Any, model: Any, forms: Mapping[str, PromptForm] | None = None) -> None:
        self.model_type = model.config.model_type
        self.is_encoder_decoder = bool(generating_part(model).config.is_encoder_decoder)
        self.form = (PROMPTS if forms is None else forms).get(self.model_type)
        self.processor = processor if self.is_encoder_decoder else padded_on_the_left(processor)
        self.template = None if self.form else chat_template_of(processor)
        if self.form is None and self.template is None:
            raise ValueError(
                f"The processor of this {type(model).__name__} has no chat template, which says where an image and an "
                "instruction belong. Save one with it: `processor.chat_template = ...`."
            )
        self.thinking = thinking_marks(self.template or "", type(model).__name__)
        self.renders_lists = self.template is None or self._renders_lists()
        config = generating_part(model).generation_config
        self.positions = getattr(generating_part(model).config.get_text_config(), "max_position_embeddings", None)
        start = (config.decoder_start_token_id, getattr(config, "forced_bos_token_id", None))
        self.decoder_start = [token for token in start if token is not None]
        ids = [getattr(model.config, name, None) for name in PLACEHOLDERS]
        self.placeholders = frozenset(token for token in ids if isinstance(token, int))
        ids = [getattr(model.config, name, None) for name in AROUND_IMAGES]
        self.unsampled = self.placeholders | {token for token in ids if isinstance(token, int)}

    @property
    def default_instruction(self) -> str:
        """Instruction for requests without one."""
        return DEFAULT_INSTRUCTION if self.form is None else self.form.instruction

    def tokens_left(self, tokens: int) -> int:
        """Return the maximum number of new tokens: at most half of a decoder's positions, shared with the prompt."""
        return tokens if self.is_encoder_decoder or not self.positions else min(tokens, self.positions // 2)

    @property
    def marks(self) -> frozenset[str]:
        """Texts of special tokens and image placeholders, which values in instructions must not contain."""
        tokenizer = self.processor.tokenizer
        return frozenset([*tokenizer.all_special_tokens, *tokenizer.convert_ids_to_tokens(list(self.placeholders))])

    @staticmethod
    def request(image: Any, instruction: str | None, beginning: str) -> CaptionRequest:
        """Build a `CaptionRequest`."""
        return CaptionRequest(image, instruction, beginning)

    @staticmethod
    def join(outputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Join the outputs of several batches, see `joined_outputs`."""
        return joined_outputs(outputs)

    @staticmethod
    def generating_part(model: Any) -> Any:
        """Return the submodule that generates, see the function `generating_part`."""
        return generating_part(model)

    @property
    def takes_instruction(self) -> bool:
        """True if the model reads an instruction."""
        if self.form is None or self.form.text is not None:
            return True
        return bool(getattr(self.processor.image_processor, "is_vqa", False))

    def require_instruction_read(self, instruction: str | None) -> None:
        """Raise an error if an instruction is passed to a model that reads none.

        Raises:
            ValueError: it does not.
        """
        if instruction is not None and not self.takes_instruction:
            raise ValueError(
                f"`instruction` is {instruction!r}, and this {self.model_type} reads images without an instruction. "
                "Leave it out; `prompt` is the beginning of captions."
            )

    def runs(self, requests: Sequence[CaptionRequest]) -> list[list[CaptionRequest]]:
        """Split requests into batches for `encode`.

        Models without a chat template put padding between the image and a shorter text, with which some of them
        compute other logits: their batches have equal texts.
        """
        if self.form is None:
            return [list(requests)]
        return [list(run) for _, run in groupby(requests, lambda request: request[1:])]

    def encode(self, requests: Sequence[CaptionRequest]) -> EncodedRequests:
        """Encode a batch of requests, rows padded as the model needs it.

        Args:
            requests: one of `runs`.

        Raises:
            ValueError: the processor refuses an image or an instruction.
        """
        instructions = [
            self.default_instruction if request.instruction is None else request.instruction for request in requests
        ]
        beginnings = [request.beginning for request in requests]
        images = [request.image for request in requests]
        if self.form is None:
            inputs = self._chat_inputs(images, instructions, beginnings)
        else:
            inputs = self._plain_inputs(self.form, images, instructions, beginnings)
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        tensors.pop("labels", None)  # of training, which some processors make of the prompt
        if any(beginnings) and (self.is_encoder_decoder or (self.form is not None and not self.form.joins)):
            tensors = self._with_tokens(tensors, beginnings)
        return EncodedRequests(tensors, beginnings)

    def _chat_inputs(self, images: Sequence[Any], instructions: Sequence[str], beginnings: Sequence[str]) -> Any:
        """Encode requests by the chat template; an answer that has begun is continued."""
        prefilled = any(beginnings) and not self.is_encoder_decoder
        chats = []
        for image, instruction, beginning in zip(images, instructions, beginnings, strict=True):
            content: Any = [{"type": "image", "image": image}, {"type": "text", "text": instruction}]
            answer: Any = [{"type": "text", "text": beginning}]
            if not self.renders_lists:
                content, answer = f"{self.processor.image_token}\n{instruction}", beginning
            chat = [{"role": "user", "content": content}]
            chats.append([*chat, {"role": "assistant", "content": answer}] if prefilled else chat)
        options: dict[str, Any] = {"padding": True}
        if not self.renders_lists:
            options["images"] = [[image] for image in images]
        return self.processor.apply_chat_template(
            chats,
            chat_template=self.template,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=not prefilled,
            continue_final_message=prefilled,
            processor_kwargs=options,
            **self._template_options(),
        )

    def _template_options(self) -> dict[str, Any]:
        """Return chat template variables that switch a reasoning model's thinking off, where possible."""
        return {"enable_thinking": False} if "enable_thinking" in (self.template or "") else {}

    def rendered_turns(self, instruction: str, answer: str | None = None) -> str:
        """Render the chat template for an image, an instruction and perhaps an answer.

        Args:
            instruction: what the model is asked.
            answer: the answer. None: the text ends where an answer begins.
        """
        content: Any = [{"type": "image"}, {"type": "text", "text": instruction}]
        reply: Any = [{"type": "text", "text": answer}]
        if not self.renders_lists:
            content, reply = f"{self.processor.image_token}\n{instruction}", answer
        chat = [{"role": "user", "content": content}]
        if answer is not None:
            chat.append({"role": "assistant", "content": reply})
        options = {"chat_template": self.template, "add_generation_prompt": answer is None}
        return str(self.processor.apply_chat_template(chat, **options, **self._template_options()))

    def _rendered(self, content: Any) -> str:
        chat = [{"role": "user", "content": content}]
        options = {"chat_template": self.template, "add_generation_prompt": True, **self._template_options()}
        return str(self.processor.apply_chat_template(chat, **options))

    def _renders_lists(self) -> bool:
        """Return True if the template renders message contents as lists; older ones need text."""
        text = {"type": "text", "text": DEFAULT_INSTRUCTION}
        try:
            rendered, without_image = self._rendered([{"type": "image"}, text]), self._rendered([text])
        except Exception:  # templates raise errors of many types
            return False
        return DEFAULT_INSTRUCTION in rendered and "'type'" not in rendered and rendered != without_image

    def _plain_inputs(
        self, form: PromptForm, images: Sequence[Any], instructions: Sequence[str], beginnings: Sequence[str]
    ) -> Any:
        """Encode requests for a model family without a chat template."""
        options: dict[str, Any] = {"images": list(images), "return_tensors": "pt"}
        if form.text is not None:
            texts = [form.text.format(instruction) for instruction in instructions]
            if form.joins and not self.is_encoder_decoder:
                texts = [" ".join(filter(None, pair)) for pair in zip(texts, beginnings, strict=True)]
            options |= {"text": texts, "padding": True}
        elif self.takes_instruction:
            options["text"] = list(instructions)
        return self.processor(**options)

    def _with_tokens(self, tensors: dict[str, torch.Tensor], beginnings: Sequence[str]) -> dict[str, torch.Tensor]:
        """Append the tokens of caption beginnings to the prompts, or make them decoder inputs."""
        rows = [self.tokens_of(beginning) for beginning in beginnings]
        if self.is_encoder_decoder:
            return tensors | {"decoder_input_ids": torch.tensor([[*self.decoder_start, *row] for row in rows])}
        tokens, shape = torch.tensor(rows), tensors["input_ids"].shape  # [B, P], [B, T]
        grown = {}
        for name, values in tensors.items():
            if name == "input_ids":
                grown[name] = torch.cat((values, tokens), 1)
            elif values.shape == shape:
                tail = torch.full_like(tokens, VALUE_OF_CAPTION.get(name, 0)).to(values)
                grown[name] = torch.cat((values, tail), 1)
        return tensors | grown

    def tokens_of(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return list(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def without_prompt(self, sequences: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """Cut the prompt's tokens, which some models return, from generated rows `[B * n, T]`."""
        prompt = tensors.get("input_ids")
        if prompt is None or self.is_encoder_decoder or sequences.shape[1] < prompt.shape[1]:
            return sequences
        each = len(sequences) // len(prompt)
        begins = torch.equal(sequences[::each, : prompt.shape[1]], prompt)
        return sequences[:, prompt.shape[1] :] if begins else sequences

    def decode(self, tokens: torch.Tensor, beginning: str = "") -> str:
        """Decode generated tokens `[T]` to a caption, without special tokens and image placeholders.

        Args:
            tokens: see `without_prompt`.
            beginning: text that the caption begins with.

        Raises:
            UnfinishedThoughtError: the model was still thinking aloud.
        """
        ids = [token for token in tokens.tolist() if token != NO_TOKEN and token not in self.placeholders]
        if not self.is_encoder_decoder:
            ids = self.tokens_of(beginning) + ids
        text = self.processor.tokenizer.decode(ids, skip_special_tokens=True)
        if self.model_type == "kosmos-2":  # marks of phrases and places
            text = self.processor.post_process_generation(text)[0]
        return self._without_thinking(text, ids).strip()

    def _without_thinking(self, text: str, ids: list[int]) -> str:
        if self.thinking is None:
            return text
        opening, closing = self.thinking
        whole = text if closing in text else self.processor.tokenizer.decode(ids)  # marks may be special tokens
        if closing in whole:
            answer = whole.rpartition(closing)[2]
            return self.processor.tokenizer.decode(self.tokens_of(answer), skip_special_tokens=True)
        if opening in whole or self._prompt_opens_thinking():
            raise UnfinishedThoughtError(
                f"The model thinks aloud, and reached no caption in {len(ids)} tokens. Pass a larger "
                "`max_new_tokens`, or a model that does not think aloud."
            )
        return text

    def _prompt_opens_thinking(self) -> bool:
        assert self.thinking is not None
        rendered = self._rendered([{"type": "image"}, {"type": "text", "text": DEFAULT_INSTRUCTION}])
        return rendered.rstrip().endswith(self.thinking[0])

    def settings(self, instruction: str | None) -> dict[str, Any]:
        """Return the settings that determine captions beside weights and generation options, as JSON values."""
        used = self.default_instruction if instruction is None else instruction
        return {"instruction": used, "chat_template": self.template}


def chat_template_of(processor: Any) -> str | None:
    """Return the chat template of a processor or its tokenizer; None without one."""
    for part in (processor, getattr(processor, "tokenizer", None)):
        template = getattr(part, "chat_template", None)
        template = template.get("default") if isinstance(template, dict) else template
        if template:
            return str(template)
    return None


def thinking_marks(template: str, name: str) -> tuple[str, str] | None:
    """Return the tags around a reasoning model's thoughts, such as `<think>`; None for other models.

    Raises:
        ValueError: the template is of a model that thinks aloud, and has none of `THINKING_MARKS`.
    """
    for opening, closing in THINKING_MARKS:
        if opening in template or closing in template:
            return opening, closing
    if any(re.search(rf"\b{variable}\b", template) for variable in THINKING):
        raise ValueError(
            f"This {name} thinks aloud, and its chat template has none of the marks that are known: "
            f"{', '.join(opening for opening, _ in THINKING_MARKS)}. A caption could not be told from the thoughts."
        )
    return None


def generating_part(model: Any) -> Any:
    """Return the submodule whose configurations `model.generate()` uses; mostly the model itself."""
    form = PROMPTS.get(model.config.model_type)
    return getattr(model, form.generates) if form is not None and form.generates else model


def padded_on_the_left(processor: Any) -> Any:
    """Return a copy of a processor whose tokenizer pads on the left, so that generated text follows the prompt."""
    changed, changed.tokenizer = copy.copy(processor), copy.copy(processor.tokenizer)
    changed.tokenizer.padding_side = "left"
    return changed


def joined_outputs(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the outputs of `_forward` over several batches; shorter token rows are padded on the left."""
    if len(outputs) == 1:
        return outputs[0]
    joined: dict[str, Any] = {}
    for name, first in outputs[0].items():
        values = [output[name] for output in outputs]
        if isinstance(first, list):
            joined[name] = [value for rows in values for value in rows]
            continue
        longest, filling = (
            max(value.shape[-1] for value in values),
            torch.nan if first.is_floating_point() else NO_TOKEN,
        )
        padded = [torch.nn.functional.pad(value, (longest - value.shape[-1], 0), value=filling) for value in values]
        joined[name] = torch.cat(padded)
    return joined
