"""Captions by plain transformers, as the reference for this library with the same checkpoints."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

INSTRUCTION = "Describe this image."
# The text of families without a chat template; None: the images alone.
TEXTS = {
    "blip": None,
    "git": None,
    "vision-encoder-decoder": None,
    "pix2struct": None,
    "blip-2": "",
    "instructblip": INSTRUCTION,
    "paligemma": "<image>caption en",
    "florence2": "<CAPTION>",
    "kosmos-2": "<grounding>An image of",
}


class PlainCaptioner:
    """Model and processor of a checkpoint, as the documentation of transformers uses them."""

    def __init__(self, folder: Any) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.model_type = self.model.config.model_type
        if self.model_type == "vision-encoder-decoder":
            self.processor = AutoImageProcessor.from_pretrained(folder)
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            return
        self.processor = AutoProcessor.from_pretrained(folder)
        self.tokenizer = self.processor.tokenizer
        if not self.model.config.is_encoder_decoder:
            self.tokenizer.padding_side = "left"

    def inputs(self, images: Sequence[Any], instruction: str | None = None) -> Any:
        """Return the model inputs of images."""
        if self.model_type in TEXTS:
            text = TEXTS[self.model_type]
            if text is None:
                return self.processor(images=list(images), return_tensors="pt")
            if instruction is not None:
                text = f"<image>{instruction}" if self.model_type == "paligemma" else instruction
            inputs = self.processor(images=list(images), text=[text] * len(images), padding=True, return_tensors="pt")
            inputs.pop("labels", None)
            return inputs
        chats = [
            [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]
            for image, text in zip(images, [instruction or INSTRUCTION] * len(images), strict=True)
        ]
        return self.processor.apply_chat_template(
            chats,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
            processor_kwargs={"padding": True},
        )

    @torch.no_grad()
    def __call__(
        self, images: Sequence[Any], instruction: str | None = None, **options: Any
    ) -> list[tuple[list[int], list[float]]]:
        """Return the generated tokens of each image up to its end token, and their log-probabilities."""
        output = self.model.generate(
            **self.inputs(images, instruction), return_dict_in_generate=True, output_logits=True, **options
        )
        tokens = output.sequences[:, -len(output.logits) :]
        logprobs = torch.stack(output.logits, 1).float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        return [self._until_end(row, scores) for row, scores in zip(tokens.tolist(), logprobs.tolist(), strict=True)]

    def _until_end(self, row: list[int], scores: list[float]) -> tuple[list[int], list[float]]:
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        if self.model_type == "blip":
            ends = [self.model.config.text_config.sep_token_id]
        length = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
        return row[:length], scores[:length]
