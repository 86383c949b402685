"""The page of results holds what the committed figures say."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_is_made_of_the_committed_figures():
    spec = importlib.util.spec_from_file_location("write_results", ROOT / "benchmarks" / "write_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/write_results.py"
    assert page.count("## Flickr8k: ") >= 1
