"""The table of checks in the documentation agrees with the tests."""

import ast
import json
import re
from pathlib import Path

import pytest

from hf_captioners.architectures import ARCHITECTURES
from tests.hub.captioner_cases import case_of
from tests.transformers_suite.not_applicable import NOT_APPLICABLE
from tests.transformers_suite.outcomes import PAGE, STORED, section, total_of

from .common import CaptionerChecks

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "common_checks.md").read_text(encoding="utf-8")
OUTCOMES = PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if re.match(r"\| \d", line)
]
OURS = {name for name in dir(CaptionerChecks) if name.startswith("test_")}


def names_of_tests(path: str) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_check_of_the_suite_has_a_row():
    assert [int(row[0]) for row in ROWS] == list(range(1, 45))
    assert all(len(row) == 3 and row[2] for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_named_tests_exist(row):
    named = re.findall(r"`([^`]*test_\w+)`", row[2])
    assert named or "Not applicable" in row[2]
    for name in named:
        path, _, function = name.rpartition("::")
        assert function in (names_of_tests(path) if path else OURS), name


def test_every_common_test_is_mentioned():
    assert OURS - set(re.findall(r"`(test_\w+)`", TEXT)) == set()


def test_skipped_checks_have_their_reason():
    """The architectures of each row are those whose tests are skipped."""
    section = TEXT.partition("## Skipped checks")[2].partition("\n## ")[0]
    flex, assisted = (
        set(re.findall(r"`(\w+)`", line.split("|")[2])) for line in section.splitlines() if line.startswith("| `")
    )
    models = {name: case_of(name).make_model() for name in ARCHITECTURES}
    assert {name for name, model in models.items() if not model._supports_flex_attn} == flex
    assert {name for name, model in models.items() if model._is_stateful} == assisted


@pytest.mark.parametrize("entry", NOT_APPLICABLE, ids=lambda entry: f"{entry.test}-{entry.suites[0]}")
def test_tests_of_transformers_that_do_not_apply_are_documented(entry):
    names = ", ".join(f"`{name}`" for name in sorted(set(entry.architectures or ()))) or "all"
    assert f"| `{entry.test}` | {', '.join(entry.suites)} | {names} | {entry.reason} |" in OUTCOMES


def test_outcomes_of_transformers_tests_are_those_of_the_last_run():
    """The page has the stored outcomes: both ways in of every architecture, and no failure."""
    outcomes = json.loads(STORED.read_text(encoding="utf-8"))
    assert section(outcomes) in OUTCOMES, "type: python -m tests.transformers_suite.outcomes"
    built_in = {name for name, row in ARCHITECTURES.items() if row.package is None}
    assert outcomes["table"].keys() == {*built_in, "all"}
    assert all(outcomes["table"][name].keys() == {"pixels", "regions", "processor"} for name in built_in)
    assert total_of(outcomes["table"]).get("failed", 0) == 0
