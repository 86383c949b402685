"""Report of the number of compared figures, and of the folders that nothing was compared with, at the end of a run."""

import pytest

from .figures import FIGURES


@pytest.fixture
def report_compared(record_property):
    """Return a function that records how many figures a test compared."""
    return lambda count: record_property("figures_compared", count)


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    counts = [value for report in reports for key, value in report.user_properties if key == "figures_compared"]
    if counts:
        terminalreporter.write_line(f"parity: {sum(counts):,} figures compared in {len(counts)} tests")
        folders = sorted("/".join(path.parent.parts[-2:]) for path in FIGURES.glob("*/*/config.json"))
        unread = [name for name in folders if not any(f"[{name}]" in report.nodeid for report in reports)]
        if unread:
            terminalreporter.write_line(f"parity: not compared in this run: {', '.join(unread)}")
