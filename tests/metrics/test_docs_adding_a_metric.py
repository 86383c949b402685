"""The page about adding a metric, followed step by step."""

import json
import re
import sys
from pathlib import Path

import evaluate
import pytest

import hf_captioners.metrics
from hf_captioners.cli import main
from hf_captioners.hub.cards import figure_name
from hf_captioners.metrics import METRICS, Metric, compute_caption_metrics, module_path
from hf_captioners.training.arguments import CaptioningTrainingArguments

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_metric.md").read_text(encoding="utf-8")
FILE, IN_PYTHON, ENTRY = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / FILE.split()[1]).write_text(FILE)
    (tmp_path / "captions.jsonl").write_text(json.dumps({"image_id": "1", "caption": "A dog runs."}) + "\n")
    annotations = [
        {"id": 1, "image_id": 1, "caption": "a brown dog runs"},
        {"id": 2, "image_id": 1, "caption": "dogs"},
    ]
    (tmp_path / "references.json").write_text(json.dumps({"images": [], "annotations": annotations}))
    yield tmp_path
    sys.modules.pop("my_metrics", None)


def test_a_metric_of_ones_own(folder, capsys):
    (score, _) = re.findall(r"^hf-captioners (.*)$", re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1], re.MULTILINE)
    assert main([*score.split(), "--format", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["word_recall"] == pytest.approx(3 / 5)
    assert figures["variants"]["word_recall"] == "Share of the words of all references that the caption contains."
    exec(IN_PYTHON, {})
    assert capsys.readouterr().out.split()[0] == f"{3 / 7}"
    training = {"eval_metrics": ["my_metrics:word_recall"], "metric_for_best_model": "word_recall", "use_cpu": True}
    assert CaptioningTrainingArguments(str(folder), **training).best_metric_key == "eval_word_recall"
    assert main(["score", "captions.jsonl", "references.json", "--metrics", "my_metrics:word_recal"]) == 2
    assert "Did you mean `word_recall`?" in capsys.readouterr().err


def test_a_metric_of_the_library(folder, monkeypatch, capsys):
    from hf_captioners.training.rewards import named_reward

    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(folder))
    monkeypatch.setattr(hf_captioners.metrics, "__path__", [*hf_captioners.metrics.__path__, str(folder)])
    (folder / "word_recall.py").write_text(FILE.replace("def word_recall", "def share_of_words"))
    monkeypatch.setitem(METRICS, "recall", None)  # what the page's line assigns is taken away after the test
    exec(ENTRY, {"METRICS": METRICS, "Metric": Metric})
    from hf_captioners.metrics import share_of_words

    texts = ["a dog runs"], [["a brown dog runs", "dogs"]]
    assert share_of_words(*texts) == [3 / 5]
    assert compute_caption_metrics(*texts, ["recall"])["recall"] == 3 / 5
    assert main(["score", "captions.jsonl", "references.json", "--metrics", "recall"]) == 0
    assert "recall" in capsys.readouterr().out
    assert figure_name("recall") == "word recall"
    result = evaluate.load(module_path("recall")).compute(predictions=texts[0], references=texts[1])
    assert result == {"recall": 3 / 5}
    assert named_reward("recall")(completions=texts[0], references=texts[1]) == [3 / 5]
    sys.modules.pop("hf_captioners.metrics.word_recall")
