"""Record of the tables whose rows were copied into a folder's `metadata.jsonl`, which replaces them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hf_captioners.output_files import read_bytes_inside, write_text

from .file_digests import content_hash

RECORD_NAME = ".converted_tables.json"
"""File beside the tables: the digest that each had when it was copied, by its name."""


def record_converted(tables: Iterable[Path], folder: Path) -> None:
    """Record that the rows of some tables were copied into `metadata.jsonl`.

    Args:
        tables: the tables.
        folder: the folder that a person typed.

    Raises:
        UnsafeFileError: the record is a symbolic link or no plain file.
    """
    digests = {path.name: content_hash(path) for path in tables}
    write_text(folder / RECORD_NAME, json.dumps(_record_of(folder) | digests, indent=1) + "\n", folder)


def unconverted(tables: Iterable[Path], folder: Path) -> list[Path]:
    """Return the tables of a folder that were not copied into `metadata.jsonl`, or have changed since."""
    record = _record_of(folder)
    return [path for path in tables if path.name not in record or content_hash(path) != record[path.name]]


def _record_of(folder: Path) -> dict[str, Any]:
    content: Any = None
    with suppress(FileNotFoundError, ValueError, RecursionError):
        content = json.loads(read_bytes_inside(folder / RECORD_NAME, folder))
    return content if isinstance(content, dict) else {}
