"""Fixtures of all tests: real data, fresh processes, cached files; reports of CPU seconds and parity."""

import gc
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.cpu_time import CpuTime
from tests.fork_server import ForkServer

REPOSITORY = Path(__file__).resolve().parents[1]
# As in the Makefile, and before torch is imported: threads make tiny tensors ten times slower where other processes
# use the cores, because they wait actively for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def shared_dir() -> Path:
    """Return the folder of real data sets, which may not exist."""
    return Path(os.environ.get("HF_CAPTIONERS_DATA_DIR") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(scope="session")
def material() -> Path:
    """Folder of real data sets; tests that use it are skipped if it is missing."""
    if not shared_dir().is_dir():
        pytest.skip(f"no real data at {shared_dir()} (set HF_CAPTIONERS_DATA_DIR)")
    return shared_dir()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    """Temporary folder shared by all processes of a test run."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def shared_features(run_folder):
    """Feature cache shared by all tests of a run, separate from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = run_folder / "shared_features"
        patch.setattr("hf_captioners.features.shared_cache.default_folder", lambda: folder)
        yield folder


@pytest.fixture(scope="session")
def fork_server(run_folder) -> ForkServer:
    """Server that forks Python processes with imported libraries; one for all processes of a run."""
    return ForkServer(run_folder, os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())


@pytest.fixture(scope="session")
def once_a_run(run_folder) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that fills a folder on first use, once for all processes of a run.

    Its arguments are a name and a function that fills the empty folder that it is given. Nothing changes the folder
    afterwards.
    """

    def folder_of(name: str, fill: Callable[[Path], object]) -> Path:
        folder = run_folder / "once" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.with_name(f"{folder.name}.filled").exists():
                shutil.rmtree(folder, ignore_errors=True)  # an earlier attempt failed
                folder.mkdir()
                fill(folder)
                folder.with_name(f"{folder.name}.filled").touch()
        return folder

    return folder_of


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the CPU seconds of every test."""
    parser.addoption("--cpu-times", metavar="FILE", help="write the CPU seconds of every test to a JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the CPU seconds of the tests."""
    config.pluginmanager.register(CpuTime(config), "cpu_time")


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from garbage collection.

    Each training collects garbage when it begins, which takes half a second with the objects of all tests.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Restore garbage collection at the end, or libraries report leaks."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter) -> None:
    """Report the compared figures, and folders without comparisons. Processes of xdist know their own
    tests only, so the hook belongs to the first file that pytest reads."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    counts = [value for report in reports for key, value in report.user_properties if key == "figures_compared"]
    if counts:
        from tests.parity.figures import FIGURES

        terminalreporter.write_line(f"parity: {sum(counts):,} figures compared in {len(counts)} tests")
        folders = sorted("/".join(path.parent.parts[-2:]) for path in FIGURES.glob("*/*/config.json"))
        read = " ".join(report.nodeid for report in reports)  # "[family/folder]", "[family/folder-float64]", or a file
        unread = [
            name for name in folders if not re.search(rf"\[{name}[\]-]|test_\w+_{name.rpartition('/')[2]}\.py", read)
        ]
        if unread:
            terminalreporter.write_line(f"parity: not compared in this run: {', '.join(unread)}")
