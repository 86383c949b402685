"""Drafts: typed but not yet kept captions, in a hidden file beside the table."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_captioners.data.schema import storable
from hf_captioners.output_files import MAX_TABLE_BYTES, change_file, read_bytes_inside, require_safe_target

from .table import MAX_CAPTIONS, json_line

DRAFTS = ".review_drafts.jsonl"
LONGEST_DRAFT = 50_000  # characters of all captions of an image
MAX_DRAFT_CAPTIONS = 2 * MAX_CAPTIONS


@dataclass(frozen=True)
class Draft:
    """Captions as typed, not yet kept.

    Attributes:
        captions: the texts, which may be empty.
        shown: the captions that the table had when the person began to change them.
    """

    captions: tuple[str, ...]
    shown: tuple[str, ...] = ()


class Drafts:
    """Drafts of a folder, one line per image; every change replaces the file atomically.

    Args:
        folder: the folder of the table.

    Raises:
        UnsafeFileError: the file is a link, no plain file, or too large.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / DRAFTS
        self.by_name: dict[str, Draft] = {}
        require_safe_target(self.path)
        if self.path.exists():
            for line in read_bytes_inside(self.path, folder, MAX_TABLE_BYTES).splitlines():
                name, draft = _read(line)
                if draft is not None:
                    self.by_name[name] = draft

    def put(self, name: str, draft: Draft | None) -> None:
        """Store or delete the draft of an image.

        Raises:
            OSError: the file cannot be written.
        """
        if draft == self.by_name.get(name):
            return
        entry = None if draft is None else {"file_name": name, "captions": draft.captions, "shown": draft.shown}
        added = b"" if entry is None else f"{json_line(entry)}\n".encode()

        def changed(content: bytes | None) -> bytes:
            other_lines = [line for line in (content or b"").splitlines() if line.strip() and _read(line)[0] != name]
            return b"".join(line + b"\n" for line in other_lines) + added

        change_file(self.path, changed, self.folder)
        if not self.path.stat().st_size:
            self.path.unlink()
        self.by_name = {key: value for key, value in self.by_name.items() if key != name}
        if draft is not None:
            self.by_name[name] = draft


def checked_draft(captions: Any, shown: Any = ()) -> Draft:
    """Return a draft from typed texts, if they are within the limits.

    Raises:
        ValueError: it is not made of texts, or they are too many or too long.
    """
    for texts in (captions, shown):
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"The draft is {texts!r:.80}, expected a list of texts.")
        if len(texts) > MAX_DRAFT_CAPTIONS or sum(map(len, texts)) > LONGEST_DRAFT:
            raise ValueError(
                f"The draft has {len(texts)} captions with {sum(map(len, texts)):,} characters, expected at most "
                f"{MAX_DRAFT_CAPTIONS} with {LONGEST_DRAFT:,}."
            )
        if any(storable(text) != text for text in texts):
            raise ValueError("A caption has characters that cannot be stored as UTF-8.")
    return Draft(tuple(captions), tuple(shown))


def is_change(captions: Sequence[str], of: Sequence[str]) -> bool:
    """Return whether typed captions differ from others, ignoring surrounding spaces and empty captions."""
    return [text.strip() for text in captions if text.strip()] != [text.strip() for text in of]


def _read(line: bytes) -> tuple[str, Draft | None]:
    """Parse a line into image name and draft; the draft is None if the line is damaged."""
    entry: Any = None
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
    if not isinstance(entry, dict) or not isinstance(entry.get("file_name"), str):
        return "", None
    with suppress(ValueError):
        return entry["file_name"], checked_draft(entry.get("captions"), entry.get("shown", []))
    return entry["file_name"], None
