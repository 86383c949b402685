"""Detection of files opened by an attack: Python's audit hook, and canary files for readers in C."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CANARIES = "canaries"  # a folder beside that of an attack: links lead there
SECRET = b"CANARY-5d41402abc4b2a76\n"
LONG_AGO = 10**9  # seconds; a read updates the time of access of a file that was changed after it (relatime)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of files that are changed: for each path in their arguments its number, and that of its folder's descriptor.
CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
}
# What may be read besides the files of the attack, of Python and of this project.
READABLE = {
    "/dev/null": "standard input of programs",
    "/dev/urandom": "random numbers",
    "/proc": "memory, processors, open descriptors",
    "/sys": "processors, limits of memory",
    "/etc/localtime": "the time zone",
    "/usr/share/zoneinfo": "time zones",
    "/etc/ssl": "certificates of a client of HTTP, which is made without a connection",
    "/usr/lib/ssl": "the same",
    "/usr/share/ca-certificates": "the same",
    "/etc/mime.types": "types of files by their endings (mimetypes)",
    "/etc/ld.so.cache": "where libraries are",
    "/etc/nsswitch.conf": "names of machines",
    "/etc/hosts": "the same",
    "/etc/resolv.conf": "the same",
}


def place_canaries(folder: Path) -> Path:
    """Write files beside the folder of an attack that nobody may read or change, and return their folder."""
    canaries = folder.parent / CANARIES
    canaries.mkdir(exist_ok=True)
    for name in os.listdir(canaries):
        if name not in ("secret.txt", "secret.bin"):
            (canaries / name).unlink()
    for name in ("secret.txt", "secret.bin"):
        path = canaries / name
        path.write_bytes(SECRET * 4096 if name == "secret.bin" else SECRET)
        os.utime(path, (LONG_AGO, LONG_AGO + 1))
    return canaries


def disturbed_canary(folder: Path) -> str | None:
    """Return which canary was read, changed or copied, or what was made beside it; None if nothing was."""
    canaries = folder.parent / CANARIES
    if sorted(os.listdir(canaries)) != ["secret.bin", "secret.txt"]:
        return f"{canaries} has {sorted(os.listdir(canaries))}"
    for path in sorted(canaries.iterdir()):
        state = path.stat()
        if state.st_mtime != LONG_AGO + 1:
            return f"{path} was changed"
        if state.st_atime != LONG_AGO:
            return f"{path} was read"
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.is_file() and not path.is_symlink() and SECRET.strip() in path.read_bytes():
                return f"{path} has the text of a canary"
    return None


def canaries_work(folder: Path) -> bool:
    """Return whether the file system of a folder notes reads."""
    place_canaries(folder)
    (folder.parent / CANARIES / "secret.txt").read_bytes()
    found = disturbed_canary(folder) is not None
    place_canaries(folder)
    return found


def watch_opens(note: Callable[[str], Any], folder: Path, *given: Path) -> Counter[str]:
    """Note files outside of the folder of an attack that this process changes, and those that it should not read.

    Args:
        note: is called with a line for each.
        folder: the folder of the attack, which may be written to.
        *given: further files that may be read.

    Returns:
        The number of opens and changes of files that were looked at in this process, under `looked at`; it grows.
    """
    sys.dont_write_bytecode = True  # Python's compiled files, beside the sources
    tempfile.tempdir = str(folder.parent / "temporary")
    os.makedirs(tempfile.tempdir, exist_ok=True)
    writable = [os.path.realpath(one) for one in (folder, folder.parent / "cache", tempfile.tempdir)]
    writable += [f"{os.path.realpath(folder)}.printed", "/dev/null"]
    installed = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__))
    readable = [os.path.realpath(one) for one in (*installed, ROOT, *given)]
    readable += [*writable, *READABLE]

    def inside(path: str, folders: list[str]) -> bool:
        return any(path == one or path.startswith(one + os.sep) for one in folders)

    def resolved(path: Any, descriptor: Any = None) -> str:
        text = os.fsdecode(path)
        if isinstance(descriptor, int) and descriptor >= 0:
            text = os.path.join(f"/proc/self/fd/{descriptor}", text)
        return os.path.join(os.path.realpath(os.path.dirname(text) or "."), os.path.basename(text))

    seen: Counter[str] = Counter()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            seen["looked at"] += 1
            path, mode, flags = arguments
            writes = (
                bool(flags & WRITING) if isinstance(flags, int) else any(letter in (mode or "") for letter in "wax+")
            )
            real = os.path.realpath(path)
            if writes and not inside(real, writable):
                note(f"an open of {real} for writing")
            elif not writes and not inside(real, readable):
                note(f"an open of {real}")
        elif event in CHANGES:
            seen["looked at"] += 1
            for place, descriptor in CHANGES[event]:
                if isinstance(arguments[place], int):  # a descriptor, whose open was seen
                    continue
                real = resolved(arguments[place], None if descriptor is None else arguments[descriptor])
                if not inside(real, writable):
                    note(f"{event} of {real}")

    sys.addaudithook(hook)
    return seen
