"""`hf-captioners evaluate`: the same figures as captioning and scoring one after the other."""

import json

import pytest

from hf_captioners.cli import main
from hf_captioners.loading import load_captioner
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

from .dataset_folders import iu_xray, nocaps


def evaluate(*arguments):
    return main(["evaluate", *map(str, arguments)])


@pytest.fixture
def options(captioner, images, tmp_path):
    return captioner, images, "--split", "train", "--device", "cpu", "--output", tmp_path / "figures.json"


def test_as_caption_and_score(options, captioner, images, tmp_path, capsys):
    each = tmp_path / "each.jsonl"
    assert evaluate(*options, "--batch_size", "3", "--per_image", each) == 0
    captions = tmp_path / "captions.jsonl"
    arguments = ("--model", captioner, "--device", "cpu", "--output", str(captions))
    assert main(["caption", str(images), *arguments]) == 0
    assert main(["score", str(captions), str(images), "--output", str(tmp_path / "scored.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures == json.loads((tmp_path / "scored.json").read_text())
    assert figures["images"] == 10
    assert len(each.read_text().splitlines()) == 10
    assert "cider_d" in capsys.readouterr().out


def test_some_images_and_generation_options(options, tmp_path, capsys):
    assert evaluate(*options, "--max_images", "4", "--num_beams", "1", "--max_new_tokens", "2") == 0
    assert json.loads((tmp_path / "figures.json").read_text())["images"] == 4
    assert "only the first 4 of 10 images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--split", "test"), "test"),
        (("--metrics", "blue"), "expected a list of names among"),
    ],
)
def test_errors(options, capsys, arguments, message):
    assert evaluate(*options, *arguments) == 2
    assert message in capsys.readouterr().err


def test_unknown_data_set(captioner, capsys):
    assert evaluate(captioner, "no_such_data") == 2
    assert "no_such_data" in capsys.readouterr().err


def test_studies_of_several_views(captioner, scenes, tmp_path, monkeypatch):
    """Every study gets one caption, that of the pipeline for both of its views."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "studies").mkdir()
    options = iu_xray(tmp_path / "studies", [scenes[number] for number in range(6)])
    typed = ["--data_dir", tmp_path / "studies", "--split", "validation", "--data_options", *options]
    each = tmp_path / "each.jsonl"
    assert evaluate(captioner, "iu_xray", *typed, "--batch_size", 2, "--device", "cpu", "--per_image", each) == 0
    pipe = ImageCaptioningPipeline(*load_captioner(captioner), device="cpu")
    views = [[scenes[number]["image"], scenes[(number + 1) % 6]["image"]] for number in (4, 5)]
    expected = [records[0]["generated_text"] for records in pipe(views)]
    records = [json.loads(line) for line in each.read_text().splitlines()]
    assert [record["caption"] for record in records] == expected


def test_domains_of_nocaps(captioner, scenes, tmp_path, monkeypatch, capsys):
    """Each domain has the figures of its captions alone, with its own document frequencies."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    nocaps(tmp_path, [scenes[number] for number in range(6)])
    figures, each = tmp_path / "figures.json", tmp_path / "each.jsonl"
    typed = ["--data_dir", tmp_path, "--split", "validation", "--device", "cpu"]
    assert evaluate(captioner, "nocaps", *typed, "--output", figures, "--per_image", each) == 0
    printed, stored = capsys.readouterr().out, json.loads(figures.read_text())
    records = [json.loads(line) for line in each.read_text().splitlines()]
    assert stored["images"] == 6
    assert list(stored["groups"]) == ["in-domain", "near-domain", "out-domain"]
    for place, (domain, scores) in enumerate(stored["groups"].items()):
        part = [record for record in records if int(record["image_id"]) % 3 == place]
        alone = compute_caption_metrics([r["caption"] for r in part], [r["references"] for r in part])
        assert scores == {"images": 2, **{name: alone[name] for name in stored["variants"]}}
        assert f"{domain}, 2 images:" in printed


def test_stored_features(options, captioner, images, vision_model, tmp_path, capsys):
    """Features of the captioner's own vision model give the captions of the images."""
    stored = tmp_path / "features"
    typed = ["--data_dir", images, "--vision_model", vision_model, "--image_size", 32, "--output", stored]
    assert main(["extract-features", *map(str, typed), "--kind", "float32", "--use_cpu"]) == 0
    from_images, from_features = tmp_path / "images.jsonl", tmp_path / "features.jsonl"
    assert evaluate(*options, "--per_image", from_images) == 0
    assert evaluate(*options, "--per_image", from_features, "--features", stored) == 0
    assert from_features.read_text() == from_images.read_text()
    assert evaluate(*options, "--features", tmp_path / "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err
