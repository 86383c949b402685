"""Checks that image files exist and can be decoded."""

from __future__ import annotations

import io
import os
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import PIL.Image

from .report import DataReport, ProblemKind
from .schema import CaptionRow

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
)


def is_image_name(name: str) -> bool:
    """Return whether a file name has the suffix of an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def list_images(folder: Path) -> list[Path]:
    """List the image files of a folder and the folders in it, sorted; hidden ones are omitted."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(names) if is_image_name(name) and not name.startswith(".")]
    return found


def why_undecodable(image: Any) -> str | None:
    """Decode an image at low resolution; return the error, or None.

    Args:
        image: a path, or `{"bytes": ..., "path": ...}`.
    """
    source = io.BytesIO(image["bytes"]) if isinstance(image, dict) else image
    try:
        with PIL.Image.open(source) as opened:
            # A JPEG is decoded at an eighth of its size: every byte is still read, so a truncated file is detected.
            opened.draft(opened.mode, (max(1, opened.width // 8), max(1, opened.height // 8)))
            opened.load()
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        return str(error).replace("\n", " ")
    return None


def usable_rows(rows: list[CaptionRow], report: DataReport, decode: bool, workers: Executor) -> list[CaptionRow]:
    """Return the rows whose images exist; report the others.

    Args:
        rows: rows whose images are paths, bytes, lists of these, or None.
        report: receives one problem per missing or unreadable image.
        decode: whether to decode images; otherwise only their existence is checked.
        workers: threads that decode images.
    """
    usable = []
    faults = workers.map(_decoding_fault, rows) if decode else map(_missing_fault, rows)
    for row, fault in zip(rows, faults, strict=True):
        if fault is None:
            usable.append(row)
        else:
            report.add(fault[0], row.file, row.line, fault[1])
    return usable


def _images_of(row: CaptionRow) -> list[Any]:
    if row.image is None:
        return []
    return row.image if isinstance(row.image, list) else [row.image]


def _missing_fault(row: CaptionRow) -> tuple[ProblemKind, str] | None:
    for image in _images_of(row):
        if not isinstance(image, dict) and not os.path.isfile(image):
            return ProblemKind.MISSING_IMAGE, f"there is no file {image}"
    return None


def _decoding_fault(row: CaptionRow) -> tuple[ProblemKind, str] | None:
    if missing := _missing_fault(row):
        return missing
    for image in _images_of(row):
        if (reason := why_undecodable(image)) is not None:
            name = image["path"] if isinstance(image, dict) else image
            return ProblemKind.UNREADABLE_IMAGE, f"{name} is empty, corrupt or no image ({reason})"
    return None
