"""docs/results.md matches the committed result files."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_is_written_from_the_committed_results():
    spec = importlib.util.spec_from_file_location("write_results", ROOT / "benchmarks" / "write_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert module.page() == page, "run python benchmarks/write_results.py"
    assert page.count("## Flickr8k: ") >= 1
