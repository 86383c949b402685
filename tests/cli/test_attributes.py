"""`hf-captioners attributes train | detect | evaluate`, and a captioner that holds the detector."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_captioners.captioning.attributes import detection_settings, load_attribute_detector, read_attributes
from hf_captioners.cli import main
from hf_captioners.data.images import list_images
from hf_captioners.metrics.retrieved_words import mean_average_precision, word_metrics
from hf_captioners.modeling.configuration_attribute_detector import AttributeDetectorConfig
from hf_captioners.modeling.modeling_attribute_detector import AttributeDetectorModel
from hf_captioners.processing.image_reading import read_image
from hf_captioners.processing.vocabulary import attribute_labels, attribute_words
from hf_captioners.training.attribute_detector import start_from_frequencies

QUICK = ["--num_words", "12", "--num_train_epochs", "2", "--batch_size", "4", "--validation_share", "0.3", "--use_cpu"]


def run(*typed):
    return main(["attributes", *map(str, typed)])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def detector(images, vision_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    data = ["--data_dir", images, "--vision_model", vision_model, "--image_size", "32"]
    assert run("train", *data, *QUICK, "--output_dir", folder) == 0
    return folder


def test_trained_detector(detector, images, vision_model, scenes, capsys):
    """The words are the most frequent ones of the training captions; the metrics are printed and saved."""
    config = json.loads((detector / "config.json").read_text())
    assert len(config["words"]) == 12 and config["words"][0] == "a"
    metrics = json.loads((detector / "eval_results.json").read_text())
    assert 0 < metrics["eval_mean_average_precision"] <= 1
    assert {"eval_mean_average_precision_shuffled", "eval_precision_at_10_of_frequent"} <= metrics.keys()
    assert run("evaluate", "--detector", detector, "--data_dir", images, "--split", "train", "--top_k", "3") == 0
    out = capsys.readouterr().out
    assert "mean_average_precision" in out and "precision_at_3_of_frequent" in out
    assert run("train", "--data_dir", images, "--vision_model", vision_model, *QUICK, "--output_dir", detector) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_detect(detector, images, tmp_path, capsys):
    """To the terminal and to a file, also in two parts; an interrupted job resumes."""
    names = [str(path) for path in list_images(images)]
    assert run("detect", images, "--detector", detector, "--top_k", "3") == 0
    shown = [line.partition("\t") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _, _ in shown] == names
    typed = ["detect", images, "--detector", detector, "--top_k", "3", "--batch_size", "4"]
    assert run(*typed, "--output", tmp_path / "all.jsonl") == 0
    found = lines(tmp_path / "all.jsonl")
    loaded = load_attribute_detector(str(detector))
    expected = loaded.of_images([read_image(name) for name in names])
    words = np.array(loaded.model.config.words)
    for record, probabilities, (_, _, text) in zip(found, expected, shown, strict=True):
        best = np.argsort(-probabilities, kind="stable")[:3]
        assert record["attributes"] == words[best].tolist()
        assert np.allclose(record["probabilities"], probabilities[best], atol=1e-4)
        assert [pair.split(":")[0] for pair in text.split()] == record["attributes"]
    for part in ("1/2", "2/2"):
        assert run(*typed, "--shard", part, "--output", tmp_path / f"{part[0]}.jsonl") == 0
    parts = lines(tmp_path / "1.jsonl") + lines(tmp_path / "2.jsonl")
    assert sorted(record["image"] for record in parts) == names
    assert {r["image"]: r["attributes"] for r in parts} == read_attributes(tmp_path / "all.jsonl")
    rest = [json.dumps(record) for record in found]
    partial = tmp_path / "cut.jsonl.partial"
    assert run(*typed, "--output", tmp_path / "cut.jsonl") == 0
    (tmp_path / "cut.jsonl").unlink()
    capsys.readouterr()
    settings = json.dumps({"settings": detection_settings(loaded, names, shard=None, top_k=3, threshold=0.0)})
    partial.write_text("\n".join([settings, *rest[:4], rest[4][:9]]))
    assert run(*typed, "--output", tmp_path / "cut.jsonl", "--resume") == 0
    assert (tmp_path / "cut.jsonl").read_text() == (tmp_path / "all.jsonl").read_text()
    partial.write_text(settings + "\n")
    assert run(*typed, "--output", tmp_path / "cut.jsonl", "--threshold", "0.5", "--overwrite") == 0
    kept = [p for record in lines(tmp_path / "cut.jsonl") for p in record["probabilities"]]
    assert all(probability >= 0.5 for probability in kept)
    assert sum(p >= 0.5 for record in found for p in record["probabilities"]) == len(kept)


def test_stored_features(images, vision_model, tmp_path, capsys):
    """Extract once, train a detector, detect and evaluate; what does not fit together is refused."""
    extract = ["extract-features", "--data_dir", str(images), "--vision_model", vision_model, "--image_size", "32"]
    assert main([*extract, "--output", str(tmp_path / "features"), "--use_cpu"]) == 0
    stored = ["--data_dir", images, "--features", tmp_path / "features"]
    assert run("train", *stored, *QUICK, "--output_dir", tmp_path / "detector") == 0
    said = capsys.readouterr().out
    assert "12 words; training on 7 images" in said and "eval mean average precision" in said and "{" not in said
    config = json.loads((tmp_path / "detector" / "config.json").read_text())
    assert config["region_extractor"]["name"].endswith("vision_model, layer -1, own grid")
    typed = ["--features", tmp_path / "features" / "train", "--detector", tmp_path / "detector"]
    assert run("detect", *typed, "--output", tmp_path / "found.jsonl") == 0
    assert len(lines(tmp_path / "found.jsonl")) == 10
    assert run("evaluate", *stored, "--detector", tmp_path / "detector", "--split", "train") == 0
    small = "encoder_layers=1 decoder_layers=1 hidden_size=16 ffn_dim=16 num_attention_heads=2 num_attributes=3"
    short = ["--max_steps", "2", "--validation_share", "0.3", "--disable_tqdm", "true", "--min_word_count", "1"]
    short += ["--use_cpu", "--generation_num_beams", "1", "--generation_max_new_tokens", "4"]
    typed_train = ["train", "--architecture", "eta", *map(str, stored), *short, "--model_config", *small.split()]
    detects = [*typed_train, "--attribute_detector", str(tmp_path / "detector"), "--output_dir", str(tmp_path / "eta")]
    assert main(detects) == 0
    captioner = AutoModelForImageTextToText.from_pretrained(tmp_path / "eta")
    trained = load_attribute_detector(str(tmp_path / "detector")).model
    assert torch.equal(captioner.model.encoder.detector.score.weight, trained.network.score.weight)
    assert main([*typed_train, "--attributes", "oracle", "--output_dir", str(tmp_path / "oracle")]) == 0
    capsys.readouterr()
    assert main([*typed_train, "--output_dir", str(tmp_path / "blind")]) == 2
    assert "and has no detector" in capsys.readouterr().err
    others = ["train", "--architecture", "transformer", *map(str, stored), *short, "--output_dir", str(tmp_path / "n")]
    assert main([*others, "--attribute_detector", str(tmp_path / "detector")]) == 2
    assert "is not used by CaptioningTransformer" in capsys.readouterr().err
    assert main([*others, "--attributes", "oracle"]) == 2
    assert "reads no attributes" in capsys.readouterr().err
    for wrong, message in (
        (["detect", "--detector", tmp_path / "detector"], "Pass images, or `--features`"),
        (["detect", images, "--detector", tmp_path / "detector"], "has no vision model: it was trained on stored"),
        (["detect", *typed, "--top_k", "0"], "`--top_k` is 0"),
        (["detect", *typed, "--output", "x.csv"], "expected a name that ends with .jsonl"),
        (["detect", *typed[:2], "--detector", vision_model], "expected an attribute detector. Train one"),
        (["detect", *typed, "--shard", "3/2"], "`--shard` is '3/2'"),
        (["train", *stored, "--vision_model", "x", "--output_dir", tmp_path / "y"], "exclude each other"),
        (["train", "--data_dir", images, *QUICK, "--output_dir", tmp_path / "y"], "`--vision_model` is missing"),
        (["train", *stored, *QUICK, "--num_words", "0", "--output_dir", tmp_path / "z"], "`--num_words` is 0"),
        (["evaluate", *stored, "--detector", tmp_path / "detector"], "--split validation --output"),
        (
            ["evaluate", "--data_dir", images, "--detector", tmp_path / "detector", "--split", "train"],
            "pass `--features`",
        ),
    ):
        assert run(*wrong) == 2, wrong
        assert message in capsys.readouterr().err


def test_commands_of_the_documentation(images, vision_model, tmp_path, monkeypatch, capsys):
    """docs/attributes.md, with a small vision model."""
    page = (Path(__file__).parents[2] / "docs" / "attributes.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation"):
        shutil.copytree(images, tmp_path / "my_images" / split)
    block, fields = (
        re.search(r"```bash\n(.*?)```", page, re.DOTALL)[1],
        re.search(r"```json\n(.*?)```", page, re.DOTALL)[1],
    )
    commands = [shlex.split(line)[1:] for line in block.replace("timm:resnet50.a1_in1k", vision_model).splitlines()]
    assert len(commands) == 4
    for typed in commands:
        assert main([*typed, *(["--num_train_epochs", "1", "--use_cpu"] if "train" in typed else [])]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert lines(tmp_path / "attributes.jsonl")[0].keys() == json.loads(fields).keys()


def test_words_of_captions():
    captions = ["A dog's ball.", "a dog runs", "a cat"]
    assert attribute_words(captions, 2) == ["a", "ball"]  # the most frequent, then by the alphabet
    words = ["a", "dog", "dogs", "tree"]
    assert attribute_labels([captions[:1], captions[1:]], words).tolist() == [
        [True, False, True, False],
        [True, True, False, False],
    ]


def test_metrics_of_words():
    """By hand; equal scores share their precision; a word that no image has does not count."""
    scores = np.array([[0.9, 0.5, 0.1], [0.8, 0.5, 0.1], [0.1, 0.5, 0.1]])
    labels = np.array([[True, True, False], [False, False, False], [True, False, False]])
    assert mean_average_precision(scores, labels) == pytest.approx(((1 + 2 / 3) / 2 + 1 / 3) / 2)
    metrics = word_metrics(scores, labels, 1)
    assert metrics["precision_at_1"] == pytest.approx(1 / 3)
    assert metrics["precision_at_1_of_frequent"] == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="No caption has one of the words"):
        mean_average_precision(scores, np.zeros_like(labels))
    with pytest.raises(ValueError, match="differ, expected both"):
        mean_average_precision(scores[:2], labels)


@pytest.mark.parametrize(
    "line", ["nonsense", '{"image": 3, "attributes": []}', '{"image": "a.png", "attributes": "dog"}', "[1]"]
)
def test_damaged_files_of_attributes(tmp_path, line):
    path = tmp_path / "found.jsonl"
    path.write_text('{"image": "a.png", "attributes": ["dog"]}\n' + line + "\n")
    with pytest.raises(ValueError, match="line 2 is .*expected .*attributes detect"):
        read_attributes(path)


def test_probabilities_start_at_frequencies():
    """Noisy-OR over many regions begins near the share of images that have a word."""
    detector = AttributeDetectorModel(AttributeDetectorConfig(words=["a", "b"], region_feature_size=4)).eval()
    labels = np.array([[True, False], [True, True], [True, False], [False, False]])
    start_from_frequencies(detector, labels, regions=9)
    found = detector(region_features=torch.zeros(1, 9, 4)).probabilities
    assert torch.allclose(found, torch.tensor([[0.75, 0.25]]), atol=1e-5)
