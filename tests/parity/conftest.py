"""Says at the end of a run how many figures were compared."""

import pytest


@pytest.fixture
def report_compared(record_property):
    """Call it with the number of figures that a test compared."""
    return lambda count: record_property("figures_compared", count)


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    counts = [value for report in reports for key, value in report.user_properties if key == "figures_compared"]
    if counts:
        terminalreporter.write_line(f"parity: {sum(counts):,} figures compared in {len(counts)} tests")
