"""References of images: options of their readers, and one row per image or per caption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .reader import CaptionReader
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


@dataclass(kw_only=True)
class ReferenceReader(CaptionReader):
    """Base class of readers of photographs with several references each.

    Attributes:
        max_captions: keep at most this many references per image; None keeps all.
        row_per_caption: one row per caption.
        image_dir: folder of the images, or of the folders with them.
        with_images: False loads captions only (`image` is None).
    """

    max_captions: int | None = None
    row_per_caption: bool = False
    image_dir: str | Path | None = None
    with_images: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.max_captions is not None and self.max_captions < 1:
            raise ValueError(f"`max_captions` is {self.max_captions}; expected at least 1, or None for all.")

    def shaped(self, rows: Iterable[CaptionRow]) -> Iterator[CaptionRow]:
        """Yield rows as `max_captions` and `row_per_caption` ask for, see `shaped_rows`."""
        return shaped_rows(rows, self.max_captions, self.row_per_caption)

    def find_annotations(self, name: str) -> Path | None:
        """Return the path of an annotation file in `data_dir` or its folder `annotations`, also as `.gz`."""
        places = [self.folder / part / f"{name}{end}" for part in ("", "annotations") for end in ("", ".gz")]
        return next((path for path in places if path.is_file()), None)


def _some(row: CaptionRow, chosen: slice) -> CaptionRow:
    extra = {key: value[chosen] if key in PER_CAPTION else value for key, value in row.extra.items()}
    return replace(row, captions=row.captions[chosen], extra=extra)
