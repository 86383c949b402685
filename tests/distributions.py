"""Builds of the project's distributions, and environments to install them into."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from release.distributions import ROOT, mapped_folders


def copy_sources(tree: Path) -> Path:
    """Copy the sources of the distributions to a new folder, without stale builds; return the folder."""
    tree.mkdir()
    for name in (*mapped_folders(), "release"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def build(tree: Path, folder: Path, kind: str = "--wheel") -> Path:
    """Build a distribution; return its file.

    Args:
        tree: the sources.
        folder: folder of the distribution.
        kind: `--wheel` or `--sdist`.
    """
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(folder), str(tree)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return next(folder.glob("*.whl" if kind == "--wheel" else "*.tar.gz"))


def interpreter(folder: Path) -> Path:
    """Return the Python interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def environment(folder: Path, *project: str) -> Path:
    """Install only this project into a new environment; return its interpreter.

    Its dependencies are those of this environment, without the installation of this project there.

    Args:
        folder: of the environment.
        project: what pip installs, for example a wheel, or `-e` and a folder.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = interpreter(folder)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    # `.pth` files of a folder that is added in this way are not read: no editable installation comes with it.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--ignore-installed"]
    ran = subprocess.run([*install, *options, *project], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return python


@pytest.fixture(scope="session")
def wheel(once_a_run) -> Path:
    """Build a wheel from a copy of the sources."""
    folder = once_a_run("wheel", lambda work: build(copy_sources(work / "tree"), work))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel, once_a_run) -> Path:
    """Install the wheel alone into a folder; its dependencies come from this environment."""

    def fill(target):
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(target), str(wheel)]
        subprocess.run(command, check=True, capture_output=True, text=True)

    return once_a_run("site", fill)
