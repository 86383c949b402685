"""Processor of the Entangled Transformer: captions in whole words, and attributes."""

from collections.abc import Mapping
from typing import ClassVar

from .processing_captioning import CaptioningProcessor


class ETAProcessor(CaptioningProcessor):
    """Processor of the Entangled Transformer, with the arguments of `CaptioningProcessor`.

    Attributes of images are given as words, `attributes=[["dog", "grass"], ["kitchen"]]`, one list per image, in place
    of those that the captioner detects; words outside the vocabulary are left out, with a warning that counts them.
    The tokenizer has whole words.
    """

    word_columns: ClassVar[Mapping[str, str]] = {"attributes": "attribute_ids"}
