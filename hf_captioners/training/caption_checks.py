"""Checks of training captions before the first step: captions without words, and captions that are too long."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging

from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL

from .caption_encoding import CaptionEncoder
from .images import CaptionedImages

logger = logging.get_logger(__name__)

SHOWN = 5
AT_ONCE = 1000  # captions that are encoded together


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


def positions_of(model: PreTrainedModel) -> int | None:
    """Return the largest number of tokens that the decoder reads; None if there is no limit, or an unknown one."""
    config = model.config
    for name in ("text_config", "decoder"):
        part = getattr(config, name, None)
        config = config if part is None else part
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def require_short_captions(
    images: CaptionedImages, encoder: CaptionEncoder, model: PreTrainedModel, name: str
) -> None:
    """Check that the decoder has a position for each token of each caption.

    Args:
        images: the images with their captions.
        encoder: encodes captions; it cuts them where `max_caption_tokens` is set.
        model: the captioner.
        name: of the data, for the message.

    Raises:
        ValueError: captions are too long. The message names the first ones.
    """
    positions = positions_of(model)
    if positions is None:
        return
    # A token stands for at least one byte, beside a few special ones: short texts need not be encoded.
    texts = [
        (row, caption)
        for row, captions in enumerate(images.captions)
        for caption in captions
        if len(caption.encode(errors="replace")) + 8 > positions
    ]
    lengths = [length for first in range(0, len(texts), AT_ONCE) for length in _lengths(texts, first, encoder)]
    long = [(length, row, text) for length, (row, text) in zip(lengths, texts, strict=True) if length > positions]
    if not long:
        return
    shown = "\n".join(
        f"  row {row}, image {images.image_ids[row]!r}: {length:,} tokens: {text[:60]!r}"
        for length, row, text in long[:SHOWN]
    )
    more = f"\n  ... and {len(long) - SHOWN:,} more" if len(long) > SHOWN else ""
    raise ValueError(
        f"{len(long):,} {name} captions have more tokens than the {positions:,} positions of the decoder:\n"
        f"{shown}{more}\nCut them with --max_caption_tokens {positions} (or a smaller number), or leave them out."
    )


def _lengths(texts: Sequence[tuple[int, str]], first: int, encoder: CaptionEncoder) -> Sequence[int]:
    """Return the number of tokens of each of the next captions."""
    encoded: dict[str, Any] = encoder.encode_captions([text for _, text in texts[first : first + AT_ONCE]])
    if "attention_mask" in encoded:  # of a model that reads the begin token too
        return encoded["attention_mask"].sum(1).tolist()
    return (encoded["labels"] != IGNORED_LABEL).sum(1).tolist()
