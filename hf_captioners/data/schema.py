"""Column schema of captioned data sets.

| column | type | meaning |
|---|---|---|
| `image_id` | string | unique within a split; a file name, or the number of the image in the data set |
| `image` | `Image` | the image, decoded on access; None with `with_images=False` |
| `images` | list of `Image` | instead of `image` if a row has several views |
| `captions` | list of string | the references, in the order of the source; empty if they are not public |
| `split` | string | the split the row belongs to |

Additional columns of the source follow under their own names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.output_files import quoted_name

if TYPE_CHECKING:
    from datasets import Features

IMAGE_ID, IMAGE, IMAGES, CAPTIONS, SPLIT = "image_id", "image", "images", "captions", "split"
SCHEMA_COLUMNS = (IMAGE_ID, IMAGE, IMAGES, CAPTIONS, SPLIT)
REGIONS = "regions"
IMAGE_COLUMNS = (IMAGE, IMAGES, REGIONS)


def image_column(names: Iterable[str]) -> str | None:
    """Return the name of the image column: `image`, `images` (several views) or `regions`.

    Args:
        names: the columns of a data set, or the keys of one row.

    Returns:
        The first of these columns that exists; None if there is none.
    """
    names_present = set(names)
    return next((name for name in IMAGE_COLUMNS if name in names_present), None)


@dataclass(slots=True)
class CaptionRow:
    """A row of a data set before storage in Arrow.

    Attributes:
        image_id: unique within its split; one that is not UTF-8 is stored as `quoted_name` returns it.
        image: path of the image, `{"bytes": ..., "path": ...}`, a list of these (views), or None.
        captions: the references; one row of a finished data set has all captions of an image.
        file: the file that contains the row, for reports.
        line: its line or record number there, from 1; None if the file has none.
        extra: values of the additional columns of the source.
        fault: why the image cannot be read, if that is known already.
    """

    image_id: str
    image: Any
    captions: list[str]
    file: str
    line: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None

    def as_record(self, split: str, views: bool) -> dict[str, Any]:
        """Return the row as a dictionary of schema columns for Arrow."""
        image = [_stored(view) for view in self.image] if views else _stored(self.image)
        return {
            IMAGE_ID: storable(self.image_id),
            (IMAGES if views else IMAGE): image,
            CAPTIONS: self.captions,
            **self.extra,
            SPLIT: split,
        }


def _stored(image: Any) -> Any:
    if not isinstance(image, (str, os.PathLike)):
        return image
    path = os.fspath(image)
    if storable(path) == path:
        return {"bytes": None, "path": path}
    return {"bytes": Path(path).read_bytes(), "path": None}  # Arrow stores UTF-8 only


def storable(value: Any) -> Any:
    """Return a text that is not valid UTF-8 as `quoted_name` writes it, for Arrow; other values unchanged."""
    is_name = isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value)
    return quoted_name(value, one_line=False) if is_name else value


def caption_features(extra: Features | None = None, views: bool = False) -> Features:
    """Return the `datasets` features of a captioned data set.

    Args:
        extra: features of the additional columns of the source.
        views: whether a row has a list of images (`images`) instead of one (`image`).

    Raises:
        ValueError: a column of the source has a name of the schema.
    """
    clashes = sorted(set(extra or {}) & set(SCHEMA_COLUMNS))
    if clashes:
        raise ValueError(f"The source columns {clashes} have names of the schema {list(SCHEMA_COLUMNS)}; rename them.")
    from datasets import Features, Image, List, Value  # its import takes a second that names of columns do not need

    image = {IMAGES: List(Image())} if views else {IMAGE: Image()}
    return Features(
        {
            IMAGE_ID: Value("string"),
            **image,
            CAPTIONS: List(Value("string")),
            SPLIT: Value("string"),
            **(extra or {}),
        }
    )
