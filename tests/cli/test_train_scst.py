"""`hf-captioners train --scst`: self-critical training as a person types it."""

import json
from pathlib import Path

import pytest

from hf_captioners.cli import main

FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]


@pytest.fixture
def command(images, language_model, vision_model, tmp_path):
    parts = ["--language_model", language_model, "--vision_model", vision_model]
    places = ["--train_dir", str(images), "--validation_dir", str(images), "--output_dir", str(tmp_path / "run")]
    return ["train", *places, *parts, *FAST, "--evaluate_loss", "false"]


def log_of(output):
    return json.loads(Path(output, "trainer_state.json").read_text())["log_history"]


def test_cross_entropy_then_rewards_in_one_command_and_resumed(command, tmp_path, capsys):
    settings = ["--scst", "--scst_after_epochs", "1", "--num_train_epochs", "1", "--logging_steps", "1"]
    settings += ["--reward_funcs", "cider_d", "bleu_4", "--reward_weights", "1", "0.5", "--num_samples", "2"]
    assert main([*command, *settings]) == 0
    assert "Best evaluation, of the initial model" in capsys.readouterr().out
    entry = next(entry for entry in log_of(tmp_path / "run") if "reward" in entry)
    assert entry["reward"] == pytest.approx(entry["reward_cider_d"] + 0.5 * entry["reward_bleu_4"], abs=1e-6)
    assert entry["learning_rate"] == 1e-5
    before = log_of(tmp_path / "run" / "cross_entropy")
    assert before[-1]["epoch"] == 1 and {entry.get("learning_rate") for entry in before} <= {1e-4, None}
    assert main([*command, *settings]) == 2
    assert "Pass --resume" in capsys.readouterr().err
    assert main([*command, *settings, "--num_train_epochs", "2", "--resume"]) == 0
    assert "Resuming from" in capsys.readouterr().out
    assert max(entry["epoch"] for entry in log_of(tmp_path / "run")) == 2


def test_its_arguments_are_refused_without_it(command, capsys):
    assert main([*command, "--num_samples", "3"]) == 2
    assert "`--num_samples` belongs to self-critical training: pass --scst" in capsys.readouterr().err


def test_in_a_recipe(command, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("scst: true\nsampling: beam\n")
    assert main(["train", str(tmp_path / "recipe.yaml"), *command[1:]]) == 2
    assert "`sampling` is 'beam'" in capsys.readouterr().err
