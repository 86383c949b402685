"""The check of distributions: its combinations, the lines that it types, and what it calls a fault."""

import os
import sys
from pathlib import Path

import pytest

from hf_captioners.cli import COMMANDS
from release import check
from release.smoke import OF_EXTRAS, PHOTOGRAPH, README_CODE, Typed, lines, write_inputs
from tests.distributions import ROOT


def test_every_extra_is_installed():
    known = check.combinations()
    assert known["alone"] == set() and known["default"] == {"default"}
    singles = {name for name in known if name not in ("alone", "all")}
    assert singles == OF_EXTRAS.keys(), "add a line to OF_EXTRAS of release/smoke.py"
    assert known["all"] == singles - {"docs", "space"} and list(known)[-1] == "all"


def test_every_command_is_typed():
    for extras in (set(), {"default"}, {"default", "export"}):
        typed = lines(list(COMMANDS), extras)
        assert {line.arguments[0] for line in typed if "--help" in line.arguments} == set(COMMANDS)
    assert len(lines(list(COMMANDS), {"serve"})) == 4


def test_lines_of_the_readme():
    """README says what is typed, and what it prints."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert README_CODE.strip().replace('"photo.jpg"', '"docs/photo.jpg"') in text
    assert f"\n# {PHOTOGRAPH}\n" in text and "hf-captioners caption docs/photo.jpg" in text


def test_faults(tmp_path):
    """A wrong status, a missing text and a traceback are faults; a line that works is none."""
    programs = Path(sys.executable).parent
    write_inputs(tmp_path, ROOT / "docs")
    assert len(list((tmp_path / "my_images").glob("*.jpg"))) == 24
    for line, said in (
        (Typed(("-c", "print('all is well')"), "is well"), None),
        (Typed(("-c", "print('all is well')"), "is bad"), "did not print 'is bad'"),
        (Typed(("-c", "raise SystemExit(3)")), "ended with 3, expected 0"),
        (Typed(("-c", "1 / 0"), "", 1), "ZeroDivisionError"),
        (Typed(("-c", "import tests")), "No module named 'tests'"),
        (Typed(("--version",), "hf-captioners "), None),
    ):
        faults = check.type_lines(programs, [line], tmp_path)
        assert len(faults) == (said is not None) and all(said in fault for fault in faults), faults


def test_a_failed_installation_is_a_fault(monkeypatch, tmp_path):
    def fail(*arguments):
        raise RuntimeError("pip install failed: no such package")

    monkeypatch.setattr(check, "install", fail)
    result = check.check_environment(("3.11", sys.executable), "alone", set(), {})
    assert result.faults == ["pip install failed: no such package"] and result.typed == 0


def test_pythons_that_are_no_pythons_are_not_found(monkeypatch, tmp_path):
    """The shims of pyenv are on the path for versions that are not installed."""
    if os.name == "nt":
        pytest.skip("there are no shell scripts")
    for version, code in (
        ("3.11", "echo Python 3.11.9"),
        ("3.12", "echo not found; exit 127"),
        ("3.13", "echo Python 3.1.0"),
    ):
        (tmp_path / f"python{version}").write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / f"python{version}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert check.find_pythons(("3.11", "3.12", "3.13")) == {"3.11": str(tmp_path / "python3.11")}


@pytest.mark.slow
def test_the_wheel_alone(capsys):
    """Both distributions are built and installed into a new environment, without network if they are cached."""
    if not check.find_pythons(("3.11",)):
        pytest.skip("there is no Python 3.11")
    assert check.main(["--pythons", "3.11", "--combinations", "alone"]) == 0, capsys.readouterr().out
