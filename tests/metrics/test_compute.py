import gzip
import json
import subprocess
import sys
import warnings

import pytest

from hf_captioners.metrics import METRICS, DocumentFrequency, Meteor, MeteorTables, compute_caption_metrics

PREDICTIONS = ["a man rides a horse.", "Two dogs run!"]
REFERENCES = [["A man riding a horse.", "a horse and a man"], ["two dogs run", "dogs"]]


def published(material, name):
    folder = material / "metrics"
    with gzip.open(folder / f"{name}.json.gz", "rt") as file:
        captions = {row["image_id"]: row["caption"] for row in json.load(file)}
    described = json.loads((folder / "PUBLISHED.json").read_text())
    about = next(one for one in described["sets"] if one["name"] == name)
    references: dict[int, list[str]] = {image: [] for image in captions}
    with gzip.open(folder / about["references"], "rt") as file:
        for row in json.load(file)["annotations"]:
            references[row["image_id"]].append(row["caption"])
    return list(captions.values()), list(references.values()), about


@pytest.mark.parity
@pytest.mark.parametrize("name", ["show_edit_tell_xe", "show_edit_tell_rl", "coco_caption_fakecap"])
def test_published_outputs_reproduce_their_published_figures(material, name):
    """From raw text, at every digit that the authors print; the demo prints three."""
    predictions, references, about = published(material, name)
    figures = compute_caption_metrics(predictions, references, ["bleu", "rouge_l", "cider"])
    names = {f"Bleu_{n}": f"bleu_{n}" for n in range(1, 5)} | {"ROUGE_L": "rouge_l", "CIDEr": "cider"}
    printed = next(iter(about["published"].values()))
    for theirs, mine in names.items():
        assert abs(figures[mine] - about["measured"][theirs]) < 1e-9, theirs
        if isinstance(printed[theirs], str):
            assert f"{figures[mine]:.3f}" == printed[theirs]
        else:
            assert abs(figures[mine] - printed[theirs]) < 1e-9


@pytest.mark.parity
def test_published_meteor(material, tables):
    predictions, references, about = published(material, "coco_caption_fakecap")
    figures = compute_caption_metrics(predictions, references, ["meteor"], tables=tables)
    assert f"{figures['meteor']:.3f}" == "0.195"
    assert abs(figures["meteor"] - about["measured"]["METEOR"]) < 1e-4


def test_what_the_result_holds():
    figures = compute_caption_metrics(PREDICTIONS, REFERENCES)
    names = ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider_d"]
    assert list(figures["variants"]) == names
    assert all(isinstance(figures[name], float) and 0 < figures[name] <= 10 for name in names)
    assert {name: len(scores) for name, scores in figures["per_image"].items()} == dict.fromkeys(names, 2)
    assert figures["tokenizer"] == "ptb"
    assert figures["document_frequency"] == "the references of this set: 2 images"
    assert json.loads(json.dumps(figures)) == figures


def test_cider_means_cider_d_and_says_so():
    figures = compute_caption_metrics(PREDICTIONS, REFERENCES, ["cider", "cider_d", "cider_original"])
    assert figures["cider"] == figures["cider_d"] != figures["cider_original"]
    assert "CIDEr-D" in figures["variants"]["cider"]


def test_bleu_without_penalty_is_higher_for_short_captions():
    figures = compute_caption_metrics(["a man", "dogs"], REFERENCES, ["bleu", "bleu_no_penalty"])
    assert figures["bleu_1_no_penalty"] > figures["bleu_1"]


def test_tokenizer_none_takes_words_as_they_are():
    figures = compute_caption_metrics(["Ein Hund.", "x"], [["Ein Hund.", "ein hund"], ["y"]], ["bleu"], "none")
    assert figures["per_image"]["bleu_1"] == pytest.approx([1.0, 0.0], abs=1e-6)
    assert compute_caption_metrics(["x."], [["x"]], ["bleu"], "none")["bleu_1"] < 1e-6


def test_given_frequencies_are_named():
    frequency = DocumentFrequency.per_image([["a man", "a horse"], ["dogs run"], ["a cat"]])
    figures = compute_caption_metrics(PREDICTIONS, REFERENCES, ["cider_d"], document_frequency=frequency)
    assert figures["document_frequency"] == "a given corpus: 3 images"


def test_meteor_names_its_stages():
    figures = compute_caption_metrics(PREDICTIONS, REFERENCES, ["meteor"], meteor=Meteor(("exact", "stem")))
    assert figures["variants"]["meteor"].endswith("stages exact, stem")


def test_one_image_warns():
    with pytest.warns(UserWarning, match="single image"):
        assert compute_caption_metrics(["a"], [["a"]])["cider_d"] == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compute_caption_metrics(PREDICTIONS, REFERENCES)
        compute_caption_metrics(["a"], [["a"]], ["bleu"])


@pytest.mark.parametrize(
    ("predictions", "references", "options", "error", "message"),
    [
        (["a"], [["a"], ["b"]], {}, ValueError, "1 predictions and 2 lists of references"),
        ([], [], {}, ValueError, "`predictions` is empty"),
        (["a"], [], {}, ValueError, "`references` is empty"),
        (["a"], [[]], {}, ValueError, r"references\[0\] is empty"),
        (["a"], ["a"], {}, TypeError, r"references\[0\] is the string 'a'"),
        ("a", [["a"]], {}, TypeError, "`predictions` is the string"),
        (["a"], "a", {}, TypeError, "`references` is the string"),
        ([1], [["a"]], {}, TypeError, r"predictions\[0\] is 1 \(int\)"),
        (["a"], [["a", None]], {}, TypeError, r"references\[0\]\[1\] is None \(NoneType\)"),
        (["a"], [["a"]], {"metrics": ["blue"]}, ValueError, "expected a list of names among bleu, "),
        (["a"], [["a"]], {"metrics": "bleu"}, ValueError, "expected a list of names"),
        (["a"], [["a"]], {"tokenizer": "moses"}, ValueError, "expected one of 'ptb', 'none'"),
    ],
)
def test_wrong_input(predictions, references, options, error, message):
    with pytest.raises(error, match=message):
        compute_caption_metrics(predictions, references, **options)


def test_meteor_without_tables_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install"):
        MeteorTables()


def test_importing_is_light():
    code = (
        "import sys; import hf_captioners.metrics as m; m.compute_caption_metrics; "
        "heavy = {'torch', 'transformers', 'datasets', 'filelock', 'tqdm'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_metric_is_documented():
    from hf_captioners.metrics import compute

    assert set(METRICS) >= {"bleu", "rouge_l", "cider_d", "cider", "cider_original", "meteor", "spice"}
    assert "`METRICS`" in compute.compute_caption_metrics.__doc__
