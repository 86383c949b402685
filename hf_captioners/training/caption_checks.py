"""Checks of training captions before the first step: captions without words."""

from transformers.utils import logging

from .images import CaptionedImages

logger = logging.get_logger(__name__)


def warn_of_wordless(images: CaptionedImages) -> None:
    """Warn of captions of punctuation or emoji only, of which there is nothing to learn but their end."""
    empty = [
        (row, caption)
        for row, captions in enumerate(images.captions)
        for caption in captions
        if not any(map(str.isalnum, caption))
    ]
    if empty:
        row, caption = empty[0]
        total = sum(map(len, images.captions))
        logger.warning(
            f"{len(empty):,} of {total:,} training captions have no words, only punctuation or emoji; the first is "
            f"{caption[:40]!r} of the image {images.image_ids[row]!r}. Leave them out of the data."
        )
