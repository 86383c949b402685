"""Output files and folders: checked early, written atomically, locked against other runs.

Folders may be a stranger's, and symbolic links in them may lead anywhere. Files are written, appended to, replaced and
locked here only: never through a symbolic link, and never outside of the folder that a person typed. Text that ends up
in outputs is read with `read_bytes_inside` or `read_text_inside`: links that lead out of the typed folder are refused,
except into the `blobs` of a Hub cache. A typed path may itself be a link.
"""

import errno
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filelock import BaseFileLock

StrPath = str | os.PathLike[str]
MAX_TEXT_BYTES = 16 * 2**20  # of a text file beside an image, and of small records
MAX_TABLE_BYTES = 2**30  # of a table or record that is read as a whole
MAX_NAME_BYTES = 255  # of the name of a file, as in most file systems
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has neither; there a check before has to do
NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # for the other end of a FIFO
KINDS = {
    stat.S_IFIFO: "named pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
    stat.S_IFDIR: "folder",
}


class UnsafeFileError(OSError):
    """A file is a forbidden symbolic link, lies outside the user's folder, or is not a plain file."""


def lies_inside(path: StrPath, folder: StrPath) -> bool:
    """Return whether a path lies in a folder, or is the folder, after links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def require_plain(path: StrPath, mode: int) -> None:
    """Check by its mode (`st_mode`) that a file is a plain file, not a pipe or device.

    Raises:
        UnsafeFileError: it is a named pipe, a device, a socket or a folder.
    """
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "special file")
        raise UnsafeFileError(f"{path} is a {kind}, expected a plain file. Move it away.")


def require_safe_target(path: StrPath, inside: StrPath | None = None) -> None:
    """Check that an output path is a plain file or missing, and inside the user's folder.

    Args:
        path: the file.
        inside: the folder that a person typed. None: that of the file.

    Raises:
        UnsafeFileError: it may not.
    """
    parent = Path(path).parent
    if inside is not None and not lies_inside(parent, inside):
        raise UnsafeFileError(
            f"{path} is not written: its folder is {os.path.realpath(parent)}, outside of {inside}. Remove the "
            "symbolic link that leads there, or type that folder itself."
        )
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):  # the latter is told by what opens the file
        return
    if stat.S_ISLNK(mode):
        raise UnsafeFileError(
            f"{path} is not written: it is a symbolic link to {os.readlink(path)}. Remove the link, or copy the file "
            "that it leads to in its place."
        )
    require_plain(path, mode)


def require_no_links_out(folder: StrPath) -> None:
    """Check that a folder has no links out of it, before libraries write files of their own names into it.

    Raises:
        UnsafeFileError: a link in it, or in a folder below it, leads out of it.
    """
    for parent, folders, files in os.walk(folder):
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            if os.path.islink(path) and not lies_inside(path, folder):
                raise UnsafeFileError(
                    f"{path} is a symbolic link to {os.readlink(path)}, outside of {folder}, where files are written. "
                    "Remove the link, or pass a different folder."
                )


def _open_descriptor(path: str, flags: int) -> int:
    """Open a plain file and return its descriptor, as `os.open` does."""
    descriptor = os.open(path, flags | NO_WAITING, 0o666)
    try:
        require_plain(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_unfollowed(path: str, flags: int) -> int:
    """Open a plain file that is not a symbolic link."""
    return _open_descriptor(path, flags | NO_FOLLOW)


def open_for_writing(path: StrPath, mode: str, inside: StrPath | None = None, **options: Any) -> IO[Any]:
    """Open a file for writing, never through a symbolic link.

    Args:
        path: the file.
        mode: as that of `open`; without `"b"`, the text is UTF-8 unless `options` has another `encoding`.
        inside: the folder that a person typed, see `require_safe_target`.
        **options: further arguments of `open`.

    Raises:
        UnsafeFileError: see `require_safe_target`.
        OSError: the file cannot be opened.
    """
    require_safe_target(path, inside)
    encoding = {} if "b" in mode else {"encoding": "utf-8"}
    return open(path, mode, opener=_open_unfollowed, **(encoding | options))


def truncate_file(path: StrPath, size: int) -> None:
    """Shorten a file to a number of bytes; a symbolic link is refused."""
    with open_for_writing(path, "rb+") as file:
        file.truncate(size)


def open_plain(path: StrPath) -> io.BufferedReader:
    """Open a plain file for reading bytes; links are followed, but pipes and devices are refused.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafeFileError: it is no plain file.
    """
    require_plain(path, os.stat(path).st_mode)  # before: opening a device may change it
    return open(path, "rb", opener=_open_descriptor)


def require_link_inside(
    path: StrPath,
    inside: StrPath,
    follow_links: bool = False,
    advice: str = "If that is right, pass --follow_links (follow_links=True in Python).",
) -> None:
    """Check that a file lies inside the user's folder, links resolved, before its text goes to outputs.

    Args:
        path: the file, by a name in the folder.
        inside: the folder that a person typed.
        follow_links: whether links may lead out of the folder.
        advice: what to do, as a sentence.

    Raises:
        UnsafeFileError: it lies elsewhere, and not in the `blobs` of the Hub cache that `path` is a snapshot of.
    """
    if follow_links or lies_inside(path, inside):
        return
    real = Path(os.path.realpath(path))
    if real.parent.name == "blobs" and lies_inside(Path(path).parent, real.parent.with_name("snapshots")):
        return
    raise UnsafeFileError(f"{path} is not read: it leads to {real}, outside of {inside}. {advice}")


def read_bytes_inside(
    path: StrPath, inside: StrPath | None = None, limit: int = MAX_TEXT_BYTES, follow_links: bool = False
) -> bytes:
    """Read a file inside the user's folder, whose text will go to outputs.

    Args:
        path: the file.
        inside: the folder that a person typed. None: that of the file.
        limit: the most bytes.
        follow_links: see `require_link_inside`.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafeFileError: a link leads out of the folder, it is no plain file, or it is larger than `limit`.
    """
    require_link_inside(path, Path(path).parent if inside is None else inside, follow_links)
    with open_plain(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UnsafeFileError(f"{path} has more than {limit:,} bytes, which is too large for such a file.")
    return content


def read_text_inside(
    path: StrPath,
    inside: StrPath | None = None,
    limit: int = MAX_TEXT_BYTES,
    follow_links: bool = False,
    errors: str = "strict",
) -> str:
    """Read a UTF-8 text file, with or without byte order mark; line ends become `\\n`. See `read_bytes_inside`.

    Raises:
        UnicodeDecodeError: it is not UTF-8, and `errors` is `"strict"`.
    """
    text = read_bytes_inside(path, inside, limit, follow_links).decode("utf-8-sig", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


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


def _temporary_of(target: Path) -> Path:
    """Return a unique hidden name beside a file or folder; long names are shortened."""
    name, ending = target.name, f"-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    while len(os.fsencode(f".{name}{ending}")) > MAX_NAME_BYTES:
        name = name[:-1]
    return target.with_name(f".{name}{ending}")


@contextmanager
def atomic_file(path: StrPath, mode: str = "w", inside: StrPath | None = None, **options: Any) -> Iterator[IO[Any]]:
    """Open a temporary file for writing that is renamed to the target when the block ends without an error.

    Until then the content is in a temporary file in the same folder, under a name that no other process uses. Readers
    see the old file or the complete new one; a process that is killed leaves the old one. The permissions of a file
    that is replaced stay.

    Args:
        path: the file to write or to replace. Its folder exists.
        mode: `"w"` (UTF-8 text) or `"wb"`.
        inside: the folder that a person typed, see `require_safe_target`.
        **options: further arguments of `open`.

    Raises:
        UnsafeFileError: see `require_safe_target`.
    """
    target = Path(path)
    require_safe_target(target, inside)
    temporary = _temporary_of(target)
    try:
        with open_for_writing(temporary, mode.replace("w", "x"), inside, **options) as file:
            if target.exists():
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))  # before the content is there to be read
            yield file
        require_safe_target(target, inside)  # the block may have taken hours
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: StrPath, text: str, inside: StrPath | None = None) -> None:
    """Write a text file atomically, see `atomic_file`."""
    with atomic_file(path, inside=inside) as file:
        file.write(text)


MAX_ATTEMPTS = 20  # to replace a file that another program changes all the time


def change_file(path: StrPath, change: Callable[[bytes | None], bytes | None], inside: StrPath | None = None) -> bool:
    """Read a file, change its content and replace it atomically; repeated if another program writes meanwhile.

    Programs of this package hold the lock of the file meanwhile, see `only_writer_of`. Where another one, such as an
    editor, changes the file between reading and replacing, its content is read and changed again.

    Args:
        path: the file; its folder exists.
        change: returns the new content of the old one, which is None if there is no file; or None, and the file stays
            as it is. It may be called several times.
        inside: the folder that a person typed, see `require_safe_target`.

    Returns:
        Whether it was replaced.

    Raises:
        UnsafeFileError: see `require_safe_target`; or the file is too large.
        BlockingIOError: it is changed all the time.
    """
    for _ in range(MAX_ATTEMPTS):
        require_safe_target(path, inside)
        before = _state_of(path)
        new = change(None if before is None else read_bytes_inside(path, inside, MAX_TABLE_BYTES))
        if new is None:
            return False
        try:
            with atomic_file(path, "wb", inside) as file:
                file.write(new)
                file.flush()
                if _state_of(path) != before:  # the last moment: the file is replaced right after this block
                    raise _ChangedMeanwhileError
        except _ChangedMeanwhileError:
            continue
        return True
    raise BlockingIOError(f"{path} is changed all the time by another program. End that one first.")


class _ChangedMeanwhileError(Exception):
    """Another program changed a file between reading and replacing it."""


def _state_of(path: StrPath) -> tuple[int, ...] | None:
    """Return values that change whenever a file is written or replaced; None for a missing file."""
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def require_new_folder(folder: Path) -> None:
    """Raise a `FileExistsError` if a folder is not empty or is a file."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(f"{folder} has files already. Pass a new folder, or remove it first.")


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to the target when the block ends without an error.

    Args:
        folder: its name; missing or empty.

    Raises:
        FileExistsError: it has files.
    """
    target = Path(folder)
    require_new_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _temporary_of(target)
    try:
        partial.mkdir()
        yield partial
        if target.is_dir():
            target.rmdir()
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def as_json(value: Any) -> str:
    """Return indented JSON; NaN, which JSON lacks, becomes null."""

    def plain(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: plain(entry) for key, entry in item.items()}
        return None if isinstance(item, float) and math.isnan(item) else item

    return json.dumps(plain(value), indent=2)


class WriteError(OSError):
    """A file cannot be written: disk full, quota, file size limit or device error."""


TORCH_WRITE_FAULTS = ("PytorchStreamWriter failed", "unexpected pos", "iostream error")
WRITE_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextmanager
def explain_write_errors(path: str | os.PathLike[str], advice: str) -> Iterator[None]:
    """Context manager that adds the file's place to write errors, which libraries report in many ways.

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
    """Return the reason if an error is one of `WRITE_FAULTS`; else None."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in WRITE_FAULTS else None
    number = re.search(r"\(os error (\d+)\)", str(error))  # of safetensors
    if number:
        return os.strerror(int(number[1])) if int(number[1]) in WRITE_FAULTS else None
    if isinstance(error, RuntimeError) and any(text in str(error) for text in TORCH_WRITE_FAULTS):
        return "a file was not written completely"
    return None


def quoted_name(name: str, one_line: bool = True) -> str:
    """Return a file name quoted for text tables, so that `unquoted_name` restores it.

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
    """Return the name that `quoted_name` quoted; other texts unchanged."""
    try:
        name = json.loads(text) if text.startswith('"') else text
    except ValueError:
        return text
    return name if isinstance(name, str) else text


def printable(text: str) -> str:
    """Return a text that is safe for terminals: control characters and surrogates are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


PATIENCE = 5.0  # seconds; child processes of a killed run may hold its lock for a moment


def lock_of(path: StrPath, patience: float = PATIENCE, inside: StrPath | None = None) -> "BaseFileLock":
    """Return a file lock, not yet acquired; the system releases the lock of a killed process.

    Args:
        path: the file of the lock, which stays.
        patience: seconds to wait for another process.
        inside: the folder that a person typed, see `require_safe_target`.

    Raises:
        UnsafeFileError: see `require_safe_target`.
    """
    from filelock import FileLock  # here, so that metrics, which write files too, load without it

    require_safe_target(path, inside)
    return FileLock(path, timeout=patience)


@contextmanager
def only_run_in(folder: str | os.PathLike[str], is_main: bool = True) -> Iterator[None]:
    """Context manager: lock a folder against other runs, and check that no link leads out of it.

    Args:
        folder: an existing folder.
        is_main: whether this is the main process of the run; only that one locks.

    Raises:
        BlockingIOError: another run has locked the folder.
        UnsafeFileError: see `require_no_links_out`.
    """
    from filelock import Timeout  # see `lock_of`

    if not is_main:
        yield
        return
    require_no_links_out(folder)
    try:
        with lock_of(Path(folder, ".run.lock")):
            yield
    except Timeout:
        raise BlockingIOError(
            f"Another run is writing into {folder}. Wait until it ends and pass `resume`, or pass a different "
            "`output_dir`."
        ) from None


def writer_lock_of(path: StrPath) -> "BaseFileLock":
    """Return the lock for writing a file: the hidden file `.NAME.lock` beside it; see `only_writer_of`."""
    target = Path(path)
    return lock_of(target.with_name(f".{target.name}.lock"))


@contextmanager
def only_writer_of(
    path: StrPath,
    lock: "BaseFileLock | None" = None,
    patience: float = PATIENCE,
    advice: str = "Wait until it ends, or pass a different `output`.",
) -> Iterator[None]:
    """Context manager: lock an output file against other programs; the lock of a killed process is released.

    Args:
        path: the output.
        lock: its lock, see `writer_lock_of`, for a thread that may hold it already. None: a new one.
        patience: seconds to wait for another program.
        advice: what to do if that is not enough, as a sentence.

    Raises:
        BlockingIOError: another program writes this file.
        UnsafeFileError: the lock is a link or no plain file.
        PermissionError: the lock cannot be created.
    """
    from filelock import Timeout  # see `lock_of`

    target = Path(path)
    if not target.parent.is_dir():
        raise PermissionError(f"{target} cannot be written: there is no folder {target.parent}. Create it.")
    lock = writer_lock_of(target) if lock is None else lock
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise BlockingIOError(f"Another run is writing {target}. {advice}") from None
    except OSError as error:
        raise PermissionError(f"{target} cannot be written ({error.strerror}). Choose a different folder.") from error
    try:
        yield
    finally:
        lock.release()
