"""The pages of results, docs/robustness.md, confidence.md and evaluator.md match the committed result files."""

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


def test_the_pages_are_written_from_the_committed_results(monkeypatch):
    module = writer("write_results", monkeypatch)
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("results*.md")}
    assert module.pages() == pages, "run python benchmarks/write_results.py"
    assert pages["results_flickr8k"].count("## Flickr8k: ") >= 1
    names = [name for _, results in module.PAGES.values() for name in results]
    assert len(names) == len(set(names)) and set(names) <= {name for name, _ in module.SECTIONS}
    page = pages["results_decoding"]
    rows = json.loads((module.RESULTS / "decoding.json").read_text(encoding="utf-8"))["rows"]
    assert all(
        f"| {row['images']} | {row['decoder']} | {row['seconds']:.2f} | {row['speed']:.2f} " in page for row in rows
    )


def test_the_table_of_attacks_is_written_from_the_committed_results(monkeypatch):
    module = writer("write_robustness", monkeypatch)
    page = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/write_robustness.py"
    results, apart = (json.loads(path.read_text(encoding="utf-8")) for path in (module.RESULTS, module.APART))
    assert set(apart["classes"]) == set(APART), "every class that is run apart has a row"
    assert set(results["classes"]) == set(ATTACKS) - set(APART), "every class of attacks has a row"
    assert len(results["seeds"]) >= 3 and results["calls"] == 1, "one run with three seeds"
    for name, row in (results["classes"] | apart["classes"]).items():
        assert row["tried"] > 0 and row["failed"] == row["outside"] == 0, name
        assert row["opens"] > 0 or name.startswith("kill"), name
    for name in (one for one in APART if "10,000" in one):
        assert apart["classes"][name]["tried"] >= 10, name


def test_the_page_of_confidence_is_written_from_the_committed_results(monkeypatch):
    module = writer("write_confidence", monkeypatch)
    page = (ROOT / "docs" / "confidence.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/write_confidence.py"
    assert module.figure() == (ROOT / "docs" / module.FIGURE).read_text(encoding="utf-8")
    own = json.loads(module.RESULTS.read_text(encoding="utf-8"))["captioners"]["default"]
    assert own["calibrated_on"]["rows"] == "even" and own["data"].endswith("odd rows")
    assert f"| {own['kinds']['beams']['auroc_words']['value']:.3f} (" in page


def test_the_matrix_of_training_is_that_of_the_committed_results():
    page = (ROOT / "docs" / "other_models_training.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "benchmarks" / "results" / "other_models_matrix.json").read_text())["training"]
    assert set(rows) == set(FAMILIES)
    for family, cells in rows.items():
        assert f"| `{family}` | {' | '.join(cells.values())} |" in page, family
        assert set(cells.values()) <= {"6/6", "equal", "6/6, 6/6"}, "a cell failed"


def test_the_page_of_evaluators_is_written_from_the_committed_results(monkeypatch):
    module = writer("write_evaluator", monkeypatch)
    page = (ROOT / "docs" / "evaluator.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/write_evaluator.py"
    results = json.loads(module.RESULTS.read_text(encoding="utf-8"))
    for captions in results["sets"]:
        rows = module.cider_rows(captions, results["standard"])
        assert rows[0][0] == "the COCO evaluation" and {title for title, *_ in rows[1:]} >= set(
            list(module.FACTORS.values())[:4]
        ), "every factor is changed alone"
