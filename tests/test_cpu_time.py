"""The report of CPU seconds at the end of a run."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from .cpu_time import SHARED, CpuTime, cpu_seconds, owner_of
from .fork_server import spent


@pytest.mark.parametrize(
    ("nodeid", "owner"),
    [
        ("tests/modeling/test_visualgpt.py::TestVisualGPT::test_pickle[aligned]", "visualgpt"),
        ("tests/modeling/test_show_attend_tell_hard_attention.py::test_a_step", "show_attend_tell"),
        ("tests/modeling/test_layers.py::test_gradients[a-show_attend_tell-8]", "show_attend_tell"),
        ("tests/hub/test_convert.py::test_the_numbers[show_attend_tell_arctic/main]", "show_attend_tell"),
        ("tests/cli/test_reproduce.py::test_a_recipe[visualgpt/table_1.yaml]", "visualgpt"),
        ("tests/modeling/test_views.py::TestShowAttendTell::test_views", "show_attend_tell"),
        ("tests/modeling/test_views.py::TestVisualGPTish::test_views", SHARED),
        ("tests/training/test_trainer.py::test_show_attend_tell[1-visualgpts]", SHARED),
        ("tests/show_attend_tell/test_trainer.py::test_steps", SHARED),
    ],
)
def test_a_test_belongs_to_its_architecture(nodeid, owner):
    assert owner_of(nodeid) == owner


def test_the_longest_name_wins(monkeypatch):
    names = {name: SimpleNamespace(prefix=name.title()) for name in ("zodiac", "zodiac_aoanet", "aoanet")}
    monkeypatch.setattr("tests.cpu_time.ARCHITECTURES", names)
    assert owner_of("tests/modeling/test_zodiac_aoanet.py::test_steps") == "zodiac_aoanet"
    assert owner_of("tests/modeling/test_zodiac.py::test_steps") == "zodiac"


def test_sums_of_processes_are_printed_beside_the_budgets(monkeypatch):
    monkeypatch.setitem(spent, "servers", 8.0)
    lines = []
    reporter = SimpleNamespace(
        config=SimpleNamespace(
            pluginmanager=SimpleNamespace(hasplugin=lambda name: False), getoption=lambda name: None
        ),
        section=lines.append,
        write_line=lambda line, red: lines.append((*line.split(), red)),
    )
    plugin = CpuTime(reporter.config)
    plugin.start = 0.0
    plugin.pytest_testnodedown(SimpleNamespace(workeroutput={"cpu_seconds_of_start": 400.0}))
    for owner, seconds in (("shared", 150.0), ("shared", 20.0), ("visualgpt", 71.0), ("visualgpt", 1.0)):
        plugin.pytest_runtest_logreport(SimpleNamespace(nodeid="a test", cpu_seconds=(owner, seconds)))
    plugin.report(reporter)
    assert lines == [
        "CPU seconds",
        ("shared", "578", "of", "600", False),
        ("visualgpt", "72", "of", "70", "ABOVE", "THE", "BUDGET", True),
    ]


def test_children_are_counted():
    before = cpu_seconds()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    assert cpu_seconds() - before >= 0.2
