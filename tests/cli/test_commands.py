"""The command line as a whole: help, errors, recipes, `env`."""

import re
import subprocess
import sys

import pytest

from hf_captioners import cli
from hf_captioners.reproduce.recipe import with_recipe
from hf_captioners.training import CaptioningTrainingArguments


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


def test_errors_are_told_in_one_line_or_with_the_place(monkeypatch, capsys, tmp_path):
    arguments = ["caption", str(tmp_path), "--model", "x"]
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == f"hf-captioners caption: error: {tmp_path} has no images.\n"
    with pytest.raises(ValueError, match="no images"):
        cli.main(["--traceback", *arguments])


@pytest.mark.parametrize("arguments", [["peint"], ["caption"], ["caption", "x", "--model", "y", "--bems", "3"]])
def test_what_is_not_known_ends_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: hf-captioners" in capsys.readouterr().err


def test_a_recipe_stands_before_what_was_typed(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "learning_rate: 1e-4\nbf16: true\nmodel_config: {encoder_layers: 2, fusion: srau}\n"
        "lr_scheduler_type: step_decay\nlr_scheduler_kwargs: {factor: 0.5, every_epochs: 2}\n"
        "early_stopping_patience: null\n"
    )
    typed = with_recipe([str(recipe), "--seed", "3"])
    assert typed == [
        *("--learning_rate", "1e-4", "--bf16", "True"),
        *("--model_config", "encoder_layers=2", 'fusion="srau"'),
        *("--lr_scheduler_type", "step_decay", "--lr_scheduler_kwargs", '{"factor": 0.5, "every_epochs": 2}'),
        *("--early_stopping_patience", "null", "--seed", "3"),
    ]
    args = cli.command_parser("train", cli.load_command("train")).parse_args(typed)
    training = CaptioningTrainingArguments(
        str(tmp_path),
        use_cpu=True,
        **{
            name: getattr(args, name)
            for name in ("lr_scheduler_type", "lr_scheduler_kwargs", "early_stopping_patience")
        },
    )
    assert training.lr_scheduler_kwargs == {"factor": 0.5, "every_epochs": 2}
    assert (training.lr_scheduler_type, training.early_stopping_patience) == ("step_decay", None)
    assert with_recipe(["image.png", "recipe.yaml"]) == ["image.png", "recipe.yaml"]


@pytest.mark.parametrize(("content", "said"), [("- a\n- b\n", "holds a list"), ("a: [\n", "no YAML")])
def test_a_wrong_recipe_is_refused(tmp_path, content, said):
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(content)
    with pytest.raises(ValueError, match=said):
        with_recipe([str(recipe)])
    with pytest.raises(FileNotFoundError, match="other.yml"):
        with_recipe([str(tmp_path / "other.yml")])


def test_env_names_versions_and_devices(capsys):
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    for name in ("python", "torch", "transformers", "hf-captioners", "accelerators"):
        assert f"{name}: " in out
