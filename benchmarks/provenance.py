"""Benchmark result files: measurements, and the commit, machine, versions and command that made them.

    python benchmarks/provenance.py runs/low_data

writes the provenance of training runs into their folder. Type it before they start, with the interpreter that trains;
the scripts that gather the figures of these runs read it.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Files whose changes can change a figure; a script changes the results and the pages itself while it runs.
SOURCES = ("hf_captioners", "modeling", "processing", "benchmarks", "examples", "default_captioner", "pyproject.toml")
NOT_SOURCES = (":!*.md", ":!benchmarks/results", ":!benchmarks/known_changes.json")
PACKAGES = ("hf_captioners", "torch", "transformers", "tokenizers", "numpy", "timm", "onnxruntime")
DATA_DIR = "HF_CAPTIONERS_DATA_DIR"
RUN_RECORD = "provenance.json"


def checkout(root: Path = ROOT) -> dict[str, Any]:
    """Return the commit of a checkout, and True if its sources differ from it (None, None without git)."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root.resolve():  # a copy inside another repository
            return {"commit": None, "dirty": None}
        changed = git("status", "--porcelain", "--untracked-files=all", "--", *SOURCES, *NOT_SOURCES)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


CHECKOUT = checkout()
"""The commit when the script started: a later commit in the same folder does not change code that runs already."""


def processor_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def processor_with_vectors() -> str:
    """Return the processor's name and widest vector instructions, on which the speed of products depends."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    except OSError:
        return processor_name()
    widest = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), None)
    return processor_name() if widest is None else f"{processor_name()} with {widest}"


def threads() -> int:
    """Return the number of threads of torch, or of this process if torch is not imported."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    if set_number := os.environ.get("OMP_NUM_THREADS"):
        return int(set_number)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute results."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def shell_word(argument: str) -> str:
    """Quote an argument for a shell, with its path relative to the data folder or the checkout."""
    path = Path(argument)
    if not path.is_absolute():
        return shlex.quote(argument)
    if data_dir := os.environ.get(DATA_DIR):
        place = Path(data_dir).absolute()
        if path.is_relative_to(place):
            inside = path.relative_to(place)
            return f"${DATA_DIR}" + (f"/{shlex.quote(str(inside))}" if inside.parts else "")
    if path.is_relative_to(ROOT):
        return shlex.quote(str(path.relative_to(ROOT)))
    return shlex.quote(f".../{path.name}")  # a folder of one machine says nothing elsewhere


def command() -> str:
    """Return the command line of this process, without folder names of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    script = f"-m {spec.name}" if spec is not None else shell_word(str(Path(sys.argv[0]).resolve()))
    return " ".join(["python", script, *map(shell_word, sys.argv[1:])])


def record() -> dict[str, Any]:
    """Return the provenance of this process: commit, date, CPU, threads, versions and command."""
    return {
        "recorded": True,
        **CHECKOUT,
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": processor_name(),
        "threads": threads(),
        "versions": versions(),
        "command": command(),
    }


def records_of(path: str | Path) -> list[dict[str, Any]]:
    """Return the provenance records of a result file, oldest first; [] if there is no such file."""
    if not Path(path).is_file():
        return []
    return list(json.loads(Path(path).read_text(encoding="utf-8"))["provenance"])


def run_records(folder: str | Path, study: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the provenance records of a training run.

    Args:
        folder: output folder of the run. Its record is `provenance.json`, which this script writes.
        study: the folder of several runs; its record is that of the runs without their own.

    Returns:
        The records, or one of an unknown commit if there is no such file.
    """
    for place in (folder, study or folder):
        if (path := Path(place, RUN_RECORD)).is_file():
            return list(json.loads(path.read_text(encoding="utf-8")))
    date = datetime.fromtimestamp(Path(folder).stat().st_mtime, UTC).date().isoformat()
    return [{"recorded": False, "commit": None, "date": date}]


def add_run_record(folder: str | Path) -> None:
    """Append this process's provenance to the record of a training run that it starts or resumes."""
    path = Path(folder, RUN_RECORD)
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(distinct([*earlier, record()]), indent=1) + "\n", encoding="utf-8")


def distinct(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge records that differ only in the date; the latest date is kept."""
    return list({json.dumps({**record, "date": None}, sort_keys=True): record for record in records}.values())


def write_results(
    path: str | Path, figures: dict[str, Any], earlier: Sequence[dict[str, Any]] = (), measured_here: bool = True
) -> None:
    """Write a result file: measurements and their provenance.

    Args:
        path: the JSON file; its folder is created.
        figures: what was measured.
        earlier: the records of figures that other processes measured, see `records_of`.
        measured_here: False if this process measured nothing and only gathers the figures of `earlier`.
    """
    records = [*earlier, record()] if measured_here else list(earlier)
    if not records:
        raise ValueError(f"{path}: no record says what measured the figures; pass `earlier`, or `measured_here=True`.")
    content = {key: value for key, value in figures.items() if key != "provenance"}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content | {"provenance": distinct(records)}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Record commit, machine and versions for training runs that are about to start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="output folder of the runs")
    add_run_record(parser.parse_args().folder)


if __name__ == "__main__":
    main()
