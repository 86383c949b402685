"""Fingerprints of data sets, so that cached copies of edited data are not used."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import PIL

from hf_captioners.metrics import (
    annotation_files,
    caption_tables,
    separated_tables,
    spreadsheets,
    table_columns,
    text_encoding,
)

from .file_digests import content_hash
from .reader import CaptionReader

TABLE_READERS = (annotation_files, caption_tables, separated_tables, spreadsheets, table_columns, text_encoding)


def fingerprint(reader: CaptionReader) -> str:
    """Return a hash of everything on which a reader's rows depend.

    These are its options, the contents of its annotation files, names, sizes and times of its images, and the code of
    this package's readers.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(reader):
        digest.update(part.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(reader: CaptionReader) -> Iterator[str]:
    yield type(reader).__qualname__
    yield PIL.__version__
    for option in dataclasses.fields(reader):
        value = getattr(reader, option.name)
        yield f"{option.name}={os.path.abspath(value) if isinstance(value, Path) else value!r}"
    code = [*sorted(Path(__file__).parent.glob("*.py")), *(Path(str(module.__file__)) for module in TABLE_READERS)]
    annotations = list(reader.annotation_files())
    for file in annotations:
        reader.require_link_inside(file)
    for file in [*code, *annotations]:
        yield f"{os.path.abspath(file)} {content_hash(file)}"
    yield from _stamps(reader.image_places())


def _stamps(places: Iterable[Path]) -> Iterator[str]:
    for place in places:
        if place.is_dir():
            with os.scandir(place) as entries:
                listed = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
            for entry in listed:
                if os.path.isdir(entry.path):  # False for a loop of links, where `entry.is_dir` raises
                    yield from _stamps([Path(entry.path)])
                else:
                    yield f"{os.path.abspath(entry.path)} {_stamp(entry)}"
        elif place.exists():
            yield f"{os.path.abspath(place)} {_stamp(place)}"


def _stamp(file: Path | os.DirEntry[str]) -> str:
    """Return size and modification time of a file; for a broken link, of the link itself."""
    try:
        state = file.stat()
    except OSError:
        state = file.stat(follow_symlinks=False)
    return f"{state.st_size} {state.st_mtime_ns}"
