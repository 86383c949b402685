"""CPU seconds of tests: by architecture and for the shared tests, with budgets.

Wall time depends on what else a machine does; CPU seconds, those of child processes included, hardly do.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hf_captioners.architectures import ARCHITECTURES

from . import fork_server

SHARED = "shared"
BUDGETS = {SHARED: 600}
BUDGET_OF_AN_ARCHITECTURE = 70


def owner_of(nodeid: str) -> str:
    """Return the architecture to which a test belongs, or `SHARED`.

    A test belongs to an architecture if its file is `test_{name}.py` or `test_{name}_*.py`, its class
    `Test{prefix}` or `Test{prefix}*`, or a part of its parameters, between hyphens and slashes, is the name or begins
    with the name and an underscore. The longest name wins.
    """
    path, _, test = nodeid.partition("::")
    classes, _, parameters = test.partition("[")
    file = Path(path).stem.removeprefix("test_")
    parts = re.split(r"[-/\]]", parameters)
    for name in sorted(ARCHITECTURES, key=len, reverse=True):
        named = f"{name}_"
        if f"{file}_".startswith(named) or any(f"{part}_".startswith(named) for part in parts):
            return name
        if re.match(rf"Test{ARCHITECTURES[name].prefix}(?![a-z])", classes):
            return name
    return SHARED


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished children, including forked ones."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + fork_server.spent["children"]


class CpuTime:
    """Plugin that measures the CPU seconds of each test and reports sums at the end.

    A process of xdist sends its figures with the reports of its tests; the process that prints adds them up.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.last = 0.0
        self.tests: dict[str, float] = {}
        self.sums: dict[str, float] = {}

    def add(self, owner: str, seconds: float) -> None:
        """Add seconds to an owner's sum."""
        self.sums[owner] = self.sums.get(owner, 0.0) + seconds

    def pytest_collection_finish(self) -> None:
        """Start measuring at the first test; imports of test files count as shared."""
        self.last = cpu_seconds()
        self.start = self.last

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Any:
        """Attribute the CPU seconds since the end of the previous test to this test."""
        report = yield
        if call.when == "teardown":
            now = cpu_seconds()
            report.cpu_seconds = (owner_of(item.nodeid), now - self.last)
            self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the seconds of a test, of this process or another."""
        if hasattr(report, "cpu_seconds"):
            owner, seconds = report.cpu_seconds
            self.add(owner, seconds)
            self.tests[report.nodeid] = seconds

    def pytest_sessionfinish(self) -> None:
        """Send the start-up seconds to the process that prints the report."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cpu_seconds_of_start"] = self.start + fork_server.spent["servers"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the start-up seconds of another process."""
        self.add(SHARED, getattr(node, "workeroutput", {}).get("cpu_seconds_of_start", 0.0))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Any:
        """Print the report below the summary of the tests."""
        result = yield
        self.report(terminalreporter)
        return result

    def report(self, terminalreporter: Any) -> None:
        """Print the sums with their budgets; exceeding a budget does not fail the run."""
        in_processes = terminalreporter.config.pluginmanager.hasplugin("dsession")
        self.add(SHARED, sum(os.times()[:2]) if in_processes else self.start + fork_server.spent["servers"])
        terminalreporter.section("CPU seconds")
        for owner in sorted(self.sums, key=lambda name: (name != SHARED, name)):
            budget = BUDGETS.get(owner, BUDGET_OF_AN_ARCHITECTURE)
            above = self.sums[owner] > budget
            line = f"{owner:24} {self.sums[owner]:6.0f} of {budget}{'  ABOVE THE BUDGET' if above else ''}"
            terminalreporter.write_line(line, red=above)
        if path := terminalreporter.config.getoption("cpu_times"):
            times = dict(sorted(self.tests.items(), key=lambda test: -test[1]))
            Path(path).write_text(json.dumps(times, indent=0) + "\n", encoding="utf-8")
