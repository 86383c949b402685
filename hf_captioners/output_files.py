"""Output files and folders: checked before the work starts, written atomically, locked against other runs."""

import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

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


@contextmanager
def atomic_file(path: str | os.PathLike[str], mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open a file for writing that appears under its name only when the block ends without an error.

    Until then the content is in a temporary file in the same folder, whose name no other process uses, so that readers
    see the old file or all of the new one, and a process that is killed leaves the old one.

    Args:
        path: the file to write or to replace. Its folder exists.
        mode: `"w"` (UTF-8 text) or `"wb"`.
        **options: further arguments of `open`.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    encoding = {} if "b" in mode else {"encoding": "utf-8"}
    try:
        with open(temporary, mode, **(encoding | options)) as file:
            yield file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically, see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text)


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
