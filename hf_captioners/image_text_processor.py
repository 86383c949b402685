"""Processor of captioners whose image processor and tokenizer were saved separately."""

import os
from typing import Any

from transformers import BatchFeature


class ImageTextProcessor:
    """Processor of an image processor and a tokenizer that were saved separately.

    Args:
        image_processor: an image processor of transformers.
        tokenizer: a tokenizer of transformers.
    """

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.image_processor, self.tokenizer = image_processor, tokenizer
        self.model_input_names = ["pixel_values", "labels"]

    def __call__(
        self, images: Any = None, text: Any = None, return_tensors: str | None = None, **options: Any
    ) -> BatchFeature:
        """Prepare images and texts for the captioner.

        Args:
            images: images that the image processor reads: `pixel_values` `[B, 3, H, W]`.
            text: texts that the tokenizer reads: `input_ids` and `attention_mask` `[B, T]`.
            return_tensors: `"pt"` or `"np"`; None: lists.
            **options: of the tokenizer, for example `padding=True`.

        Raises:
            ValueError: there are neither images nor texts.
        """
        if images is None and text is None:
            raise ValueError("`images` and `text` are missing: pass at least one of them.")
        inputs: dict[str, Any] = {}
        if images is not None:
            inputs.update(self.image_processor(images, return_tensors=return_tensors))
        if text is not None:
            inputs.update(self.tokenizer(text, return_tensors=return_tensors, **options))
        return BatchFeature(inputs)

    def decode(self, tokens: Any, **options: Any) -> str:
        """Decode token ids `[T]` to a text; `options` are passed to `tokenizer.decode`."""
        return self.tokenizer.decode(tokens, **options)

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]:
        """Decode token ids `[B, T]` to texts; `options` are passed to `tokenizer.batch_decode`."""
        return self.tokenizer.batch_decode(sequences, **options)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save image processor and tokenizer into one directory."""
        self.image_processor.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)
