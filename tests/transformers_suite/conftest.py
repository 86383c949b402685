"""Outcomes of transformers' common tests on captioners: what does not apply, and the table."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from .not_applicable import SUITES, reason_of

STATES = ("passed", "not applicable", "failed")
outcomes: dict[str, set[str]] = defaultdict(set)
skipped: Counter[str] = Counter()


def names_of(nodeid: str) -> tuple[str, str, str]:
    """Return architecture, suite and test of a node `file::Test_ARCHITECTURE_SUITE::test`."""
    _, title, test = nodeid.split("::")
    architecture, _, suite = title.removeprefix("Test_").rpartition("_")
    return (architecture, suite, test) if suite in SUITES else ("all", "image processor", test)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Iterator[Any]:
    """Turn the failure of a test that does not apply into an expected one."""
    report = yield
    reason = reason_of(*names_of(item.nodeid))
    if reason is not None and report.failed:
        report.outcome, report.wasxfail = "skipped", reason
    return report


def pytest_runtest_logreport(report: Any) -> None:
    """Record the outcome of a test, or of one of its subtests."""
    if report.failed:
        outcomes[report.nodeid].add("failed")
    elif hasattr(report, "wasxfail"):
        outcomes[report.nodeid].add("expected")
    elif report.skipped and type(report) is pytest.TestReport:
        outcomes[report.nodeid].add("skipped")
        skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1
    elif report.when == "call":
        outcomes[report.nodeid].add("passed")


def state_of(states: set[str]) -> str:
    """Return the state of a test by the outcomes of its parts."""
    if "failed" in states:
        return "failed"
    return "not applicable" if states & {"expected", "skipped"} else "passed"


def needless_entries() -> list[str]:
    """Return tests that are said not to apply, and pass."""
    return [node for node, states in outcomes.items() if reason_of(*names_of(node)) and states == {"passed"}]


def pytest_sessionfinish(session: Any) -> None:
    """Fail if a test passes that is said not to apply."""
    if needless_entries() and session.exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table: architecture x suite, and what the suite skips by itself."""
    table: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for node, states in outcomes.items():
        architecture, suite, _ = names_of(node)
        table[architecture, suite][state_of(states)] += 1
    write = terminalreporter.write_line
    terminalreporter.section("transformers' common tests")
    write(f"| architecture | suite | {' | '.join(STATES)} |\n|---|---|---|---|---|")
    for (architecture, suite), counts in sorted(table.items()):
        write(f"| {architecture} | {suite} | {' | '.join(str(counts[state]) for state in STATES)} |")
    totals = sum(table.values(), Counter())
    write(f"| total | | {' | '.join(str(totals[state]) for state in STATES)} |")
    write("\nSkipped by the suite itself:")
    for reason, count in skipped.most_common():
        write(f"{count:5} {reason[:150]}")
    for node in needless_entries():
        write(f"PASSES, but is said not to apply: {node}", red=True)
