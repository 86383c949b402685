"""The commands and the code of docs/confidence.md work as printed."""

import re
import shlex
from pathlib import Path

import pytest

from hf_captioners.cli import main
from hf_captioners.default_model import default_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "confidence.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    pytest.importorskip("hf_captioners_default", reason="the default captioner is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.chdir(ROOT)


def test_the_first_command_prints_what_the_page_says(capsys):
    command, printed = re.search(r"```bash\n(.*?)```.*?```text\n(.*?)```", PAGE, flags=re.DOTALL).groups()
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == printed


def test_the_code_prints_what_its_comment_says(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "confidence.md", "exec"), {})
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()


def test_the_default_captioner_is_calibrated_on_the_rows_that_the_page_names():
    from hf_captioners.confidence.calibration import Calibration

    calibration = Calibration.load(Path(default_model().folder))
    assert (calibration.data["split"], calibration.data["rows"]) == ("validation", "even")
    assert calibration.data["images"] == 500 and "500 even rows" in PAGE
