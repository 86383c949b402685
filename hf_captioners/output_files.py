"""Output files and folders: checked before the work starts, written atomically, locked against other runs."""

import errno
import json
import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def require_writable_folder(folder: str | os.PathLike[str]) -> None:
    """Create a folder if it is missing and check that files can be written there.

    Raises:
        PermissionError: files cannot be written there.
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
        raise PermissionError(f"{path} cannot be written to ({error.strerror}). Choose a different folder.") from error


@contextmanager
def atomic_file(path: str | os.PathLike[str], mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open a file for writing that appears under its name only when the block ends without an error.

    Until then the content is in a temporary file in the same folder, under a name that no other process uses. Readers
    see the old file or the complete new one; a process that is killed leaves the old one.

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


def require_new_folder(folder: Path) -> None:
    """Raise a `FileExistsError` if a folder has files, or a file has its name."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(f"{folder} has files already. Pass a new folder, or remove it first.")


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a folder to fill, which appears under its name only when the block ends without an error.

    Args:
        folder: its name; missing or empty.

    Raises:
        FileExistsError: it has files.
    """
    target = Path(folder)
    require_new_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        partial.mkdir()
        yield partial
        if target.is_dir():
            target.rmdir()
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def as_json(value: Any) -> str:
    """Return indented JSON; nan, which JSON does not have, becomes null."""

    def plain(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: plain(entry) for key, entry in item.items()}
        return None if isinstance(item, float) and math.isnan(item) else item

    return json.dumps(plain(value), indent=2)


class WriteError(OSError):
    """A file cannot be written: the disk is full, a quota or a limit of file sizes is reached, or it fails."""


TORCH_WRITE_FAULTS = ("PytorchStreamWriter failed", "unexpected pos", "iostream error")
WRITE_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextmanager
def explain_write_errors(path: str | os.PathLike[str], advice: str) -> Iterator[None]:
    """Name the place in errors of a full disk, which libraries raise as errors of many types without a name.

    Args:
        path: the file or folder that is written.
        advice: what to do, as a sentence.

    Raises:
        WriteError: instead of such an error. All other errors stay as they are.
    """
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        reason = write_fault(error)
        if reason is None:
            raise
        place = path if Path(path).exists() else Path(path).parent
        free = f"{shutil.disk_usage(place).free / 1e6:,.0f} MB" if Path(place).exists() else "unknown"
        raise WriteError(f"{path} could not be written: {reason} (free space: {free}). {advice}") from error


def write_fault(error: Exception) -> str | None:
    """Return the reason of an error of writing, if it is one of `WRITE_FAULTS`; else None."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in WRITE_FAULTS else None
    number = re.search(r"\(os error (\d+)\)", str(error))  # of safetensors
    if number:
        return os.strerror(int(number[1])) if int(number[1]) in WRITE_FAULTS else None
    if isinstance(error, RuntimeError) and any(text in str(error) for text in TORCH_WRITE_FAULTS):
        return "a file was not written completely"
    return None


def quoted_name(name: str, one_line: bool = True) -> str:
    """Return the name of a file as it is written in a table of text, so that `unquoted_name` returns the same name.

    A name that is not UTF-8 (`os.fsdecode` has surrogates in place of such bytes), has control characters, or begins
    with a quotation mark, becomes a JSON string: `latin` and the byte 255 is written `"latin\\udcff"`. All others are
    unchanged.

    Args:
        name: the name.
        one_line: whether control characters, such as tabs and line breaks, must not be in the text.
    """
    plain = not name.startswith('"') and not any("\ud800" <= char <= "\udfff" for char in name)
    if plain and not (one_line and any(char < " " for char in name)):
        return name
    return json.dumps(name, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def unquoted_name(text: str) -> str:
    """Return the name that `quoted_name` wrote; a text that it does not write is returned unchanged."""
    try:
        name = json.loads(text) if text.startswith('"') else text
    except ValueError:
        return text
    return name if isinstance(name, str) else text


def printable(text: str) -> str:
    """Return a text for a terminal: control characters and surrogates are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


PATIENCE = 5.0  # seconds; child processes of a killed run may hold its lock for a moment


@contextmanager
def only_run_in(folder: str | os.PathLike[str], is_main: bool = True) -> Iterator[None]:
    """Lock a folder against other runs.

    Args:
        folder: an existing folder.
        is_main: whether this is the main process of the run; only that one locks.

    Raises:
        BlockingIOError: another run has locked the folder.
    """
    from filelock import FileLock, Timeout  # here, so that metrics, which write files too, load without it

    if not is_main:
        yield
        return
    try:
        with FileLock(Path(folder, ".run.lock"), timeout=PATIENCE):
            yield
    except Timeout:
        raise BlockingIOError(
            f"Another run is writing into {folder}. Wait until it ends and pass `resume`, or pass a different "
            "`output_dir`."
        ) from None


@contextmanager
def only_writer_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock an output file against other runs. The system frees the lock of a process that is killed.

    Args:
        path: the output; the lock is the hidden file `.NAME.lock` in the same folder, which stays.

    Raises:
        BlockingIOError: another run writes this file.
        PermissionError: the lock cannot be created.
    """
    from filelock import FileLock, Timeout  # see `only_run_in`

    target = Path(path)
    if not target.parent.is_dir():
        raise PermissionError(f"{target} cannot be written: there is no folder {target.parent}. Create it.")
    lock = FileLock(target.with_name(f".{target.name}.lock"), timeout=PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(
            f"Another run is writing {target}. Wait until it ends, or pass a different `output`."
        ) from None
    except OSError as error:
        raise PermissionError(f"{target} cannot be written ({error.strerror}). Choose a different folder.") from error
    try:
        yield
    finally:
        lock.release()
