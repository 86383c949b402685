import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_captioners.cli import main
from hf_captioners.metrics import DocumentFrequency, compute_caption_metrics

PREDICTIONS = {"1": "a man rides a horse.", "2": "two dogs run", "3": "a red bus"}
REFERENCES = {"1": ["A man riding a horse"], "2": ["two dogs run", "dogs"], "3": ["a bus on a road", "red bus"]}


@pytest.fixture
def files(tmp_path):
    """COCO results and annotations."""
    predictions, references = tmp_path / "predictions.json", tmp_path / "references.json"
    predictions.write_text(json.dumps([{"image_id": int(key), "caption": text} for key, text in PREDICTIONS.items()]))
    annotations = [
        {"id": number, "image_id": int(key), "caption": text}
        for number, (key, text) in enumerate((key, text) for key, texts in REFERENCES.items() for text in texts)
    ]
    references.write_text(json.dumps({"images": [], "annotations": annotations}))
    return predictions, references


def score(*arguments):
    return main(["score", *map(str, arguments)])


def test_table(files, capsys):
    assert score(*files) == 0
    out, err = capsys.readouterr()
    expected = compute_caption_metrics(list(PREDICTIONS.values()), list(REFERENCES.values()))
    for name in expected["variants"]:
        assert any(line.split()[:2] == [name, f"{expected[name]:.4f}"] for line in out.splitlines()), name
    assert "3 images, tokenizer ptb" in out
    assert "the references of this set: 3 images" in out
    assert not err


def test_json_and_files(files, capsys, tmp_path):
    arguments = ("--format", "json", "--output", tmp_path / "all.json", "--per_image", tmp_path / "each.jsonl")
    assert score(*files, *arguments, "--metrics", "cider_d", "rouge_l") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures == json.loads((tmp_path / "all.json").read_text())
    assert figures["images"] == 3 and figures["missing"] == figures["extra"] == []
    rows = [json.loads(line) for line in (tmp_path / "each.jsonl").read_text().splitlines()]
    assert [row["image_id"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["references"] == ["A man riding a horse"]
    assert sum(row["cider_d"] for row in rows) / 3 == pytest.approx(figures["cider_d"])


def test_shuffled_control(files, capsys):
    predictions, references = list(PREDICTIONS.values()), list(REFERENCES.values())
    expected = compute_caption_metrics(predictions, references, ["cider_d_shuffled"])
    for asked in (["rouge_l"], ["rouge_l", "cider_d_shuffled"]):
        assert score(*files, "--metrics", *asked, "--shuffled_control", "--format", "json") == 0
        figures = json.loads(capsys.readouterr().out)
        assert list(figures["variants"]) == ["rouge_l", "cider_d_shuffled"]
        assert figures["cider_d_shuffled"] == expected["cider_d_shuffled"] < 0.1


def test_images_of_one_file_only_are_reported(files, capsys):
    predictions, references = files
    predictions.write_text(json.dumps([{"image_id": 1, "caption": "a man"}, {"image_id": 9, "caption": "a"}]))
    assert score(predictions, references, "--metrics", "bleu") == 1
    err = capsys.readouterr().err
    assert "2 image(s) have no prediction: 2, 3" in err
    assert "1 image(s) have no references: 9" in err


def test_baseline(files, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"image_id": key, "caption": "a cat"}) + "\n" for key in REFERENCES))
    assert score(*files, "--baseline", other) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.split("against the baseline")[1].splitlines() if line.startswith("cider_d")]
    assert "significant" in line
    assert score(files[0], files[1], "--baseline", files[0]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cider_d  ") and "p =" in line]
    assert "+0.0000" in line and "p = 1.0000: not significant" in line


def test_earlier_scores_of_the_same_settings(files, tmp_path, capsys):
    earlier = tmp_path / "earlier.json"
    assert score(*files, "--output", earlier) == 0
    before = json.loads(earlier.read_text())
    files[0].write_text(files[0].read_text().replace("two dogs run", "two cats"))
    capsys.readouterr()
    assert score(*files, "--earlier_scores", earlier, "--format", "json") == 0
    out, err = capsys.readouterr()
    assert not err
    now = json.loads(out)
    assert now["since_earlier"]["cider_d"] == now["cider_d"] - before["cider_d"] < 0
    assert score(*files, "--earlier_scores", earlier) == 0
    assert f"{now['since_earlier']['rouge_l']:+.4f}" in capsys.readouterr().out.split("earlier scores:")[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tokenizer", "none"), "tokenizer: ptb, earlier none"),
        (("--meteor_stages", "exact", "--metrics", "meteor"), "meteor: "),
        (
            ("--document_frequency", "df.npz"),
            "of this set: 3 images, earlier a given corpus",
        ),
    ],
)
def test_earlier_scores_of_other_settings_are_told(files, tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    DocumentFrequency.per_image(list(REFERENCES.values())).save("df.npz")
    assert score(*files, *arguments, "--output", "earlier.json") == 0
    metrics = ["--metrics", "meteor", "--meteor_stages", "exact", "stem"] if "meteor" in arguments else []
    assert score(*files, *metrics, "--earlier_scores", "earlier.json") == 0
    err = capsys.readouterr().err
    assert "cannot be compared" in err and told in err


def test_earlier_scores_of_a_named_pipe_are_refused_at_once(files, tmp_path, capsys):
    os.mkfifo(tmp_path / "earlier.json")
    assert score(*files, "--earlier_scores", tmp_path / "earlier.json") == 2
    assert "earlier.json" in capsys.readouterr().err


def test_a_metric_that_was_undefined_has_no_difference(files, tmp_path, capsys):
    earlier = tmp_path / "earlier.json"
    assert score(*files, "--output", earlier) == 0
    earlier.write_text(json.dumps(json.loads(earlier.read_text()) | {"rouge_l": None}))
    capsys.readouterr()
    assert score(*files, "--earlier_scores", earlier, "--format", "json") == 0
    assert (
        "rouge_l" not in (differences := json.loads(capsys.readouterr().out)["since_earlier"])
        and "bleu_1" in differences
    )


def test_fewer_references_than_earlier_are_told(files, capsys, tmp_path):
    assert score(*files, "--output", tmp_path / "earlier.json") == 0
    content = json.loads(files[1].read_text())
    content["annotations"].pop()
    files[1].write_text(json.dumps(content))
    assert score(*files, "--earlier_scores", tmp_path / "earlier.json") == 0
    assert "reference_captions: 4, earlier 5" in capsys.readouterr().err


def test_only_images_of_both_systems_are_compared(files, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text('{"image_id": 1, "caption": "a cat"}\n{"image_id": 2, "caption": "dogs"}\n')
    assert score(*files, "--baseline", other, "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["images"] == 2


def test_saved_frequencies(files, tmp_path, capsys):
    DocumentFrequency.per_image(list(REFERENCES.values())).save(tmp_path / "df.npz")
    assert score(*files, "--document_frequency", tmp_path / "df.npz", "--metrics", "cider_d") == 0
    assert "a given corpus: 3 images" in capsys.readouterr().out


def test_meteor_without_tables(files, capsys):
    assert score(*files, "--metrics", "meteor", "--meteor_stages", "exact", "stem") == 0
    assert "stages exact, stem" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metrics", "blue"), "expected a list of names among"),
        (("--metrics", "spice"), "pass spice=OriginalSpice"),
        (("--baseline", "none.json"), "there is no file or folder none.json"),
        (("--document_frequency", "none.npz"), "none.npz"),
        (("--earlier_scores", "none.json"), "there is no file or folder none.json"),
        (("--earlier_scores", __file__), "is not JSON"),
        (("--earlier_scores", "."), "."),
        (("--earlier_scores", str(Path(__file__).parents[2] / "release" / "public_api.json")), "holds no metrics"),
    ],
)
def test_errors(files, capsys, arguments, message):
    assert score(*files, *arguments) == 2
    assert message in capsys.readouterr().err


def test_as_a_person_types_it_and_without_heavy_imports(files):
    code = (
        "import sys; from hf_captioners.cli import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "score", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": ""})
    assert "cider_d" in done.stdout
