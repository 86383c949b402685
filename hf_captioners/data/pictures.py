"""Whether picture files are there and can be decoded."""

from __future__ import annotations

import io
import os
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import PIL.Image

from .report import DataReport, ProblemKind
from .schema import CaptionRow

PICTURE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
)


def is_picture_name(name: str) -> bool:
    """Tell whether a file name ends like that of a picture."""
    return os.path.splitext(name)[1].lower() in PICTURE_SUFFIXES


def list_pictures(folder: Path) -> list[Path]:
    """List the picture files of a folder and the folders in it, sorted; hidden ones are left out."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(names) if is_picture_name(name) and not name.startswith(".")]
    return found


def why_undecodable(picture: Any) -> str | None:
    """Decode a picture coarsely and say what went wrong, or return None.

    Args:
        picture: a path, or `{"bytes": ..., "path": ...}`.
    """
    source = io.BytesIO(picture["bytes"]) if isinstance(picture, dict) else picture
    try:
        with PIL.Image.open(source) as image:
            # A JPEG is decoded at an eighth of its size: still every byte is read, so a truncated file is noticed.
            image.draft(image.mode, (max(1, image.width // 8), max(1, image.height // 8)))
            image.load()
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        return str(error).replace("\n", " ")
    return None


def usable_rows(rows: list[CaptionRow], report: DataReport, decode: bool, workers: Executor) -> list[CaptionRow]:
    """Return the rows whose pictures are there; report the others.

    Args:
        rows: rows with paths, bytes, lists of these, or None as pictures.
        report: gets one problem for each missing or unreadable picture.
        decode: whether pictures are decoded to see whether they are whole; otherwise only looked for.
        workers: threads that decode several pictures at a time.
    """
    usable = []
    faults = workers.map(_decoding_fault, rows) if decode else map(_missing_fault, rows)
    for row, fault in zip(rows, faults, strict=True):
        if fault is None:
            usable.append(row)
        else:
            report.add(fault[0], row.file, row.line, fault[1])
    return usable


def _pictures_of(row: CaptionRow) -> list[Any]:
    if row.image is None:
        return []
    return row.image if isinstance(row.image, list) else [row.image]


def _missing_fault(row: CaptionRow) -> tuple[ProblemKind, str] | None:
    for picture in _pictures_of(row):
        if not isinstance(picture, dict) and not os.path.isfile(picture):
            return ProblemKind.MISSING_PICTURE, f"there is no file {picture}"
    return None


def _decoding_fault(row: CaptionRow) -> tuple[ProblemKind, str] | None:
    if missing := _missing_fault(row):
        return missing
    for picture in _pictures_of(row):
        if (reason := why_undecodable(picture)) is not None:
            name = picture["path"] if isinstance(picture, dict) else picture
            return ProblemKind.UNREADABLE_PICTURE, f"{name} is empty, corrupt or no picture ({reason})"
    return None
