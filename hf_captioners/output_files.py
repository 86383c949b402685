"""Whether results can be written where they were asked for; known before any work is done."""

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


def require_writable_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder if it is missing and see that files can be written there.

    Raises:
        PermissionError: they cannot.
        NotADirectoryError: a file has this name.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, expected a folder to write into.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise PermissionError(f"{path} cannot be written to ({error.strerror}). Choose another folder.") from error


def write_text(path: Path, text: str) -> None:
    """Write a file at once: whoever looks sees the old one or all of the new one."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}-", delete=False
    ) as file:
        file.write(text)
    os.replace(file.name, path)


def as_json(value: Any) -> str:
    """JSON for people; nan, which is not JSON, is null."""

    def plain(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: plain(entry) for key, entry in item.items()}
        return None if isinstance(item, float) and math.isnan(item) else item

    return json.dumps(plain(value), indent=2)


PATIENCE = 5.0  # seconds; a run that was killed may leave processes behind for a moment, which hold its lock


@contextmanager
def only_run_in(folder: str | os.PathLike[str], is_main: bool = True) -> Iterator[None]:
    """Keep other runs out of a folder while something is written there.

    Args:
        folder: the folder, which exists.
        is_main: whether this is the process that speaks for a run of several.

    Raises:
        BlockingIOError: another run is writing there.
    """
    if not is_main:
        yield
        return
    try:
        with FileLock(Path(folder, ".run.lock"), timeout=PATIENCE):
            yield
    except Timeout:
        raise BlockingIOError(
            f"Another run is writing into {folder}. Wait for its end (--resume goes on from there), or pass another "
            "--output_dir."
        ) from None
