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
    assert "Pass `--resume`" in capsys.readouterr().err
    assert main([*command, *settings, "--num_train_epochs", "2", "--resume"]) == 0
    assert "Resuming from" in capsys.readouterr().out
    assert max(entry["epoch"] for entry in log_of(tmp_path / "run")) == 2


def test_a_reward_and_a_metric_of_the_current_folder(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_functions.py").write_text(
        "def brevity(completions, references, **columns):\n    return [1 / (1 + len(text)) for text in completions]\n"
        "def letters(predictions, references):\n    return [len(text) for text in predictions]\n"
    )
    settings = ["--scst", "--scst_after_epochs", "0.1", "--max_steps", "1", "--logging_steps", "1"]
    settings += ["--num_samples", "2"]
    settings += ["--eval_metrics", "cider_d", "my_functions:letters", "--test_split", "train"]
    misspelt = {"my_functions:brevty": "`brevity`", "my_function:brevity": "`my_functions`", "cider": "`cider_d`"}
    for typed, expected in misspelt.items():
        assert main([*command, *settings, "--reward_funcs", typed]) == 2
        assert f"Did you mean {expected}?" in capsys.readouterr().err
    assert main([*command, *settings, "--reward_funcs", "cider_d", "my_functions:brevity"]) == 0
    entry = next(entry for entry in log_of(tmp_path / "run") if "reward" in entry)
    assert entry["reward"] == pytest.approx(entry["reward_cider_d"] + entry["reward_brevity"], abs=1e-6)
    evaluated = [entry for entry in log_of(tmp_path / "run") if "eval_letters" in entry]
    assert evaluated and "eval_bleu_4" not in evaluated[0]
    tested = json.loads(Path("run", "test_results.json").read_text())
    assert set(tested["variants"]) == {"cider_d", "letters"}  # the test has the metrics of evaluations
    capsys.readouterr()
    typed = ["evaluate", "run", command[2], "--split", "train", "--device", "cpu", "--format", "json"]
    assert main([*typed, "--metrics", "my_functions:letters"]) == 0
    assert "letters" in json.loads(capsys.readouterr().out)
    assert main([*typed, "--metrics", "my_functions:leters"]) == 2
    assert "Did you mean `letters`?" in capsys.readouterr().err


def test_its_arguments_are_refused_without_it(command, capsys):
    assert main([*command, "--num_samples", "3"]) == 2
    assert "`--num_samples` belongs to self-critical training: pass `--scst` too" in capsys.readouterr().err


def test_in_a_recipe(command, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("scst: true\nsampling: beam\n")
    assert main(["train", str(tmp_path / "recipe.yaml"), *command[1:]]) == 2
    assert "`sampling` is 'beam'" in capsys.readouterr().err
