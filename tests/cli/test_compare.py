"""`evaluate A DATA --against B`: captioners compared on the same images."""

import json
import re
import shutil
from functools import partial

import pytest

from hf_captioners.captioning.comparison import MIN_IMAGES, Comparison, System
from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.data.held_out import HeldOut
from hf_captioners.data.training_images import TrainingImages
from hf_captioners.metrics.caption_files import MatchedCaptions
from tests.directions import directions
from tests.tiny_families import write_family

SHORT = ["--max_new_tokens", "4", "--num_beams", "1", "--device", "cpu", "--split", "train"]


@pytest.fixture(scope="module")
def other(once_a_run):
    return str(once_a_run("family_florence2", partial(write_family, model_type="florence2")))


def compare(*arguments):
    return main(["evaluate", *map(str, arguments), *SHORT])


def test_a_captioner_another_family_and_a_file(captioner, other, images, tmp_path, capsys):
    rows = [json.loads(line) for line in (images / "metadata.jsonl").read_text().splitlines()]
    texts = tmp_path / "captions.jsonl"
    perfect = [{"image": row["file_name"], "caption": row["captions"][0]} for row in rows]
    texts.write_text("\n".join(map(json.dumps, perfect)))
    output, page = tmp_path / "figures.json", tmp_path / "page.html"
    options = ["--against", other, "--against", texts, "--output", output, "--page", page]
    assert compare(captioner, images, *options, "--instruction", "<CAPTION>") == 0, capsys.readouterr().err
    printed, figures = capsys.readouterr().out, json.loads(output.read_text())
    assert [system["name"] for system in figures["systems"]] == [captioner, other, str(texts)]
    assert figures["images"] == len(rows) == 10
    first, second, third = figures["systems"]
    assert "instruction" not in first and second["instruction"] == "<CAPTION>" and second["unverified"] is False
    assert first["cpu_seconds"] > 0 and "cpu_seconds" not in third
    assert third["cider_d"] > 1 > first["cider_d"] and third["distinct"] > 0.5
    assert main(["evaluate", captioner, str(images), *SHORT, "--output", str(tmp_path / "alone.json")]) == 0
    assert json.loads((tmp_path / "alone.json").read_text())["cider_d"] == first["cider_d"]
    (_, against_file) = figures["comparisons"]
    difference = against_file["metrics"]["cider_d"]["difference"]
    assert difference == pytest.approx(first["cider_d"] - third["cider_d"], abs=1e-6)
    assert set(against_file["metrics"]["cider_d"]) == {"difference", "low", "high"}, "10 images are too few"
    assert not figures["verdict"] and "10 images are too few for a verdict" in printed
    assert "significant" not in printed and "which of these images it was trained on is not known" in printed
    text = page.read_text()
    shown = re.findall(r"<h2>(.*?)</h2>", text)
    assert sorted(shown) == sorted(row["file_name"] for row in rows)
    assert text.count("data:image/jpeg;base64,") == 10 and "too few images for a verdict" in text
    sides = directions(text)
    assert all(sides[caption] == {"auto"} for row in rows for caption in row["captions"]), "Arabic too"
    assert "http" not in text.replace("http-equiv", "")


def test_images_of_training_are_left_out(captioner, images, tmp_path, capsys):
    trained = tmp_path / "trained"
    shutil.copytree(captioner, trained)
    rows = [json.loads(line) for line in (images / "metadata.jsonl").read_text().splitlines()]
    names = [row["file_name"] for row in rows][:4]
    (trained / "held_out.json").write_text(json.dumps({"image_ids": names, "seed": 0}))
    output = tmp_path / "figures.json"
    assert compare(captioner, images, "--against", trained, "--output", output) == 0, capsys.readouterr().err
    figures = json.loads(output.read_text())
    assert figures["images"] == 4
    assert [system["trained_on"] for system in figures["systems"]] == [
        "unknown",
        "trained on 6 more images, which are left out",
    ]
    assert figures["comparisons"][0]["metrics"]["cider_d"]["difference"] == 0


def test_images_that_came_since_a_captioner_was_trained_count(captioner, images, tmp_path, capsys):
    """They are in neither list of an older captioner; files that it was trained on are known by their content."""
    old, new, data = tmp_path / "old", tmp_path / "new", tmp_path / "data"
    for folder in (old, new):
        shutil.copytree(captioner, folder)
    shutil.copytree(images, data)
    rows = load_captions("caption_folder", data_dir=str(images))["train"]
    names = list(rows["image_id"])
    TrainingImages.of(rows.select(range(4))).save(old)  # of images 0 to 5; the others came later
    HeldOut(names[4:6], 1).save(old)
    TrainingImages.of(rows.select([4, 6])).union_with(old).save(new)
    HeldOut([names[place] for place in (3, 5, 7, 8, 9)], 2).save(new)
    (data / names[9]).write_bytes((data / names[0]).read_bytes())  # a copy of an image of the old training
    output = tmp_path / "figures.json"
    arguments = [
        "evaluate",
        str(new),
        str(data),
        "--against",
        str(old),
        "--split",
        "held_out",
        "--output",
        str(output),
    ]
    assert main([*arguments, "--max_new_tokens", "4", "--num_beams", "1", "--device", "cpu"]) == 0
    figures = json.loads(output.read_text())
    assert figures["images"] == 3, "of five held-out images one, and a copy of one, were in the old training"
    told = "trained on 2 more images, which are left out"
    assert [system["trained_on"] for system in figures["systems"]] == [told, told]
    (old / "training_images.json").write_text('{"images": [["a.png", 3]]}')
    assert main(arguments) == 2
    assert f"{old}/training_images.json is damaged" in capsys.readouterr().err


def test_ensembles_and_errors(captioner, images, tmp_path, capsys):
    second = tmp_path / "second"
    shutil.copytree(captioner, second)
    assert compare(captioner, images, "--against", f"{captioner}+{second}", "--metrics", "bleu") == 0
    assert f"{captioner}+{second}" in capsys.readouterr().out
    for arguments, message in (
        (["--page", "page.html"], "give `--against`"),
        (["--against", captioner], "which is compared already"),
        (["--against", "no_such"], "no_such"),
        (["--against", str(second), "--per_image", str(tmp_path / "each.jsonl")], "leave out `--per_image`"),
        (["--against", str(second), "--earlier_scores", __file__], "is about one captioner"),
    ):
        assert compare(captioner, images, *arguments) == 2
        assert message in capsys.readouterr().err


def systems(count):
    """Two systems: one is right about every image, the other one about none."""
    images = [f"{place}.png" for place in range(count)]
    references = [[f"a dog number {place} runs on grass"] for place in range(count)]
    right, wrong = [texts[0] for texts in references], ["two red chairs in a room"] * count
    return [
        System(name, MatchedCaptions(images, texts, references, [], []), "unknown")
        for name, texts in (("A", right), ("B", wrong))
    ]


@pytest.mark.parametrize("count", [MIN_IMAGES - 1, MIN_IMAGES])
def test_a_verdict_needs_images(count):
    comparison = Comparison(systems(count))
    (result,) = comparison.figures["comparisons"]
    assert result["metrics"]["cider_d"]["difference"] > 1
    assert ("significant" in result["metrics"]["cider_d"]) == (count >= MIN_IMAGES)


def test_the_most_different_come_first():
    first, second = systems(3)
    second.matched.predictions[0] = first.matched.predictions[0]
    assert Comparison([first, second]).most_different()[-1] == 0
