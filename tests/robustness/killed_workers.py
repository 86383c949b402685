"""Captioning in several processes of which some are killed: the job continues, or is resumed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .killed_jobs import difference, fresh, some_images
from .outcomes import FAILED, RESULT, Outcome

IMAGES = 400
PARTS = ("1/2", "2/2")
KILLS = 6  # of each part: as often a process is killed, or a job is resumed that ended for that
SECONDS = 300.0  # that a job may go on after one of its processes was killed
ERROR = "hf-captioners caption: error: "
OF_RAY = (b"ray::MapWorker", b"ray::PreparingTask", b"ray::Map", b"ray::IDLE")


def children_of(parent: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == parent:
            child = int(path.parent.name)
            found += [child, *children_of(child)]
    return found


def workers_of_ray(job: int) -> list[int]:
    """Return the processes of Ray that work for a job."""
    found = []
    for child in children_of(job):
        try:
            name = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(OF_RAY):
            found.append(child)
    return found


def output_of(part: str, folder: Path) -> Path:
    """Return the file that a part writes."""
    return folder / f"out-{part[0]}.jsonl"


def start(material: Any, part: str, folder: Path, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a job, or resume it."""
    command = ["caption", str(some_images(material, IMAGES)), "--model", material.captioner, "--shard", part]
    command += ["--output", str(output_of(part, folder)), "--batch_size", "4", "--num_beams", "1", "--resume"]
    command += ["--max_new_tokens", "3", "--device", "cpu", "--workers", "2", *options]
    with open(folder / "printed", "wb") as printed:
        return subprocess.Popen(
            [sys.executable, "-m", "hf_captioners.cli", *command],
            stdout=printed,
            stderr=printed,
            env=os.environ | {"HOME": str(folder)},
            start_new_session=True,
        )


def end_of(job: subprocess.Popen[bytes], folder: Path, seconds: float = SECONDS) -> str | None:
    """Wait until a job ends; return the error that it prints, None if it has captioned all.

    Raises:
        AssertionError: it goes on for too long, or ends in another way.
    """
    try:
        status = job.wait(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the job goes on {SECONDS:.0f} seconds after one of its processes was killed") from None
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    printed = (folder / "printed").read_text(errors="replace")
    if status in (0, 1) and "Traceback" not in printed:  # 1: some images cannot be read
        return None
    last = printed.strip().splitlines()[-1]
    assert status == 2 and last.startswith(ERROR) and "Traceback" not in printed, printed[-1500:]
    return last.removeprefix(ERROR)


def lines_of(part: str, folder: Path) -> int:
    """Return the number of lines that a job has written."""
    path = Path(f"{output_of(part, folder)}.partial")
    return path.read_bytes().count(b"\n") if path.exists() else 0


def outputs_of(folder: Path) -> dict[str, bytes]:
    """Return the files that the jobs have written."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl*"))}


def kill_workers(
    workers: Callable[[int], list[int]], options: tuple[str, ...], material: Any, seed: str, folder: Path
) -> Outcome:
    """Kill processes of a job in two parts, resume it until it ends, and compare its outputs.

    Args:
        workers: returns the processes that work for a job.
        options: of the command.
        material: what it reads.
        seed: of the random moments.
        folder: an empty folder.
    """
    rng, killed = random.Random(seed), 0
    reasons: list[str] = []
    undisturbed = fresh(folder / "undisturbed")
    folder = fresh(folder / "killed")
    try:
        for part in PARTS:
            assert end_of(start(material, part, undisturbed, options), undisturbed) is None
            job = start(material, part, folder, options)
            for _ in range(KILLS):
                lines = lines_of(part, folder) + rng.randint(1, IMAGES // len(PARTS) // (KILLS + 1))
                deadline = time.monotonic() + SECONDS
                while job.poll() is None and lines_of(part, folder) < lines:
                    if time.monotonic() > deadline:
                        end_of(job, folder, seconds=0)
                    time.sleep(0.005)
                if job.poll() is not None:
                    if (reason := end_of(job, folder)) is None:
                        break
                    reasons.append(reason)
                    job = start(material, part, folder, options)
                elif victims := workers(job.pid):
                    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                        os.kill(rng.choice(victims), signal.SIGKILL)
                        killed += 1
            if (reason := end_of(job, folder)) is not None:
                reasons.append(reason)
                assert end_of(start(material, part, folder, options), folder) is None
        reason = difference(outputs_of(undisturbed), outputs_of(folder)) or ("" if killed else "no process was killed")
    except AssertionError as error:
        reason = str(error)
    what = f"{killed} processes were killed; {len(reasons)} jobs ended: {reasons[:1]}"
    return Outcome(FAILED if reason else RESULT, what, reason, attempts=killed)


kill_workers_of_shards = partial(kill_workers, children_of, ())
kill_workers_of_ray = partial(kill_workers, workers_of_ray, ("--engine", "ray"))


def prepare_ray(material: Any) -> None:
    """Check that Ray is installed, and make the images."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ImportError("captioning on Ray needs it: pip install 'hf-captioners[ray]'") from error
    some_images(material, IMAGES)


def prepare_shards(material: Any) -> None:
    """Make the images."""
    some_images(material, IMAGES)
