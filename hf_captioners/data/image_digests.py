"""Digests of images, by which the same image is found under any name and in any folder."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from typing import Any

from datasets import Dataset, Image, List

from .schema import IMAGE, IMAGES

MAX_FILES = 1 << 20  # whose digests a process remembers


def image_digests(rows: Dataset) -> list[str] | None:
    """Return the SHA-256 digest of each row's image file; several views have one digest.

    Args:
        rows: a data set with the column `image`, or `images` for several views.

    Returns:
        64 hexadecimal digits for each row. None: there is no such column.

    Raises:
        OSError: a file cannot be read.
        ValueError: a row has no image.
    """
    column = next((name for name in (IMAGE, IMAGES) if name in rows.column_names), None)
    if column is None:
        return None
    kind = Image(decode=False)
    only = rows.with_format(None).select_columns([column])
    undecoded = only.cast_column(column, List(kind) if isinstance(rows.features[column], List) else kind)
    views = [row[column] if isinstance(row[column], list) else [row[column]] for row in undecoded]
    return [_digest(of_row, number) for number, of_row in enumerate(views)]


def _digest(views: list[dict[str, Any] | None], row: int) -> str:
    digest = hashlib.sha256()
    for view in views:
        if view is None:
            raise ValueError(f"The row {row} has no image (loaded with with_images=False?).")
        if view["bytes"] is not None:
            digest.update(hashlib.sha256(view["bytes"]).digest())
        else:
            path = os.path.realpath(view["path"])
            status = os.stat(path)
            digest.update(_file_digest(path, status.st_size, status.st_mtime_ns))
    return digest.hexdigest()


@lru_cache(MAX_FILES)
def _file_digest(path: str, size: int, time: int) -> bytes:
    """Return the digest of a file, cached until its size or time changes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
