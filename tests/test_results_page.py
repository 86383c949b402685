"""docs/results.md and docs/robustness.md match the committed result files."""

import importlib.util
import json
from pathlib import Path

from tests.robustness.attacks import APART, ATTACKS
from tests.tiny_families import FAMILIES

ROOT = Path(__file__).parents[1]


def writer(name, monkeypatch):
    """The module of a script in `benchmarks`."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # it imports others of that folder
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_written_from_the_committed_results(monkeypatch):
    module = writer("write_results", monkeypatch)
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/write_results.py"
    assert page.count("## Flickr8k: ") >= 1
    rows = json.loads((module.RESULTS / "decoding.json").read_text(encoding="utf-8"))["rows"]
    assert all(
        f"| {row['images']} | {row['decoder']} | {row['seconds']:.2f} | {row['speed']:.2f} " in page for row in rows
    )


def test_the_table_of_attacks_is_written_from_the_committed_results(monkeypatch):
    module = writer("write_robustness", monkeypatch)
    page = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/write_robustness.py"
    rows = json.loads(module.RESULTS.read_text(encoding="utf-8"))["classes"]
    assert set(rows) | set(APART) == set(ATTACKS), "every class of attacks has a row"
    assert all(row["tried"] > 0 and row["failed"] == 0 for row in rows.values())


def test_the_matrix_of_training_is_that_of_the_committed_results():
    page = (ROOT / "docs" / "other_models.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "benchmarks" / "results" / "other_models_matrix.json").read_text())["training"]
    assert set(rows) == set(FAMILIES)
    for family, cells in rows.items():
        assert f"| `{family}` | {' | '.join(cells.values())} |" in page, family
        assert set(cells.values()) <= {"6/6", "equal", "6/6, 6/6"}, "a cell failed"
