"""Checks that image files exist and can be decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import PIL.features

from hf_captioners.processing.image_reading import check_image

from .report import DataReport, ProblemKind

if TYPE_CHECKING:
    from .schema import CaptionRow

# Formats that are read, and formats of photographs that are not, so that such files are named, not passed over.
READ_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2", ".j2k", ".jpx", ".avif"),
)
OTHER_SUFFIXES = (
    *(".heic", ".heif", ".hif", ".jxl", ".jxr", ".psd", ".tga", ".ico", ".pcx", ".eps", ".svg", ".exr", ".hdr"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"),
)
SAVED_FILE = "state.json"  # of `Dataset.save_to_disk`; each split of a `DatasetDict` has one in its folder
IMAGE_SUFFIXES = frozenset((*READ_SUFFIXES, *OTHER_SUFFIXES))
HEIF_SUFFIXES = (".heic", ".heif", ".hif")  # read by pillow-heif, the extra `heif`
# Formats that Pillow reads with a library that it may be built without.
LIBRARIES = {".webp": "webp", ".avif": "avif", ".jp2": "jpg_2000", ".j2k": "jpg_2000", ".jpx": "jpg_2000"}
SHOWN_PATH = 1000  # characters of a missing path in messages


def is_image_name(name: str) -> bool:
    """Return whether a file name has an image suffix."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def readable_suffixes() -> tuple[str, ...]:
    """Return the suffixes of the formats that the installed packages can read."""
    plain = [suffix for suffix in READ_SUFFIXES if suffix not in LIBRARIES or PIL.features.check(LIBRARIES[suffix])]
    return (*plain, *(HEIF_SUFFIXES if find_spec("pillow_heif") is not None else ()))


def list_images(folder: Path) -> list[Path]:
    """List the image files of a folder and its subfolders, sorted, without hidden files."""
    return [path for path in visible_files(folder) if is_image_name(path.name)]


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, sorted, without hidden files."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def first_file(candidates: Sequence[Path]) -> str:
    """Return the first path that is an existing file, or else the first path.

    Args:
        candidates: paths with names from tables, which may be too long for the file system.
    """
    return str(next((path for path in candidates if os.path.isfile(path)), candidates[0]))


def why_undecodable(image: Any) -> str | None:
    """Return why `read_image` cannot read an image; None if it can.

    Args:
        image: a path, or `{"bytes": ..., "path": ...}`.
    """
    source = image if not isinstance(image, dict) else image["path"] if image["bytes"] is None else image["bytes"]
    try:
        check_image(source)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def usable_rows(rows: list[CaptionRow], report: DataReport, decode: bool, workers: Executor) -> list[CaptionRow]:
    """Return the rows whose images exist; report the other rows.

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
    if row.fault is not None:
        return ProblemKind.UNREADABLE_IMAGE, row.fault
    for image in _images_of(row):
        if not isinstance(image, dict) and not os.path.isfile(image):
            path = str(image)
            shown = path if len(path) <= SHOWN_PATH else f"{path[:SHOWN_PATH]}... ({len(path):,} characters)"
            return ProblemKind.MISSING_IMAGE, f"there is no file {shown}"
    return None


def _decoding_fault(row: CaptionRow) -> tuple[ProblemKind, str] | None:
    if missing := _missing_fault(row):
        return missing
    for image in _images_of(row):
        if (reason := why_undecodable(image)) is not None:
            name = f"{image['path']}: " if isinstance(image, dict) and image["bytes"] is not None else ""
            return ProblemKind.UNREADABLE_IMAGE, name + reason
    return None
