"""Names that are mistyped are refused in one line with the nearest name, at once or before images are read."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from .misspellings import FAST, LIBRARY, MISSPELT

# Times the CPU seconds of importing training.
MAX_SHARE_WITHOUT_TORCH = 0.25
MAX_SHARE_OF_IMPORT = 1.3
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
    """Outcome of each case of the list, in one cold process."""
    own = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "tests/cli/misspellings.py")]
    done = subprocess.run(command, cwd=place, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("number", range(len(MISSPELT)), ids=[" ".join(one) for one, _ in MISSPELT])
def test_a_mistake_is_told_before_images_are_read(results, number):
    (_, said), result = MISSPELT[number], results[number]
    assert result["status"] == 2, result
    assert said in result["err"], result["err"]
    assert result["err"].count("\n") == 1 and not result["out"], result
    assert len(result["err"]) < 500, result["err"]
    if number < len(FAST):
        assert not result["imported"], result
    else:
        assert result["images"] == 0, result


def test_every_command_has_a_mistake():
    commands = {one[0] for one, _ in MISSPELT}
    assert {"train", "caption", "evaluate", "score", "explain", "check-data", "extract-features"} < commands
    assert {"attributes", "push", "convert", "reproduce", "download-images", "demo"} < commands


def cpu_seconds(place, *command):
    """Run a command in a process of its own, and return it with its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *command], cwd=place, env=own, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_device_that_is_not_there(place):
    typed = ["caption", "photo.jpg", "--model", "my_captioner", "--device", "cuda:0"]
    done, _ = cpu_seconds(place, "-m", "hf_captioners.cli", *typed)
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 2 and "--device cpu" in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def seconds_of_training(place):
    """CPU seconds of importing the public names of training."""
    return cpu_seconds(place, "-c", "from hf_captioners.training import *")[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, len(FAST), 12))
def test_cpu_seconds_without_torch(place, seconds_of_training, number):
    """A mistake that needs no library takes a small part of importing it."""
    arguments, said = FAST[number]
    done, seconds = cpu_seconds(place, "-m", "hf_captioners.cli", *arguments)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert seconds < MAX_SHARE_WITHOUT_TORCH * seconds_of_training, (seconds, seconds_of_training)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, 50, 5))
def test_cpu_seconds_of_the_library(place, seconds_of_training, number):
    """A mistake that the library finds takes hardly more than importing it."""
    arguments, said = LIBRARY[number]
    done, seconds = cpu_seconds(place, "-m", "hf_captioners.cli", *arguments)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert seconds < MAX_SHARE_OF_IMPORT * seconds_of_training, (seconds, seconds_of_training)
