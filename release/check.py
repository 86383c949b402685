"""Checks of the distributions before a release: `make release-check`, or `python -m release.check`.

Both projects are built, and the wheels installed into a new environment for each combination of extras and each Python
that is found. There, outside of the repository, every command, README's lines and the typed program of
`tests/typed_client` are tried. Sizes and times are printed, and written to `build/release_check.json`.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hf_captioners.cli import COMMANDS
from release.distributions import PROJECTS, ROOT, build, wheel_faults
from release.smoke import Typed, lines, write_inputs

OUTPUT = ROOT / "build" / "release_check.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
DEVELOPERS = ("test", "dev")  # extras for this repository
ALONE, ALL = "alone", "all"
APART = ("docs", "space")  # not in `all`: the site is built in the repository, and Gradio limits Pillow


@dataclass
class Result:
    """Result of the checks in one environment.

    Args:
        python: version of Python.
        combination: `alone`, an extra, or `all`.
        packages: number of installed packages.
        megabytes: of the environment, 10^6 bytes.
        install_seconds, typed_seconds: duration of the installation, and of all lines.
        typed: number of lines that were typed.
        faults: sentences about what failed.
    """

    python: str
    combination: str
    packages: int = 0
    megabytes: float = 0.0
    install_seconds: float = 0.0
    typed_seconds: float = 0.0
    typed: int = 0
    faults: list[str] = field(default_factory=list)


def combinations() -> dict[str, set[str]]:
    """Return the extras to install in each tested combination, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for name in project["optional-dependencies"] if name not in DEVELOPERS]
    together = set(extras) - set(APART)
    return {ALONE: set(), "default": {"default"}} | {name: {name} for name in sorted(extras)} | {ALL: together}


def find_pythons(versions: tuple[str, ...] = PYTHONS) -> dict[str, str]:
    """Return the Python interpreters of this machine by version: on the path, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {}
    for version in versions:
        candidates = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
        for candidate in filter(None, candidates):
            ran = subprocess.run([candidate, "--version"], capture_output=True, text=True)
            if ran.returncode == 0 and ran.stdout.startswith(f"Python {version}."):
                found[version] = candidate
                break
    return found


def bare_environment() -> dict[str, str]:
    """Return environment variables without access to this repository, the network and the user's caches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_", "VIRTUAL_ENV"))}
    return kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def install(python: str, wheels: dict[str, Path], extras: set[str], folder: Path) -> Path:
    """Create an environment with the library and its extras from wheels; return its folder of programs.

    Raises:
        RuntimeError: the installation failed; the message has what it printed.
    """
    venv = folder / "environment"
    uv = [sys.executable, "-m", "uv"]
    named = f"[{','.join(sorted(extras))}]" if extras else ""
    programs = venv / ("Scripts" if os.name == "nt" else "bin")
    link = ["--find-links", str(wheels["hf_captioners_default"].parent)]
    requirement = f"hf-captioners{named} @ {wheels['hf_captioners'].as_uri()}"
    for command in (
        ["venv", "--quiet", "--python", python, str(venv)],
        ["pip", "install", "--quiet", "--python", str(programs / "python"), *link, requirement],
    ):
        ran = run([*uv, *command], folder, dict(os.environ))
        if ran.returncode:
            raise RuntimeError(f"{' '.join(command[:2])} failed: {ran.stderr.strip()[-1500:]}")
    return programs


def type_lines(programs: Path, typed: list[Typed], folder: Path) -> list[str]:
    """Run command lines in a folder; return a sentence on each failure."""
    faults, environment = [], bare_environment() | {"HF_HOME": str(folder.parent / "hf_home")}
    environment["PATH"] = f"{programs}{os.pathsep}{environment.get('PATH', '')}"
    for line in typed:
        is_code = line.arguments[0] == "-c"
        program = str(programs / ("python" if is_code else "hf-captioners"))
        ran = run([program, *line.arguments], folder, environment)
        shown = "python -c ..." if is_code else f"hf-captioners {' '.join(line.arguments)}"
        said = ran.stdout + ran.stderr
        if ran.returncode != line.status or "Traceback" in said:
            faults.append(f"`{shown}` ended with {ran.returncode}, expected {line.status}: {said.strip()[-800:]}")
        elif line.said not in said:
            faults.append(f"`{shown}` did not print {line.said!r}: {said.strip()[-800:]}")
    return faults


def check_types(programs: Path, folder: Path) -> list[str]:
    """Check the typed test program with `mypy --strict` in an environment; return a sentence on each failure."""
    from tests.typed_client.checkers import FOLDER, PROGRAMS, error_lines, expected_lines, run_mypy

    work = folder / "client"
    work.mkdir()
    for name in PROGRAMS:
        shutil.copy(FOLDER / name, work / name)
    messages = run_mypy(programs / "python", work, True, *PROGRAMS)
    faults = []
    for name in PROGRAMS:
        found, expected = error_lines(messages, name), expected_lines((FOLDER / name).read_text(), True)
        if found != expected:
            faults.append(f"mypy --strict {name} has errors in the lines {found}, expected {expected}")
    return faults


def check_environment(python: tuple[str, str], name: str, extras: set[str], wheels: dict[str, Path]) -> Result:
    """Install a combination of extras for a Python version, and run its command lines.

    Args:
        python: version and interpreter.
        name: name of the combination.
        extras: its extras.
        wheels: of both projects.
    """
    result = Result(python[0], name)
    with tempfile.TemporaryDirectory(prefix="release_check_") as work:
        folder = Path(work)
        start = time.monotonic()
        try:
            programs = install(python[1], wheels, extras, folder)
        except RuntimeError as error:
            result.faults.append(str(error))
            return result
        result.install_seconds = round(time.monotonic() - start, 1)
        site = next((folder / "environment").glob("[Ll]ib*/**/site-packages"))
        result.packages = len(list(site.glob("*.dist-info")))
        files = (path for path in (folder / "environment").rglob("*") if path.is_file() and not path.is_symlink())
        result.megabytes = round(sum(path.stat().st_size for path in files) / 1e6, 1)
        inputs = folder / "typed"
        inputs.mkdir()
        write_inputs(inputs, ROOT / "docs")
        typed = lines(list(COMMANDS), extras)
        start = time.monotonic()
        result.faults += type_lines(programs, typed, inputs)
        result.typed, result.typed_seconds = len(typed), round(time.monotonic() - start, 1)
        if name == ALONE:
            result.faults += check_types(programs, folder)
    return result


def build_all(folder: Path, show: Callable[[str], object]) -> tuple[dict[str, Path], dict[str, int], list[str]]:
    """Build both projects; return wheels, sizes of all distributions in bytes, and sentences on faults."""
    wheels, sizes = {}, {}
    for name, project in PROJECTS.items():
        start = time.monotonic()
        built = build(project, folder, isolated=True)
        wheels[name] = built[1]
        for path in built:
            sizes[path.name] = path.stat().st_size
            show(f"{path.name}: {path.stat().st_size:,} bytes")
        show(f"built in {time.monotonic() - start:.1f} s")
    return wheels, sizes, wheel_faults(wheels["hf_captioners"])


def main(arguments: list[str] | None = None) -> int:
    """Check the distributions; return 1 if any check failed."""
    known = combinations()
    parser = argparse.ArgumentParser(prog="python -m release.check", description="Check the distributions.")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="X.Y", help="default: those that are found")
    parser.add_argument("--combinations", nargs="+", choices=known, default=list(known), help="default: all")
    args = parser.parse_args(arguments)
    pythons = find_pythons(tuple(args.pythons))

    def show(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    show(f"Pythons: {', '.join(pythons)}; not found: {', '.join(sorted(set(args.pythons) - set(pythons))) or 'none'}")
    with tempfile.TemporaryDirectory(prefix="release_check_") as work:
        wheels, sizes, faults = build_all(Path(work), show)
        results = []
        show(f"{'Python':8}{'extras':14}{'packages':>9}{'MB':>9}{'install s':>11}{'lines':>7}{'seconds':>9}  faults")
        for python in pythons.items():
            for name in args.combinations:
                one = check_environment(python, name, known[name], wheels)
                results.append(one)
                figures = f"{one.packages:9}{one.megabytes:9.1f}{one.install_seconds:11.1f}{one.typed:7}"
                show(f"{one.python:8}{name:14}{figures}{one.typed_seconds:9.1f}  {len(one.faults) or 'none'}")
                for fault in one.faults:
                    show(f"  {fault}")
    for fault in faults:
        show(fault)
    OUTPUT.parent.mkdir(exist_ok=True)
    content = {
        "machine": platform.platform(),
        "sizes": sizes,
        "faults": faults,
        "results": [asdict(one) for one in results],
    }
    OUTPUT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    failed = bool(faults or not results or any(one.faults for one in results))
    show(f"{'Something failed' if failed else 'Everything works'}; figures are in {OUTPUT.relative_to(ROOT)}.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
