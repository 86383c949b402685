"""The command line as a whole: help, errors, recipes, `env`."""

import os
import re
import subprocess
import sys

import pytest

from hf_captioners import cli
from hf_captioners.cli import train
from hf_captioners.cli.quiet import QUIET
from hf_captioners.reproduce.recipe import Recipe, find_recipe
from hf_captioners.training.parser import merge_arguments, read_arguments


def test_help_lists_every_command_and_stays_light():
    code = (
        "import sys; from hf_captioners.cli import main; status = main(['--help']);"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules))); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n")
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: hf-captioners {command}" in capsys.readouterr().out


def test_a_command_that_cannot_be_loaded_is_named(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "paint", "no_such_file")
    assert cli.main([]) == 0
    assert re.search(r"paint +\(cannot be loaded: No module named", capsys.readouterr().out)
    assert cli.main(["paint"]) == 2
    assert "no_such_file" in capsys.readouterr().err


def test_errors_are_printed_in_one_line_or_with_the_traceback(monkeypatch, capsys, tmp_path):
    arguments = ["score", str(tmp_path), str(tmp_path)]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("hf-captioners score: error: ") and error.count("\n") == 1
    for typed in (["--traceback", *arguments], [*arguments, "--traceback"]):
        with pytest.raises(OSError, match="metadata"):
            cli.main(typed)


@pytest.mark.parametrize("arguments", [["peint"], ["evaluate"], ["caption", "x", "--model", "y", "--bems", "3"]])
def test_what_is_not_known_ends_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("hf-captioners") and error.count("\n") == 1 and "usage" not in error


def test_typed_arguments_override_a_recipe(tmp_path):
    """Both are merged, and read with the types of the dataclasses; fields of a configuration are merged one by one."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "learning_rate: 1e-4\nmodel_config: {encoder_layers: 2, fusion: srau}\nuse_cpu: yes\n"
        "lr_scheduler_type: step_decay\nlr_scheduler_kwargs: {factor: 0.5, every_epochs: 2}\ntest_metrics: bleu\n"
        "early_stopping_patience: null\nnum_train_epochs: 4\ndata_options: [max_views=2]\nbf16: false\nseed: 1\n"
    )
    typed = ["--seed", "3", "--model_config", "encoder_layers=1", "--eval_steps", "null"]
    typed += ["--output_dir", str(tmp_path)]
    args = cli.command_parser("train", cli.load_command("train")).parse_args([str(recipe), *typed])
    assert args.recipes == [str(recipe)]
    given = {name: value for name, value in vars(args).items() if name not in train.COMMAND_FLAGS}
    merged = merge_arguments(Recipe.load(recipe).arguments, given)
    model, data, training, test, recipe = read_arguments(merged)
    assert recipe == "auto"
    assert model.config_fields() == {"encoder_layers": 1, "fusion": "srau"}
    assert data.data_options == {"max_views": 2}
    assert (training.learning_rate, training.num_train_epochs, training.seed) == (1e-4, 4.0, 3)
    assert training.lr_scheduler_kwargs == {"factor": 0.5, "every_epochs": 2}
    assert (training.lr_scheduler_type, training.early_stopping_patience) == ("step_decay", None)
    assert training.eval_steps is None
    assert test.test_metrics == ["bleu"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"learning_rat": 1e-4}, "no argument `learning_rat`. Did you mean `learning_rate`?"),
        ({"learning_rate": "fast"}, "`learning_rate` is 'fast', expected a number"),
        ({"num_train_epochs": True}, "`num_train_epochs` is True, expected a number"),
        ({"min_word_count": 2.5}, "`min_word_count` is 2.5, expected a whole number"),
        ({"min_word_count": None}, "`min_word_count` is None"),
        ({"bf16": "perhaps"}, "expected true or false"),
        ({"eval_strategy": False}, "`eval_strategy` is False, expected one of no, steps, epoch"),
        ({"test_tokenizer": "spaces"}, "expected one of ptb, none"),
        ({"language_model": {"a": 1}}, "expected text"),
        ({"num_samples": 3}, "`num_samples` belongs to self-critical training: pass `scst` too"),
        ({"scst": True, "sampling": "beam"}, "`sampling` is 'beam'"),
        ({"model_config": ["encoder_layers"]}, "expected NAME=VALUE"),
    ],
)
def test_wrong_arguments_of_a_recipe_are_refused(tmp_path, values, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        read_arguments({"output_dir": str(tmp_path), "use_cpu": True} | values)


@pytest.mark.parametrize(("content", "said"), [("- a\n- b\n", "holds a list"), ("a: [\n", "no YAML")])
def test_a_wrong_recipe_is_refused(tmp_path, content, said):
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(content)
    with pytest.raises(ValueError, match=said):
        Recipe.load(recipe)
    with pytest.raises(FileNotFoundError, match="other.yml"):
        Recipe.load(tmp_path / "other.yml")


def test_recipes_of_the_package_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "show_attend_tell/flickr8k_soft.yaml"
    assert find_recipe(name)[0].is_absolute()
    assert Recipe.load(name).arguments["architecture"] == "show_attend_tell"
    (tmp_path / "show_attend_tell").mkdir()
    (tmp_path / name).write_text("architecture: visualgpt\n")
    assert Recipe.load(name).arguments == {"architecture": "visualgpt"}, "an existing path comes first"
    with pytest.raises(FileNotFoundError, match="Did you mean show_attend_tell/table1_soft.yaml?"):
        find_recipe("show_attend_tell/table_soft.yaml")


def test_a_regime_needs_a_recipe(tmp_path, capsys):
    assert cli.main(["train", "--regime", "1%", "--output_dir", str(tmp_path)]) == 2
    assert "`--regime 1%` needs a recipe" in capsys.readouterr().err


def test_env_names_versions_and_devices(capsys):
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    for name in ("python", "torch", "transformers", "hf-captioners", "accelerators"):
        assert f"{name}: " in out


@pytest.mark.parametrize("flags", [[], ["--verbose"]])
def test_libraries_are_quiet_unless_all_is_asked_for(flags):
    """Only in a process of its own: Python code that calls a command keeps its settings."""
    code = (
        "import os, sys; from hf_captioners import cli; sys.argv[1:] = ['demo', *sys.argv[1:]];"
        "command = cli.load_command('demo'); command.run = lambda args: 0;"
        "before = dict(os.environ); cli.main(['demo']); assert dict(os.environ) == before;"
        "cli.main(); print(os.environ.get('TRANSFORMERS_VERBOSITY'))"
    )
    own = {name: value for name, value in os.environ.items() if name not in QUIET}
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == ("None" if flags else "error")
