"""`hf-captioners train --streaming`: a folder is read while training, and what does not fit is refused."""

import json
import shutil
from pathlib import Path

import pytest

from hf_captioners.cli import main

FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]
STEPS = ["--streaming", "--max_steps", "4", "--eval_strategy", "steps", "--eval_steps", "2", "--save_strategy", "no"]


@pytest.fixture
def folder(images, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(images, tmp_path / "data" / split)
    return tmp_path / "data"


def test_a_folder_is_streamed(folder, vision_model, tmp_path, capsys):
    """With a vocabulary of words, for which the captions are read once."""
    output = tmp_path / "run"
    parts = ["--architecture", "show_attend_tell", "--vision_model", vision_model, "--min_word_count", "1", *FAST]
    arguments = ["train", "--train_dir", str(folder), *parts, *STEPS, "--output_dir", str(output)]
    assert main([*arguments, "--load_best_model_at_end", "false", "--per_device_train_batch_size", "3"]) == 0
    said = capsys.readouterr().out
    assert "Training on a stream of images" in said
    assert "4 steps in batches of 3: 12 pairs of image and caption" in said
    log = json.loads(Path(output, "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in log if "eval_cider_d" in entry] == [2, 4]
    assert main(["caption", str(folder / "train" / "scene_000.png"), "--model", str(output)]) == 0


@pytest.mark.parametrize("more", [[], ["--scst", "--num_samples", "2", "--stream_buffer_size", "2"]], ids=["", "scst"])
def test_a_captioner_is_trained_further_on_a_stream(folder, captioner, tmp_path, more):
    arguments = ["train", "--train_dir", str(folder), "--model", captioner, *FAST, *STEPS, "--max_steps", "1", *more]
    assert main([*arguments, "--output_dir", str(tmp_path / "run"), "--eval_strategy", "no"]) == 0


def test_rewards_on_a_stream_need_a_trained_captioner(folder, captioner, language_model, tmp_path, capsys):
    arguments = ["train", "--train_dir", str(folder), *STEPS, "--scst", "--output_dir", str(tmp_path / "run")]
    arguments += ["--load_best_model_at_end", "false"]
    assert main([*arguments, "--language_model", language_model, "--scst_after_epochs", "1"]) == 2
    assert "no epochs to begin with" in capsys.readouterr().err
    assert main([*arguments, "--model", captioner, "--scst_after_epochs", "1"]) == 2
    assert "without `--scst_after_epochs`" in capsys.readouterr().err


def test_a_stream_without_evaluation_images(images, language_model, vision_model, tmp_path, capsys):
    parts = ["--language_model", language_model, "--vision_model", vision_model, *FAST]
    arguments = ["train", "--train_dir", str(images), *parts, *STEPS, "--output_dir", str(tmp_path / "run")]
    assert main([*arguments, "--load_best_model_at_end", "false"]) == 2
    assert "has no split 'validation', and images of a stream cannot be held out" in capsys.readouterr().err
