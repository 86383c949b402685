"""Metrics of the table and of one's own."""

import evaluate
import pytest

import hf_captioners.metrics
from hf_captioners.metrics import METRICS, Metric, Score, compute_caption_metrics, module_path
from hf_captioners.metrics.registry import RESOURCES, find_metrics, hub_names, score_titles

PREDICTIONS = ["a man rides a horse.", "Two dogs run!"]
REFERENCES = [["A man riding a horse.", "a horse and a man"], ["two dogs run", "dogs"]]
OWN = '''
def length(predictions, references):
    """Words of a caption."""
    return [len(text.split()) for text in predictions]


def shortest(predictions, references):
    assert predictions == ["a man rides a horse", "two dogs run"]
    return [min(len(text.split()) for text in texts) for texts in references]


number = 3
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module of two metrics."""
    (tmp_path / "own_metrics.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.modules", {**__import__("sys").modules})
    return tmp_path


@pytest.mark.parametrize("name", METRICS)
def test_every_entry(name):
    metric = METRICS[name]
    function = metric.load()
    assert getattr(hf_captioners.metrics, function.__name__) is function
    assert set(metric.resources) <= set(RESOURCES)
    assert metric.reward is None or metric.reward in metric.titles
    if name not in ("meteor", "spice", "support_synonyms"):  # they need tables and a program
        result = compute_caption_metrics(PREDICTIONS, REFERENCES, [name])
        assert list(result["variants"]) == list(metric.titles or [name])


def test_titles_and_names_of_the_hub():
    assert score_titles()["bleu_4_no_penalty"] == "BLEU-4 without brevity penalty"
    assert hub_names() == {**{f"bleu_{n}": "bleu" for n in range(1, 5)}, "rouge_l": "rouge", "cider_d": "cider"}


def test_every_metric_is_a_module_of_evaluate(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path))
    monkeypatch.setattr("evaluate.config.HF_EVALUATE_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    inputs = {"predictions": PREDICTIONS, "references": REFERENCES}
    for name in ("cider_d_shuffled", "bleu_no_penalty"):
        expected = compute_caption_metrics(PREDICTIONS, REFERENCES, [name])
        result = evaluate.load(module_path(name)).compute(**inputs)
        assert result == {score: expected[score] for score in expected["variants"]}
    written = tmp_path / "hf_captioners/modules/cider_d_shuffled/cider_d_shuffled.py"
    before = written.stat().st_mtime_ns
    assert module_path("cider_d_shuffled") == str(written.parent) and written.stat().st_mtime_ns == before


def test_metrics_of_the_current_folder(folder):
    result = compute_caption_metrics(
        PREDICTIONS, REFERENCES, ["rouge_l", "own_metrics:length", "own_metrics:shortest"]
    )
    assert list(result["variants"]) == ["rouge_l", "length", "shortest"]
    assert (result["length"], result["per_image"]["length"]) == (4.0, [5.0, 3.0])
    assert result["shortest"] == 3.0
    assert result["variants"]["length"] == "Words of a caption."


def test_functions():
    def both(predictions, references, document_frequency=None):
        yield Score("first", 1.0, "always 1")
        yield Score("second", 0.5, "half of the images", [0.0, 1.0])

    result = compute_caption_metrics(PREDICTIONS, REFERENCES, [both])
    assert (result["first"], result["second"]) == (1.0, 0.5)
    assert list(result["per_image"]) == ["second"]
    assert result["document_frequency"] == "the references of this set: 2 images"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cider_b", r"expected a list of names among bleu.*or module:function. Did you mean `cider_d`\?"),
        ("own_metric:length", r"no module 'own_metric'.*current folder.* Did you mean `own_metrics`\?"),
        ("own_metrics:lenght", r"no 'lenght' in .*own_metrics.py.* Did you mean `length`\?"),
        ("own_metrics:number", "is 3, expected a function"),
        ("own_metrics:", "write module:function"),
        (":length", "write module:function"),
    ],
)
def test_misspelt_names(folder, name, message):
    with pytest.raises(ValueError, match=message):
        find_metrics([name])


def test_a_module_that_lacks_another_one_says_so(folder):
    (folder / "broken_metrics.py").write_text("import package_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="package_that_is_missing"):
        find_metrics(["broken_metrics:length"])


def returning(values):
    def mine(predictions, references):
        return values

    return mine


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1.0], ValueError, "'mine' returned 1 values for 2 images"),
        ([1.0, float("nan")], ValueError, r"'mine' returned nan for image 1 \('two dogs run'\)"),
        ([1.0, None], ValueError, "'mine' returned None for image 1"),
        ([1.0, "x"], ValueError, "'mine' returned 'x' for image 1"),
        (0.5, TypeError, "'mine' returned 0.5, expected one number per image"),
        ({"a": 1}, TypeError, "expected one number per image"),
    ],
)
def test_what_a_metric_returns_is_checked(values, error, message):
    with pytest.raises(error, match=message):
        compute_caption_metrics(PREDICTIONS, REFERENCES, [returning(values)])


@pytest.mark.parametrize("name", ["cider_d", "bleu_4", "loss", "per_image"])
def test_taken_names(name):
    function = returning([1, 2])
    function.__name__ = name
    with pytest.raises(ValueError, match=f"name '{name}' .*is taken"):
        find_metrics([function])


def test_an_entry_of_ones_own(monkeypatch):
    monkeypatch.setitem(METRICS, "mine", Metric(returning([1, 3]), "always 1 and 3", titles={"mine": "My metric"}))
    result = compute_caption_metrics(PREDICTIONS, REFERENCES, ["mine"])
    assert (result["mine"], result["variants"]["mine"]) == (2.0, "always 1 and 3")
    assert score_titles()["mine"] == "My metric"
