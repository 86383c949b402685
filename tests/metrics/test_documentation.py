import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    scope = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), scope)
    assert len(blocks) >= 5
    assert "METEOR 1.5, English, stages exact, stem" in capsys.readouterr().out


def test_every_metric_is_in_the_table():
    from hf_captioners.metrics import METRICS

    text = DOCUMENT.read_text(encoding="utf-8")
    assert not [name for name in METRICS if f"`{name}`" not in text]
