"""The committed list of training arguments, compared with the dataclasses, and the flags made from it."""

import json

import pytest

from hf_captioners import cli
from hf_captioners.cli.parsing import CommandParser, with_dashes
from hf_captioners.training.parser import (
    LIST,
    argument_list,
    arguments_of_dataclasses,
    list_as_json,
    list_is_current,
    require_argument,
)


def test_the_list_equals_the_dataclasses():
    if list_is_current():
        assert LIST.read_text() == list_as_json(), "run `python -m hf_captioners.training.parser`"
    else:  # another version of transformers has other arguments
        own = {name: one for name, one in arguments_of_dataclasses().items() if one.group != "transformers"}
        assert own == {name: one for name, one in argument_list().items() if name in own}


def test_an_argument_of_another_version_is_found(monkeypatch, tmp_path):
    content = json.loads(LIST.read_text())
    content["arguments"] = [one for one in content["arguments"] if one["name"] != "bf16"]
    (tmp_path / "list.json").write_text(json.dumps(content | {"transformers": "5.0.0"}))
    monkeypatch.setattr("hf_captioners.training.parser.LIST", tmp_path / "list.json")
    argument_list.cache_clear()
    try:
        assert "bf16" not in argument_list()
        assert require_argument("bf16").kinds == ("bool",)
    finally:
        argument_list.cache_clear()


def test_every_argument_is_a_flag_and_has_help():
    parser = cli.command_parser("train", cli.load_command("train"))
    flags = {action.dest for action in parser._actions}
    assert set(argument_list()) < flags
    assert all(one.help and one.kinds for one in argument_list().values())


def test_few_flags_are_shown_at_first(capsys):
    texts = {}
    for flag in ("--help", "--help_all"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["train", flag])
        assert ended.value.code == 0
        texts[flag] = capsys.readouterr().out
    shown = [line for line in texts["--help"].splitlines() if line.startswith("  -")]
    assert 18 <= len(shown) <= 24 and len(texts["--help"].splitlines()) < 90
    assert "examples:" in texts["--help"] and "--train_dir my_images" in texts["--help"]
    assert "--adam_beta1" in texts["--help_all"] and "--adam_beta1" not in texts["--help"]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`batch_size` is 0.", "`--batch_size` is 0."),
        (
            "Set `scst_after_patience=5`, or `settings`: n_head=4.",
            "Set `--scst_after_patience 5`, or `--set`: n_head=4.",
        ),
        ("There is no `batch_siz`. Did you mean `batch_size`?", "There is no `batch_siz`. Did you mean `batch_size`?"),
        ("recipe.yaml:3: `batch_size` is 0.", "recipe.yaml:3: `batch_size` is 0."),
    ],
)
def test_parameters_in_messages_become_flags(message, shown):
    parser = CommandParser()
    parser.add_argument("--batch_size")
    parser.add_argument("--scst_after_patience")
    parser.add_argument("--set", dest="settings")
    assert with_dashes(message, parser.flags()) == shown


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["--metrics", "bleu", "a", "b"], (["bleu"], "a", "b")),
        (["--metrics", "bleu", "cider_d", "a", "b", "--format", "json"], (["bleu", "cider_d"], "a", "b")),
        (["a", "--metrics", "bleu", "b"], (["bleu"], "a", "b")),
        (["a", "b", "--metrics", "bleu", "cider_d"], (["bleu", "cider_d"], "a", "b")),
        (["--format", "json", "a", "b", "--metrics", "bleu"], (["bleu"], "a", "b")),
    ],
)
def test_a_list_leaves_the_positional_arguments(typed, expected):
    args = cli.command_parser("score", cli.load_command("score")).parse_args(typed)
    assert (args.metrics, args.predictions, args.references) == expected


def test_a_list_needs_a_value_of_its_own(capsys):
    with pytest.raises(SystemExit):
        cli.command_parser("score", cli.load_command("score")).parse_args(["--metrics", "a", "b"])
    assert "references" in capsys.readouterr().err
