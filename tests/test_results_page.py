"""Pages that benchmarks write (results, robustness, confidence, evaluator, claims) match the committed results."""

import importlib.util
import json
from pathlib import Path

import pytest

from hf_captioners.reproduce.recipe import RECIPES, Recipe, in_percent
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


def test_the_page_of_claims_is_written_from_the_committed_results(monkeypatch):
    module = writer("claims", monkeypatch)
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/claims.py"
    recipes = {path.stem: path.read_text(encoding="utf-8") for path in RECIPES.joinpath("ideas").glob("*.yaml")}
    assert {study.name for study in module.STUDIES} == set(recipes), "every study has a section"
    for study in module.STUDIES:
        rows = {row for one in study.comparisons for row in (one.with_it, one.without)}
        assert all(f"row: {row}\n" in recipes[study.name] for row in rows), study.name
        assert f"{study.smallest_effect}. Comparisons" in " ".join(recipes[study.name].replace("#", "").split())
    if measured := module.measured():
        assert module.figure(measured) == (ROOT / "docs" / module.FIGURE).read_text(encoding="utf-8")
        assert sum(page.count(f"**{word}** |") for word in ("held", "not held", "undecided")) == sum(
            len(found) for _, found in measured
        )


def test_verify_compares_with_the_committed_figures():
    files = list((ROOT / "benchmarks" / "results").glob("ideas_*.json"))
    assert files
    for file in files:
        runs = json.loads(file.read_text())["runs"]
        for recipe in Recipe.load_rows(RECIPES / "ideas" / f"{file.stem.removeprefix('ideas_')}.yaml"):
            published = recipe.published
            its = [run["figures"] for run in runs if run["row"] == published.row and run["seed"] in published.seeds]
            assert len(its) == len(published.seeds)
            (regime,) = published.regimes.values()
            assert set(regime.measured) == {"cider_d", "scene_right"}
            for name, figures in regime.measured.items():
                assert figures == [round(value, 2) for value in in_percent([run[name] for run in its])], recipe.path


def test_verdicts_follow_the_interval(monkeypatch):
    """A clear gain, none, and too few seeds to know; with several comparisons, levels are those of Holm."""
    module = writer("claims", monkeypatch)
    base = [0.50, 0.52, 0.49, 0.51, 0.50]
    gains = {
        "clear": [0.10, 0.11, 0.09, 0.10, 0.12],
        "none": [0.001, -0.002, 0.0, 0.002, -0.001],
        "unclear": [0.2, -0.1, 0.15, -0.05, 0.1],
        "too small": [0.010, 0.011, 0.009, 0.010, 0.012],
    }
    rows = {"without": base} | {name: [a + b for a, b in zip(base, gain, strict=True)] for name, gain in gains.items()}
    runs = [
        {"row": row, "seed": seed, "figures": {"scene_right": value}}
        for row, values in rows.items()
        for seed, value in enumerate(values, 1)
    ]
    runs.append({"row": "none", "seed": module.SEARCH_SEED, "figures": {"scene_right": 9.0}})  # it is not reported
    comparisons = tuple(module.Comparison(name, name, "without", "") for name in gains)
    found = module.compare(module.Study("toy", "Toy", "It helps.", comparisons), runs)
    assert {one.comparison.idea: one.verdict for one in found} == {
        "clear": "held",
        "none": "not held",
        "unclear": "undecided",
        "too small": "not held",
    }
    stats = pytest.importorskip("scipy.stats")
    pairs = {name: stats.ttest_rel(rows[name], base) for name in gains}
    order = sorted(pairs, key=lambda name: pairs[name].pvalue)
    first, last = (next(one for one in found if one.comparison.idea == name) for name in (order[0], order[-1]))
    assert first.p == pytest.approx(4 * pairs[order[0]].pvalue) and last.p >= pairs[order[-1]].pvalue
    assert first.interval == pytest.approx(tuple(pairs[order[0]].confidence_interval(1 - 0.05 / 4)))
    with pytest.raises(ValueError, match=r"seeds \[1, 2, 3, 4\] and \[1, 2, 3, 4, 5\]"):
        module.compare(module.Study("toy", "Toy", "It helps.", comparisons[:1]), [r for r in runs if r != runs[9]])
