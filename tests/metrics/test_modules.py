import doctest
import importlib.util
import re
from pathlib import Path

import evaluate
import pytest

from hf_captioners.metrics import compute_caption_metrics, module_path

MODULES = sorted(path.name for path in Path(module_path("bleu")).parent.iterdir() if (path / "README.md").is_file())
PREDICTIONS = ["a man riding a horse", "two dogs run on grass"]
REFERENCES = [["a man rides a horse", "a person riding"], ["two dogs run on green grass", "dogs playing", "dogs"]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Redirect the caches of `evaluate`, which it writes when it loads modules and collects inputs."""
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path))
    monkeypatch.setattr("evaluate.config.HF_EVALUATE_OFFLINE", True)


@pytest.mark.parametrize("name", ["bleu", "rouge_l", "cider_d", "cider_original"])
def test_loaded_module_gives_the_same_figures(name):
    figures = evaluate.load(module_path(name)).compute(predictions=PREDICTIONS, references=REFERENCES)
    expected = compute_caption_metrics(PREDICTIONS, REFERENCES, [name])
    assert figures == {key: expected[key] for key in expected["variants"]}


def test_options_of_modules():
    inputs = {"predictions": PREDICTIONS, "references": REFERENCES}
    bleu = evaluate.load(module_path("bleu")).compute(**inputs, brevity_penalty=False)
    assert set(bleu) == {f"bleu_{order}_no_penalty" for order in range(1, 5)}
    meteor = evaluate.load(module_path("meteor")).compute(**inputs, stages=("exact", "stem"))
    assert 0 < meteor["meteor"] < 1
    with pytest.raises(FileNotFoundError, match=r"spice-1\.0\.jar"):
        evaluate.load(module_path("spice")).compute(**inputs)


def test_in_batches():
    metric = evaluate.load(module_path("cider_d"))
    for prediction, references in zip(PREDICTIONS, REFERENCES, strict=True):
        metric.add(prediction=prediction, reference=references)
    assert metric.compute() == metric.compute(predictions=PREDICTIONS, references=REFERENCES)


def test_combined():
    combined = evaluate.combine([module_path(name) for name in ("bleu", "rouge_l", "cider_d")])
    figures = combined.compute(predictions=PREDICTIONS, references=REFERENCES)
    expected = compute_caption_metrics(PREDICTIONS, REFERENCES)
    assert figures == {key: expected[key] for key in expected["variants"]}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_documentation(name):
    file = Path(module_path(name)) / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"module_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (metric,) = [
        kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, evaluate.Metric)
    ]
    assert metric.__doc__.index(metric.about) == 0 and "tokenizer: " in metric.__doc__
    example = doctest.DocTestParser().get_doctest(metric.__doc__, {}, name, str(file), 0)
    results = doctest.DocTestRunner().run(example)
    assert results.attempted >= 5 and results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_card(name):
    card = (Path(module_path(name)) / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntitle: ")
    assert "- image-captioning" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    if name.startswith("spice"):
        compile(code, name, "exec")
        return
    scope = {}
    exec(code, scope)
    (value,) = re.findall(r"^# ([\d.]+)$", code, re.MULTILINE)
    assert value in {f"{round(figure, 4)}" for figure in scope["results"].values()}


def test_unknown_module():
    with pytest.raises(ValueError, match=r"expected one of bleu, .*Did you mean `bleu`\?"):
        module_path("blue")
