"""Images and captions as a model wants them: this library's processors, and those of transformers' captioners."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_captioners.data.schema import IMAGE, IMAGES, REGIONS, image_column
from hf_captioners.processing.image_reading import read_image

IGNORED_LABEL = -100


class CaptionEncoder(Protocol):
    """What the collator and the evaluation need of a processor."""

    row_inputs: Sequence[str]  # columns of ids that the model reads beside images, see `CaptionedImages`

    def encode_images(self, images: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Model inputs of B images."""
        ...

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """`labels` `[B, T]`, and what the model reads beside them."""
        ...

    def decode(self, tokens: Tensor) -> list[str]:
        """Captions of generated tokens `[B, T]`."""
        ...


class ProcessorEncoder:
    """The processors of this library.

    Args:
        processor: a `CaptioningProcessor`.
        max_tokens: longest caption, end token included.
    """

    def __init__(self, processor: Any, max_tokens: int | None) -> None:
        self.processor, self.max_tokens = processor, max_tokens
        self.row_inputs: Sequence[str] = getattr(processor, "row_inputs", ())

    def encode_images(self, images: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`pixel_values` (of several views with `view_mask`), or region features with mask and boxes."""
        column = image_column(images[0]) or IMAGE
        argument = REGIONS if column == REGIONS else IMAGES
        return dict(self.processor(**{argument: [item[column] for item in images]}, return_tensors="pt"))

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """`labels` `[B, T]`: tokens, end token, -100."""
        return dict(self.processor(text_target=list(captions), max_length=self.max_tokens, return_tensors="pt"))

    def decode(self, tokens: Tensor) -> list[str]:
        """Captions of generated tokens `[B, T]`."""
        return self.processor.post_process_image_text_to_text(tokens)


class ForeignEncoder:
    """Captioners of transformers itself, whose processors make no labels.

    An encoder-decoder (`VisionEncoderDecoderModel`) gets labels alone and shifts them. Others (BLIP, GIT) get
    `input_ids` that begin with the token their `generate()` begins with, and the same as labels.

    Args:
        processor: has an `image_processor` and a `tokenizer`; see `ImageTextProcessor` if there is none.
        model: the captioner.
        max_tokens: longest caption, end token included.

    Raises:
        ValueError: the model names no end token, or no begin token although it needs one.
    """

    row_inputs: Sequence[str] = ()

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

    def encode_images(self, images: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`pixel_values` `[B, C, H, W]`.

        Raises:
            ValueError: rows have several views.
        """
        if image_column(images[0]) == IMAGES:
            raise ValueError(
                "Rows with several views (`images`) need a captioner of this library. Load one view of each with "
                "max_views=1."
            )
        opened = [read_image(item["image"]) for item in images]
        return {"pixel_values": self.image_processor(opened, return_tensors="pt")["pixel_values"]}

    def encode_captions(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """`labels` `[B, T]` and, where the model shifts inside, `input_ids` and `attention_mask` `[B, T]`."""
        kept = None if self.max_tokens is None else self.max_tokens - 1
        rows = self.tokenizer(list(captions), add_special_tokens=False)["input_ids"]
        rows = [[*row[:kept], self.end] for row in rows]
        if not self.shifts_inside:
            return {"labels": _padded(rows, IGNORED_LABEL)}
        rows = [[self.begin, *row] for row in rows]
        labels = _padded(rows, IGNORED_LABEL)
        real = labels != IGNORED_LABEL
        pad: Any = self.end if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        input_ids = labels.masked_fill(~real, pad)
        # A model that shifts inside never predicts its first token; it is marked so that nobody counts it.
        labels[:, 0] = IGNORED_LABEL
        return {"input_ids": input_ids, "attention_mask": real.long(), "labels": labels}

    def decode(self, tokens: Tensor) -> list[str]:
        """Captions of generated tokens `[B, T]`."""
        return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def special_ids(model: PreTrainedModel, tokenizer: Any) -> tuple[int | None, int | None]:
    """The tokens that a captioner of transformers begins and ends captions with."""
    config, defaults = model.config, model.generation_config
    if config.model_type == "blip":  # fixed in its own `generate`
        return config.text_config.bos_token_id, config.text_config.sep_token_id
    end = defaults.eos_token_id
    end = end[0] if isinstance(end, list) else end
    begins = (defaults.decoder_start_token_id, defaults.bos_token_id, tokenizer.bos_token_id, tokenizer.cls_token_id)
    ends = (end, tokenizer.eos_token_id, tokenizer.sep_token_id)
    return (
        next((token for token in begins if token is not None), None),
        next((token for token in ends if token is not None), None),
    )


def caption_encoder(processor: Any, model: PreTrainedModel, max_tokens: int | None = None) -> CaptionEncoder:
    """The encoder for a processor and a model.

    Raises:
        ValueError: the processor lacks an image processor or a tokenizer.
    """
    missing = [name for name in ("image_processor", "tokenizer") if getattr(processor, name, None) is None]
    if missing:
        raise ValueError(
            f"`processing_class` is a {type(processor).__name__} without {' and '.join(missing)}. Pass the whole "
            "processor, or ImageTextProcessor(image_processor, tokenizer)."
        )
    if hasattr(processor, "encode_captions"):
        return ProcessorEncoder(processor, max_tokens)
    return ForeignEncoder(processor, model, max_tokens)


def _padded(rows: list[list[int]], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)
