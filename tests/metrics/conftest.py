"""Scores of the original programs."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_captioners.metrics import DocumentFrequency, MeteorTables

FIXTURES = Path(__file__).parent / "fixtures"


def read_json(path: Path) -> Any:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def read_rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def truth() -> Path:
    """The folder of expected scores. HF_CAPTIONERS_METRICS_TRUTH_DIR selects a different one of the same layout."""
    return Path(os.environ.get("HF_CAPTIONERS_METRICS_TRUTH_DIR") or FIXTURES)


@pytest.fixture(scope="session")
def truth_rows(truth: Path) -> Callable[[str], list[dict[str, Any]]]:
    return lambda name: read_rows(truth / name)


@pytest.fixture(scope="session")
def truth_json(truth: Path) -> Callable[[str], Any]:
    return lambda name: read_json(truth / name)


@pytest.fixture(scope="session")
def score_sets(truth: Path) -> list[dict[str, Any]]:
    """All sets of candidates and references with their expected scores, including the edge cases."""
    sets = [read_json(path) for path in sorted((truth / "scores").glob("set_*.json.gz"))]
    assert sets, f"no sets in {truth / 'scores'}"
    edge = read_json(truth / "scores" / "edge.json.gz")
    edge = edge["sets"] if isinstance(edge, dict) else edge
    return sets + [{"set": one["name"], **one} for one in edge]


@pytest.fixture(scope="session")
def df_references(truth: Path) -> list[list[str]]:
    return read_json(truth / "scores" / "df_corpus.json.gz")["references"]


@pytest.fixture(scope="session")
def corpus_frequency(df_references) -> DocumentFrequency:
    return DocumentFrequency.per_image(df_references)


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> MeteorTables:
    """METEOR's tables: of HF_CAPTIONERS_METEOR_DIR, the installed ones, or those cut to the words of the fixtures."""
    given = os.environ.get("HF_CAPTIONERS_METEOR_DIR")
    try:
        return MeteorTables(given)
    except FileNotFoundError:
        if given or os.environ.get("HF_CAPTIONERS_METRICS_TRUTH_DIR"):
            pytest.skip(
                "other scores than the fixtures need all tables: install pycocoevalcap or set HF_CAPTIONERS_METEOR_DIR"
            )
    return MeteorTables(FIXTURES / "meteor" / "tables", cache_dir=tmp_path_factory.mktemp("meteor"))
