"""Encoders of images and captions, and the data collator that batches them as tensors."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_captioners.data.schema import IMAGE, IMAGES, REGIONS, image_column
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.pipelines.image_captioning import IMAGE_CAPTIONERS, is_native_processor, special_ids
from hf_captioners.processing.image_reading import read_image
from hf_captioners.processing.vocabulary import composed

from .instructed_encoding import InstructedEncoder
from .streams import SKIPPED


class CaptionEncoder(Protocol):
    """Interface of encoders of images and captions, for the collator and the evaluation."""

    declared_inputs: Mapping[str, str]  # columns that the model reads besides images, see `CaptionedImages`

    def encode_images(self, images: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the model inputs of B images."""
        ...

    def encode_columns(self, columns: Mapping[str, Sequence[Any]], images: int) -> dict[str, Tensor]:
        """Return the padded model inputs for further columns of B images (`declared_inputs`), such as attributes."""
        ...

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return `labels` `[B, T]` and the text inputs that the model needs for them."""
        ...

    def with_captions(self, inputs: dict[str, Tensor], captions: Sequence[str]) -> dict[str, Tensor]:
        """Return the model inputs for B images with captions, including `labels`."""
        ...

    def without_prompt(self, sequences: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return generated tokens without a leading prompt, if the model repeats the prompt."""
        ...

    def decode(self, tokens: Tensor) -> list[str]:
        """Decode generated tokens `[B, T]` to captions."""
        ...


class SeparateCaptions:
    """Mixin for encoders whose image inputs and caption inputs have different names."""

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return the model inputs for captions, see `CaptionEncoder`."""
        raise NotImplementedError

    def with_captions(self, inputs: dict[str, Tensor], captions: Sequence[str]) -> dict[str, Tensor]:
        """Return the model inputs for images and captions together."""
        return {**inputs, **self.encode_captions(captions)}

    def without_prompt(self, sequences: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the sequences unchanged: there is no prompt."""
        return sequences


class ProcessorEncoder(SeparateCaptions):
    """Encoder that uses a processor of this library.

    Args:
        processor: a `CaptioningProcessor`.
        max_tokens: maximum caption length in tokens, end token included; None for no limit.
    """

    def __init__(self, processor: Any, max_tokens: int | None) -> None:
        self.processor, self.max_tokens = processor, max_tokens
        self.declared_inputs: Mapping[str, str] = processor.input_columns

    def encode_columns(self, columns: Mapping[str, Sequence[Any]], images: int) -> dict[str, Tensor]:
        """Return the padded model inputs for further columns, words as ids; see `CaptioningProcessor.pad_columns`."""
        padded = self.processor.pad_columns(columns, images)
        return {name: torch.from_numpy(values) for name, values in padded.items()}

    def encode_images(self, images: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return `pixel_values` (with `view_mask` for several views), or region features with mask and boxes."""
        column = image_column(images[0]) or IMAGE
        argument = REGIONS if column == REGIONS else IMAGES
        return dict(self.processor(**{argument: [item[column] for item in images]}, return_tensors="pt"))

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return `labels` `[B, T]`: caption tokens and end token, padded with the ignored label."""
        return dict(self.processor(text_target=list(captions), max_length=self.max_tokens, return_tensors="pt"))

    def decode(self, tokens: Tensor) -> list[str]:
        """Decode generated tokens `[B, T]` to captions."""
        return self.processor.post_process_image_text_to_text(tokens)


class ForeignEncoder(SeparateCaptions):
    """Encoder for captioners of transformers, whose processors make no labels.

    An encoder-decoder (`VisionEncoderDecoderModel`) takes labels alone and shifts them. Other models (BLIP, GIT) take
    `input_ids` that begin with the first token of `generate()`, and the same ids as labels.

    Args:
        processor: has an `image_processor` and a `tokenizer`; see `ImageTextProcessor` for models without one.
        model: the captioner.
        max_tokens: maximum caption length in tokens, end token included; None for no limit.

    Raises:
        ValueError: the model names no end token, or no begin token although it needs one.
    """

    declared_inputs: Mapping[str, str] = {}

    def __init__(self, processor: Any, model: PreTrainedModel, max_tokens: int | None) -> None:
        self.image_processor, self.tokenizer = processor.image_processor, processor.tokenizer
        self.max_tokens = max_tokens
        self.begin, self.end = special_ids(model, self.tokenizer)
        self.shifts_inside = not model.config.is_encoder_decoder
        if self.end is None or (self.shifts_inside and self.begin is None):
            raise ValueError(
                f"{type(model).__name__} names no {'end' if self.end is None else 'begin'} token in its generation "
                "configuration, and its tokenizer has none; set model.generation_config.eos_token_id and bos_token_id."
            )

    def encode_columns(self, columns: Mapping[str, Sequence[Any]], images: int) -> dict[str, Tensor]:
        """Return nothing: captioners of transformers read no further columns."""
        return {}

    def encode_images(self, images: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return `pixel_values` `[B, C, H, W]`.

        Raises:
            ValueError: rows have several views.
        """
        if image_column(images[0]) == IMAGES:
            raise ValueError(
                "Rows with several views (`images`) need a captioner of this library. Load one view per row with "
                "max_views=1."
            )
        opened = [read_image(item["image"]) for item in images]
        return {"pixel_values": self.image_processor(opened, return_tensors="pt")["pixel_values"]}

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return `labels` `[B, T]`; also `input_ids` and `attention_mask` `[B, T]` where the model shifts labels."""
        kept = None if self.max_tokens is None else self.max_tokens - 1
        rows = self.tokenizer(list(map(composed, captions)), add_special_tokens=False)["input_ids"]
        rows = [[*row[:kept], self.end] for row in rows]
        if not self.shifts_inside:
            return {"labels": _pad_tokens(rows, IGNORED_LABEL)}
        rows = [[self.begin, *row] for row in rows]
        labels = _pad_tokens(rows, IGNORED_LABEL)
        real = labels != IGNORED_LABEL
        pad: Any = self.end if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        input_ids = labels.masked_fill(~real, pad)
        # A model that shifts labels itself never predicts its first token, so the token must not count in the loss.
        labels[:, 0] = IGNORED_LABEL
        return {"input_ids": input_ids, "attention_mask": real.long(), "labels": labels}

    def decode(self, tokens: Tensor) -> list[str]:
        """Decode generated tokens `[B, T]` to captions."""
        return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def caption_encoder(
    processor: Any, model: PreTrainedModel, max_tokens: int | None = None, instruction: str | None = None
) -> CaptionEncoder:
    """Return the encoder for a processor and a model.

    Args:
        processor: the captioner's processor.
        model: the captioner.
        max_tokens: maximum caption length in tokens, end token included; None for no limit.
        instruction: what a model is asked that captions by an instruction. None: its default.

    Raises:
        ValueError: the processor lacks an image processor or a tokenizer, or the model reads no instruction.
    """
    missing = [name for name in ("image_processor", "tokenizer") if getattr(processor, name, None) is None]
    if missing:
        raise ValueError(
            f"`processing_class` is a {type(processor).__name__} without {' and '.join(missing)}. Pass the whole "
            "processor, or ImageTextProcessor(image_processor, tokenizer)."
        )
    is_own = is_native_processor(processor)
    if not is_own and model.config.model_type not in IMAGE_CAPTIONERS:
        return InstructedEncoder(processor, model, max_tokens, instruction)
    if instruction is not None:
        raise ValueError(
            f"`instruction` is {instruction!r}, and a {type(model).__name__} reads images alone: leave it out."
        )
    if is_own:
        return ProcessorEncoder(processor, max_tokens)
    return ForeignEncoder(processor, model, max_tokens)


def _pad_tokens(rows: list[list[int]], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)


@dataclass
class CaptionCollator:
    """Data collator for B items of `CaptionPairs` (with labels) or `CaptionedImages` (without).

    Args:
        encoder: encodes images and captions.
        share_images: put an image into the batch once if the K captions of each image follow each other; for models
            that read B images with B * K captions, as those of this library.
    """

    encoder: CaptionEncoder
    share_images: bool = False

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return `pixel_values`, or `region_features`, `region_boxes`, `region_mask`; with captions also `labels`.

        Further inputs that the model declares are padded, see `CaptioningProcessor.pad_columns`.
        """
        if SKIPPED in items[0]:
            return {SKIPPED: torch.ones(len(items), dtype=torch.bool)}
        images = once_each(items) if self.share_images and "row" in items[0] else items
        if "region_features" in items[0]:
            batch = stack_features(images)
        else:
            batch = self.encoder.encode_images(images)
        if declared := items[0].get("declared"):
            rows = {name: [item["declared"][name] for item in images] for name in declared}
            batch.update(self.encoder.encode_columns(rows, len(images)))
        if "caption" in items[0]:
            batch = self.encoder.with_captions(batch, [item["caption"] for item in items])
        return batch


def once_each(items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the first item of each image, if every image has the same number of consecutive items."""
    runs = [len(list(run)) for _, run in itertools.groupby(item["row"] for item in items)]
    return items[:: runs[0]] if len(set(runs)) == 1 else items


def stack_features(items: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Stack stored features of B images to `[B, R, D]` float32, with boxes `[B, R, 4]` and mask `[B, R]`."""
    counts = np.array([len(item["region_features"]) for item in items])
    columns: dict[str, Tensor] = {
        name: torch.from_numpy(_pad_regions([item[name] for item in items], counts)).float()
        for name in ("region_features", "region_boxes")
        if name in items[0]
    }
    if "region_views" in items[0]:
        columns["region_views"] = torch.from_numpy(_pad_regions([item["region_views"] for item in items], counts))
    return {**columns, "region_mask": torch.from_numpy(np.arange(counts.max()) < counts[:, None])}


def _pad_regions(rows: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Pad the region rows `[R_i, ...]` of each image with zeros, to `[B, R, ...]`."""
    if (counts == counts[0]).all():
        return np.stack(rows)
    padded = np.zeros((len(rows), counts.max(), *rows[0].shape[1:]), rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
