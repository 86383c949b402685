"""The committed list of training arguments, and what is read from sources, compared with the classes themselves."""

import dataclasses
import inspect
import json

import pytest
from transformers import PreTrainedConfig

from hf_captioners import cli
from hf_captioners.architectures import ARCHITECTURES
from hf_captioners.cli.names import GENERATION_OPTIONS, data_readers
from hf_captioners.cli.training_names import BASE_FIELDS
from hf_captioners.cli.write_lists import generation_options_as_json
from hf_captioners.data.loading import READERS, option_names, reader_class
from hf_captioners.declared_classes import declared_class, declared_constant, source_file
from hf_captioners.reproduce.argument_list import LIST, argument_list, as_json, list_is_current, require_argument
from hf_captioners.reproduce.dataclass_arguments import arguments_of_dataclasses

OWN = [one for one in ARCHITECTURES.values() if one.package is None]


def test_the_list_equals_the_dataclasses():
    if list_is_current():
        assert LIST.read_text() == as_json(arguments_of_dataclasses()), "run `python -m hf_captioners.cli.write_lists`"
    else:  # another version of transformers has other arguments
        own = {name: one for name, one in arguments_of_dataclasses().items() if one.group != "transformers"}
        assert own == {name: one for name, one in argument_list().items() if name in own}


def test_the_options_of_generate_are_listed():
    if list_is_current():
        assert GENERATION_OPTIONS.read_text() == generation_options_as_json(), (
            "run `python -m hf_captioners.cli.write_lists`"
        )


def test_an_argument_of_another_version_is_found(monkeypatch, tmp_path):
    content = json.loads(LIST.read_text())
    content["arguments"] = [one for one in content["arguments"] if one["name"] != "bf16"]
    (tmp_path / "list.json").write_text(json.dumps(content | {"transformers": "5.0.0"}))
    monkeypatch.setattr("hf_captioners.reproduce.argument_list.LIST", tmp_path / "list.json")
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


@pytest.mark.parametrize("architecture", OWN, ids=lambda one: one.name)
def test_declared_fields_are_those_of_the_classes(architecture):
    config, processor = architecture.load("Config"), architecture.load("Processor")
    declared = declared_class(source_file(architecture.module("Config").split(".", 1)[1]), config.__name__)
    base = {one.name for one in dataclasses.fields(PreTrainedConfig)}
    fields = {one.name for one in dataclasses.fields(config)}
    assert fields - base <= set(declared.fields) <= fields
    assert set(BASE_FIELDS) <= base
    declared = declared_class(source_file(architecture.module("Processor").split(".", 1)[1]), processor.__name__)
    assert set(declared.parameters) == set(inspect.signature(processor).parameters) - {"kwargs"}


@pytest.mark.parametrize("name", READERS)
def test_declared_options_are_those_of_the_readers(name):
    module, cls = data_readers()[name]
    declared = declared_class(source_file(f"data.{module}"), cls)
    assert [one for one in declared.fields if one != "data_dir"] == option_names(name)
    needed = [one for one in dataclasses.fields(reader_class(name)) if one.default is one.default_factory]
    assert declared.needed == [one.name for one in needed]
    assert declared_constant(source_file("data.loading"), "READERS")[name] == (module, cls)
