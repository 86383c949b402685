"""Attacks in forked processes: measured, stopped when they hang, and watched for side effects."""

import faulthandler
import gc
import json
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .outcomes import CPU_SECONDS, FAILED, RESULT, WALL_SECONDS, Outcome, judge, judge_limits
from .watched_files import disturbed_canary, place_canaries, watch_opens

# Programs that image libraries and others start; stand-ins on PATH record that they were started.
PROGRAMS = ("gs", "gswin64c", "djpeg", "cjpeg", "convert", "magick", "xv", "display", "identify", "sh", "touch", "id")
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn")
MARKER = "executed"  # hostile files try to make a file of this name in the working directory
ADDRESS_SPACE = 8 * 2**30  # bytes that an attack may map, so that it cannot exhaust the machine


@dataclass
class Attempt:
    """A prepared attack.

    Attributes:
        what: the file, and what was done to it.
        run: reads it; raises an error that is judged, or AssertionError for a wrong result.
        names: one of them must occur in the message of an error.
        decoded: bytes of the decoded image.
    """

    what: str
    run: Callable[[], Any]
    names: tuple[str, ...]
    decoded: int = 0


# Prepares an attempt with material (see `material.py`), random numbers, and an empty folder.
Attack = Callable[[Any, random.Random, Path], Attempt]


def write_stand_ins(folder: Path) -> Path:
    """Write stand-in programs, and return the file that they append their names to."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder.parent / "started"
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/bash\necho {name} >> {record}\n")
        (folder / name).chmod(0o755)
    return record


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def attempt_in_child(attack: Attack, material: Any, seed: str, folder: Path) -> Outcome:
    """Prepare and run an attack in a forked process.

    Args:
        attack: the attack.
        material: what it reads.
        seed: seed of its random numbers.
        folder: an empty folder, which the attack may fill.
    """
    place_canaries(folder)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        gc.freeze()  # what this process frees of its parent's would hide as much of what the attack takes
        try:
            os.write(writing, b"%d\n" % resident_bytes())
            _run_child(attack, material, seed, folder, writing)
        finally:
            os._exit(70)
    os.close(writing)
    said = _read_until_end(reading, child)
    _, status, usage = os.wait4(child, 0)
    held, _, said = said.partition(b"\n")
    memory = max(0, usage.ru_maxrss * 1024 - int(held or b"0"))
    return _outcome(said, status, usage.ru_utime + usage.ru_stime, memory, folder)


def _read_until_end(reading: int, child: int) -> bytes:
    """Return what the process writes; a process that takes too long is killed."""
    parts, end = [], time.monotonic() + WALL_SECONDS
    with os.fdopen(reading, "rb", buffering=0) as stream:
        while True:
            ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.kill(child, signal.SIGKILL)
                return b"".join(parts)
            part = stream.read(2**16)
            if not part:
                return b"".join(parts)
            parts.append(part)


def _outcome(said: bytes, status: int, seconds: float, memory: int, folder: Path) -> Outcome:
    what, _, told = said.partition(b"\n")
    if told:
        found = json.loads(told)
    else:
        found = {"kind": FAILED, "what": json.loads(what or b'""'), "decoded": 0}
        ended = -os.waitstatus_to_exitcode(status)
        reason = signal.Signals(ended).name if ended > 0 else f"exit status {-ended}"
        printed = folder.with_name(f"{folder.name}.printed").read_text(errors="replace")[-1500:]
        found["reason"] = f"the process ended with {reason} after {seconds:.1f} CPU seconds: {printed}"
    if found["kind"] != FAILED and (excess := judge_limits(seconds, memory, found["decoded"])):
        found |= {"kind": FAILED, "reason": f"{excess}; {found['reason']}"}
    outside = found.get("outside", 0)
    if disturbed := disturbed_canary(folder):
        outside += 1
        found |= {"kind": FAILED, "reason": f"{disturbed}; {found['reason']}"}
    if (folder / MARKER).exists():
        found |= {"kind": FAILED, "reason": f"the file was executed; {found['reason']}"}
    opens = {"opens": found.get("opens", 0), "outside": outside}
    return Outcome(found["kind"], found["what"], found["reason"], round(seconds, 3), memory, **opens)


def _run_child(attack: Attack, material: Any, seed: str, folder: Path, writing: int) -> None:
    """Run an attack in this process, which ends afterwards, and write the outcome as JSON."""
    faulthandler.disable()  # of pytest
    os.setsid()
    os.chdir(folder)
    printed = os.open(folder.parent / f"{folder.name}.printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    faulthandler.dump_traceback_later(WALL_SECONDS - 5, file=printed)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["PATH"] = f"{material.stand_ins}{os.pathsep}{os.environ['PATH']}"
    seconds = int(CPU_SECONDS) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE,) * 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    seen: list[str] = []
    files: Counter[str] = Counter()
    _watch(seen, folder)
    outside = os.open(folder.parent / f"{folder.name}.outside", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    attempt = Attempt("preparation", lambda: None, ())
    try:
        attempt = attack(material, random.Random(seed), folder)
        os.write(writing, json.dumps(attempt.what).encode() + b"\n")  # all that is known if the process dies
        # Processes that the attack forks write into the same file.
        files = watch_opens(
            lambda line: os.write(outside, line.encode("utf-8", "replace") + b"\n"), folder, material.root
        )
        attempt.run()
        kind, reason = RESULT, ""
    except BaseException as error:
        if attempt.what == "preparation":
            kind, reason = FAILED, traceback.format_exc()[-2000:]
        else:
            kind, reason = judge(error, attempt.names)
            traceback.print_exc()
            sys.stderr.flush()
    record = material.stand_ins.parent / "started"
    if record.exists():
        seen.append(f"the program {record.read_text().split()}")
        record.unlink()
    opened = os.pread(outside, 2**20, 0).decode("utf-8", "replace").splitlines()
    if seen := [*seen, *opened]:
        kind, reason = FAILED, f"it started {seen[0]}; {reason}"
    told = {"kind": kind, "what": attempt.what, "reason": reason, "decoded": attempt.decoded}
    told |= {"opens": files["looked at"], "outside": len(opened)}
    os.write(writing, (b"\n" if attempt.what == "preparation" else b"") + json.dumps(told).encode())
    os._exit(0)


def _watch(seen: list[str], folder: Path) -> None:
    """Note programs that this process starts, code that it runs from a folder, and connections to other machines."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            seen.append(f"{event} {arguments[:2]!r:.200}")
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(str(folder)):
            seen.append(f"the code {arguments[0].co_filename}")
        elif event == "socket.connect" and not str(arguments[1]).startswith(("('127.0.0.1'", "/", "b'")):
            seen.append(f"a connection to {arguments[1]!r:.100}")

    sys.addaudithook(hook)
