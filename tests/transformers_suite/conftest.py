"""Outcomes of transformers' common tests on captioners: what does not apply, and the table."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from .not_applicable import SUITES, reason_of
from .outcomes import cell, lines_of_table, total_of

LONGEST_REASON, COMMON_REASONS = 120, 25
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


def report_of() -> dict[str, Any]:
    """Return the outcomes in the form of `outcomes.json`: counts by architecture, suite and state, and skips."""
    table: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for node, states in sorted(outcomes.items()):
        architecture, suite, _ = names_of(node)
        table[architecture][suite][state_of(states)] += 1
    shortened = Counter[str]()
    for reason, count in skipped.items():
        shortened[" ".join(reason.split())[:LONGEST_REASON].replace("|", "/")] += count
    common = [[reason, count] for reason, count in shortened.most_common(COMMON_REASONS)]
    return {"transformers": transformers.__version__, "table": table, "skipped": common}


def pytest_addoption(parser: Any) -> None:
    """Add `--outcomes FILE`, the file to write."""
    parser.addoption("--outcomes", help="JSON file of the outcomes, see `outcomes.py`")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, what the suite skips by itself, and entries whose tests pass; write the file of outcomes."""
    report, write = report_of(), terminalreporter.write_line
    terminalreporter.section("transformers' common tests: passed / not applicable / failed")
    for line in lines_of_table(report["table"]):
        write(line)
    images = report["table"].get("all", {}).get("image processor")
    write(f"\nImage processors: {cell(images)}. In all: {cell(total_of(report['table']))}.")
    write("\nSkipped by the suite itself:")
    for reason, count in report["skipped"]:
        write(f"{count:5} {reason}")
    for node in needless_entries():
        write(f"PASSES, but is said not to apply: {node}", red=True)
    if path := terminalreporter.config.getoption("--outcomes"):
        Path(path).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")
