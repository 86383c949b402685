"""Location of the real data sets; reports of CPU seconds and of what was compared with the authors' figures."""

import os
import re
from pathlib import Path

import pytest

from tests.cpu_time import CpuTime
from tests.fork_server import ForkServer

REPOSITORY = Path(__file__).resolve().parents[1]


def shared_dir() -> Path:
    """Return the folder of real data sets, which may be missing."""
    return Path(os.environ.get("HF_CAPTIONERS_DATA_DIR") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(scope="session")
def material() -> Path:
    """Folder of real data sets; tests that need it are skipped if it is missing."""
    if not shared_dir().is_dir():
        pytest.skip(f"no real data at {shared_dir()} (set HF_CAPTIONERS_DATA_DIR)")
    return shared_dir()


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory) -> ForkServer:
    """Server of Python processes that do not wait for imports, one for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return ForkServer(folder.parent, os.getppid())
    return ForkServer(folder, os.getpid())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the CPU seconds of every test."""
    parser.addoption("--cpu-times", metavar="FILE", help="write the CPU seconds of every test to a JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the CPU seconds of the tests."""
    config.pluginmanager.register(CpuTime(config), "cpu_time")


def pytest_terminal_summary(terminalreporter) -> None:
    """Report the compared figures, and the folders that nothing was compared with. Processes of xdist know their own
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
