"""Layout of references: one row per image or per caption, with a limited number of references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from .schema import CaptionRow

# Columns with one value per caption.
PER_CAPTION = ("caption_ids", "tokens")


def shaped_rows(rows: Iterable[CaptionRow], max_captions: int | None, row_per_caption: bool) -> Iterator[CaptionRow]:
    """Yield rows with at most `max_captions` references, one row per image or per caption.

    Args:
        rows: one row per image.
        max_captions: keep at most this many references; None keeps all (some COCO images have six or seven, and
            published scores use them).
        row_per_caption: one row per caption, as the released training scripts count them. Rows of one image
            then share their `image_id`; an image without captions keeps its row.
    """
    for row in rows:
        if max_captions is not None:
            row = _some(row, slice(max_captions))
        if row_per_caption and row.captions:
            yield from (_some(row, slice(index, index + 1)) for index in range(len(row.captions)))
        else:
            yield row


def check_max_captions(max_captions: int | None) -> None:
    """Raise a `ValueError` unless the number of references is None or at least 1."""
    if max_captions is not None and max_captions < 1:
        raise ValueError(f"`max_captions` is {max_captions}; expected at least 1, or None for all.")


def _some(row: CaptionRow, chosen: slice) -> CaptionRow:
    extra = {key: value[chosen] if key in PER_CAPTION else value for key, value in row.extra.items()}
    return replace(row, captions=row.captions[chosen], extra=extra)
