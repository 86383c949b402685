"""Distributions of the library and of the default captioner: building, and checks of their contents."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECTS = {"hf_captioners": ROOT, "hf_captioners_default": ROOT / "default_captioner"}
MAX_WHEEL_BYTES = 1_500_000  # of the library
# Nothing fails without these when it is run: type checkers find no types.
TYPED = ("hf_captioners/py.typed", "hf_captioners/__init__.pyi", "hf_captioners/captioning/__init__.pyi")


def build(project: Path, folder: Path, isolated: bool = False) -> tuple[Path, Path]:
    """Build the source distribution of a project, and the wheel from it; return both paths.

    Args:
        project: folder with a `pyproject.toml`.
        folder: folder of the distributions.
        isolated: build in an environment of its own, with the build requirements from the package index.

    Raises:
        RuntimeError: the build failed; the message has what it printed.
    """
    before = set(folder.glob("*"))
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(project)]
    ran = subprocess.run([*command, *([] if isolated else ["--no-isolation"])], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{project} cannot be built: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    built = set(folder.glob("*")) - before
    sources = next(path for path in built if path.name.endswith(".tar.gz"))
    return sources, next(path for path in built if path.suffix == ".whl")


def mapped_folders(root: Path = ROOT) -> dict[str, str]:
    """Return the source folders of the library, with their places in the wheel."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return {"hf_captioners": "hf_captioners"} | {
        folder: name.replace(".", "/") for name, folder in settings["package-dir"].items()
    }


def source_names(root: Path = ROOT) -> set[str]:
    """Return the names, in the wheel, of all code and data files of the library."""
    names = set()
    for folder, place in mapped_folders(root).items():
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                names.add(f"{place}/{path.relative_to(root / folder).as_posix()}")
    return names


def wheel_faults(wheel: Path, root: Path = ROOT) -> list[str]:
    """Return a sentence on each fault of the library's wheel.

    Args:
        wheel: its file.
        root: the sources that it was built from.
    """
    with zipfile.ZipFile(wheel) as content:
        all_names = set(content.namelist())
    names = {name for name in all_names if not name.split("/")[0].endswith(".dist-info")}
    expected = source_names(root) | set(TYPED)
    faults = [f"{name} is missing in the wheel" for name in sorted(expected - names)]
    faults += [f"{name} is only in the wheel" for name in sorted(names - expected)]
    if not wheel.name.endswith("-py3-none-any.whl"):
        faults.append(f"{wheel.name} is not pure Python")
    if (size := wheel.stat().st_size) >= MAX_WHEEL_BYTES:
        faults.append(f"{wheel.name} has {size:,} bytes, expected fewer than {MAX_WHEEL_BYTES:,}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in all_names):
        faults.append("the licence is missing in the wheel")
    return faults
