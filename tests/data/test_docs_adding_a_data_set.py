"""The page about adding a data set, followed step by step."""

import importlib
import re
import sys
from pathlib import Path

import datasets
import pytest

import hf_captioners.data
from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.data.loading import READERS
from hf_captioners.data.report import DataReport

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_data_set.md").read_text(encoding="utf-8")
READER, ROW, USE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def market(tmp_path, monkeypatch, image):
    """The folder of the page, its reader as a module of the package, and its row of the table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("apple", "pear", "plum"):
        image(tmp_path / "market" / "photos" / f"{name}.jpg")
    train = "apple.jpg\tstall 4\tA red apple.\npear.jpg\tstall 5\tTwo pears.\napple.jpg\tstall 4\tAn apple.\n"
    (tmp_path / "market" / "train.tsv").write_text(train)
    (tmp_path / "market" / "validation.tsv").write_text("plum.jpg\tstall 6\tPlums.\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "market.py").write_text(READER)
    monkeypatch.setattr(hf_captioners.data, "__path__", [*hf_captioners.data.__path__, str(tmp_path / "code")])
    monkeypatch.setitem(READERS, "market", ("", ""))  # what the page's line assigns is taken away after the test
    importlib.invalidate_caches()
    exec(ROW, {"READERS": READERS})
    yield tmp_path / "market"
    sys.modules.pop("hf_captioners.data.market", None)


def test_the_page(market, capsys):
    (command,) = re.findall(r"```bash\nhf-captioners (.*?)\n```", PAGE, re.DOTALL)
    assert main(command.split()) == 0
    assert "3" in capsys.readouterr().out
    names = {}
    exec(USE, names)
    assert "['A red apple.', 'An apple.'] stall 4" in capsys.readouterr().out
    assert names["images"]["validation"]["captions"] == [["Plums."]]
    assert names["images"]["train"][0]["image"].size == (24, 16)
    stream = list(names["stream"])
    assert [row["image_id"] for row in stream] == ["apple.jpg", "pear.jpg"] and "stall" not in stream[0]


def test_bad_rows_and_options(market, capsys):
    with open(market / "train.tsv", "a") as file:
        file.write("pear.jpg\tTwo pears.\nlost.jpg\tstall 1\tA lost one.\n")
    report = DataReport()
    load_captions("market", data_dir="market", report=report)
    problems = [(Path(one.file).name, one.line, one.kind.value) for one in report.problems]
    assert problems == [("train.tsv", 4, "malformed row"), ("train.tsv", 5, "missing image")]
    assert main(["check-data", "market", "--dataset", "market"]) == 1
    with pytest.raises(ValueError, match=r"has no option with_stal; .* Did you mean `with_stall`"):
        load_captions("market", data_dir="market", with_stal=True)
    with pytest.raises(ValueError, match=r"There is no data set 'markt'.* Did you mean `market`"):
        load_captions("markt")
