"""Names that are mistyped are refused at once: one line, the nearest name, and nothing heavy imported."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from .misspellings import LIBRARY, MISSPELT

SECONDS = 2.0  # of CPU; what only a library or a device can tell may take longer
SECONDS_OF_LIBRARIES = 6.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory, images, language_model, vision_model, captioner):
    """A folder in which what the list names exists."""
    folder = tmp_path_factory.mktemp("place")
    for name, target in {
        "my_images": images,
        "my_gpt2": language_model,
        "my_vit": vision_model,
        "my_detector": vision_model,
        "my_captioner": captioner,
    }.items():
        (folder / name).symlink_to(target)
    Image.new("RGB", (32, 32), "red").save(folder / "photo.jpg")
    for name in ("predictions", "references"):
        (folder / f"{name}.jsonl").write_text('{"image_id": "a", "captions": ["a dog"]}\n')
    parts = "train_dir: my_images\nlanguage_model: my_gpt2\nvision_model: my_vit\n"
    (folder / "recipe.yaml").write_text(parts)
    (folder / "wrong_key.yaml").write_text("train_dir: my_images\n\nlearning_rat: 1e-4\n")
    (folder / "wrong_value.yaml").write_text("train_dir: my_images\nnum_train_epochs: many\n")
    (folder / "wrong_field.yaml").write_text(parts + "model_config:\n  srau_treshold: 0.3\n")
    return folder


@pytest.fixture(scope="module")
def results(place):
    """What happened with each of the list, in one cold process."""
    own = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "tests/cli/misspellings.py")]
    done = subprocess.run(command, cwd=place, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("number", range(len(MISSPELT)), ids=[" ".join(one) for one, _ in MISSPELT])
def test_a_mistake_is_told_at_once(results, number):
    (_, said), result = MISSPELT[number], results[number]
    assert result["status"] == 2, result
    assert said in result["err"], result["err"]
    assert result["err"].count("\n") == 1 and not result["out"], result
    assert len(result["err"]) < 500, result["err"]
    assert not result["imported"], result
    assert result["seconds"] < SECONDS - 0.5, result  # of which the interpreter takes some


@pytest.mark.parametrize("number", range(len(LIBRARY)), ids=[" ".join(one) for one, _ in LIBRARY])
def test_a_mistake_is_told_by_the_library(results, number):
    (_, said), result = LIBRARY[number], results[len(MISSPELT) + number]
    assert result["status"] == 2, result
    assert said in result["err"], result["err"]
    assert result["err"].count("\n") == 1 and not result["out"], result


def test_there_are_enough():
    commands = {one[0] for one, _ in MISSPELT}
    assert len(MISSPELT) >= 60
    assert {"train", "caption", "evaluate", "score", "explain", "check-data", "extract-features"} < commands
    assert {"attributes", "push", "convert", "reproduce", "download-images", "demo"} < commands


@pytest.mark.parametrize(
    ("arguments", "said", "limit"),
    [
        (["train", "--train_dir", "my_image"], "`my_images`", SECONDS),
        (["caption", "photo.jpg", "--modle", "my_captioner"], "`--model`", SECONDS),
        (
            ["caption", "photo.jpg", "--model", "my_captioner", "--device", "cuda:0"],
            "--device cpu",
            SECONDS_OF_LIBRARIES,
        ),
    ],
)
def test_cpu_seconds_of_a_person_s_process(place, arguments, said, limit):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "hf_captioners.cli", *arguments]
    own = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=place, env=own, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "cuda" in str(arguments) and done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < limit
