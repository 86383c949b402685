"""Parser of training arguments: list of arguments, command line flags, values from dictionaries.

`arguments.json` has the name, types, choices, default and help of every field of the dataclasses of arguments, so that
flags are known without importing torch. `python -m hf_captioners.training.parser` writes it; run it after a field or
the floor of transformers has changed.
"""

import argparse
import dataclasses
import enum
import functools
import importlib.metadata
import inspect
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_captioners.names import did_you_mean, listed, read_named_values

if TYPE_CHECKING:
    from .arguments import CaptioningTrainingArguments
    from .data_arguments import DataArguments
    from .running import TestArguments
    from .starting import ModelArguments

LIST = Path(__file__).with_name("arguments.json")
NULL = "null"
# Arguments of a run that are no fields of a dataclass.
SELF_CRITICAL, RECIPE = "scst", "recipe"
# Arguments that are typed as NAME=VALUE; other mappings are typed as JSON. Of `ADDED`, later values are added to
# earlier ones instead of replacing them.
NAMED_VALUES = ("model_config", "processor_config", "data_options")
ADDED = ("model_config", "processor_config")
# Arguments whose values may be `module:function`, which is imported.
NAMES_FUNCTIONS = ("reward_funcs", "eval_metrics", "test_metrics")
EXPECTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "mapping": "a mapping"}
EXPECTED |= {"str": "text (put it into quotes)", "null": "null", "list[str]": "a list", "list[float]": "a list"}
TRUE, FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")  # as transformers reads them
KINDS = {bool: "bool", int: "int", float: "float", str: "str", Path: "str", type(None): NULL}
# Groups of flags in `--help_all`, with their titles.
TITLES = {
    "model": "captioner",
    "data": "data",
    "training": "training",
    "scst": "self-critical training, with --scst",
    "test": "test after training",
    "transformers": "arguments of transformers' Seq2SeqTrainer",
}
PLACEHOLDERS = {"int": "N", "float": "X", "mapping": "JSON"}


@dataclass(frozen=True)
class Argument:
    """A training argument: name, type, default, choices and help.

    Args:
        name: of the field, and of the flag.
        kinds: types of its values: `null`, `bool`, `int`, `float`, `mapping`, `list[str]`, `list[float]`, `str`.
        choices: the texts that it may be, if they are known.
        default: its default as text.
        help: its description.
        group: `model`, `data`, `training`, `transformers` (of `Seq2SeqTrainingArguments`), `scst` or `test`.
        added: whether what is typed is added to what a recipe has, instead of replacing it.
    """

    name: str
    kinds: tuple[str, ...]
    choices: tuple[str, ...]
    default: str
    help: str
    group: str
    added: bool = False

    @property
    def is_list(self) -> bool:
        """True if the argument takes several values."""
        return any(kind.startswith("list") for kind in self.kinds)

    def read(self, value: Any) -> Any:
        """Convert a value, possibly text, to the argument's type.

        Raises:
            ValueError: it is of a different type, or none of the choices. The message has the nearest one.
        """
        if value is None and NULL in self.kinds:
            return None
        if self.name in NAMED_VALUES and isinstance(value, Mapping):
            return dict(value)
        if value == [None]:  # `null` is typed
            return self.read(None)
        if self.choices:
            return [self._choice(item) for item in _items(value)] if self.is_list else self._choice(value)
        # Text is the last choice: what can be a number is checked as such.
        for kind in sorted(self.kinds, key=lambda kind: kind == "str"):
            try:
                return _READERS[kind](value)
            except (TypeError, ValueError):
                continue
        expected = " or ".join(EXPECTED[kind] for kind in self.kinds)
        raise ValueError(f"`{self.name}` is {value!r}, expected {expected}.")

    def _choice(self, value: Any) -> str:
        if str(value) in self.choices:
            return str(value)
        null = [NULL] if NULL in self.kinds else []
        raise ValueError(
            f"`{self.name}` is {value!r}, expected one of {listed([*self.choices, *null])}."
            f"{did_you_mean(str(value), self.choices)}"
        )


def _null(value: Any) -> None:
    if value is not None:
        raise TypeError


def _bool(value: Any) -> bool:
    text = str(value).lower()
    if text not in (*TRUE, *FALSE):
        raise ValueError
    return text in TRUE


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, bool | Mapping | list) or value is None:
        raise TypeError
    return str(value)


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        raise TypeError
    return dict(value)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


_READERS: dict[str, Any] = {
    NULL: _null,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "mapping": _mapping,
    "str": _text,
    "list[str]": lambda value: [_text(item) for item in _items(value)],
    "list[float]": lambda value: [_float(item) for item in _items(value)],
}


@functools.cache
def argument_list() -> dict[str, Argument]:
    """Return the arguments of cross-entropy and self-critical training by name."""
    entries = json.loads(LIST.read_text(encoding="utf-8"))["arguments"]
    return {
        entry["name"]: Argument(**entry | {name: tuple(entry[name]) for name in ("kinds", "choices")})
        for entry in entries
    }


def list_is_current() -> bool:
    """Return whether `arguments.json` was written with the installed version of transformers."""
    content = json.loads(LIST.read_text(encoding="utf-8"))
    return content["transformers"] == importlib.metadata.version("transformers")


def require_argument(name: str, self_critical: bool = True) -> Argument:
    """Return a training argument by its name.

    Args:
        name: of the argument.
        self_critical: whether the arguments of self-critical training are accepted.

    Raises:
        ValueError: there is none. The message has the nearest one.
    """
    arguments = argument_list()
    if name not in arguments and not list_is_current():  # another version of transformers may have it
        arguments = arguments_of_dataclasses()
    if name not in arguments:
        raise ValueError(f"There is no argument `{name}`.{did_you_mean(name, arguments)}")
    if arguments[name].group == SELF_CRITICAL and not self_critical:
        raise ValueError(f"`{name}` belongs to self-critical training: pass `scst` too, or `recipe=few_images`.")
    return arguments[name]


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    """Add a command line flag for each training argument; untyped flags are absent from the result."""
    for group, title in TITLES.items():
        section = parser.add_argument_group(title)
        for argument in argument_list().values():
            if argument.group == group:
                _add_flag(section, argument)


def _add_flag(section: Any, argument: Argument) -> None:
    flag, missing = f"--{argument.name}", argparse.SUPPRESS
    options: dict[str, Any] = {"default": missing, "help": _help_of(argument).replace("%", "%%")}
    if argument.kinds[0] == "bool":
        section.add_argument(flag, type=_reader(argument), nargs="?", const=True, metavar="BOOL", **options)
        if argument.default == "True":
            options = {"default": missing, "help": missing}
            section.add_argument(f"--no_{argument.name}", dest=argument.name, action="store_false", **options)
        return
    options["metavar"] = next((PLACEHOLDERS[kind] for kind in argument.kinds if kind in PLACEHOLDERS), "TEXT")
    if argument.is_list:
        action = "extend" if argument.added else "store"
        read = (lambda text: (argument.read([_item(text)]) or [None])[0]) if argument.choices else _item
        section.add_argument(flag, type=read, nargs="+", action=action, **options)
    else:
        section.add_argument(flag, type=_reader(argument), **options)


def _reader(argument: Argument) -> Any:
    return lambda text: argument.read(_item(text))


def _item(text: str) -> str | None:
    return None if text == NULL else text


def _help_of(argument: Argument) -> str:
    text = argument.help.rstrip(".")
    if argument.choices:
        text += f": {', '.join(argument.choices)}"
    return text if argument.default in (NULL, "") or "default" in text else f"{text}; default: {argument.default}"


def merge_arguments(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge dictionaries of arguments; later values override, and nested configurations are merged by field.

    Args:
        *parts: names and values, as a recipe has them or as they were typed (NAME=VALUE entries as lists of strings).

    Returns:
        One dictionary, in which `model_config`, `processor_config` and `data_options` are mappings.

    Raises:
        ValueError: an entry is not of the form NAME=VALUE.
    """
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name in NAMED_VALUES and value is not None:
                value = read_named_values(value, name)
                if name in ADDED:
                    value = (merged.get(name) or {}) | value
            merged[name] = value
    return merged


class TrainArguments(NamedTuple):
    """All arguments of `train_captioner`, in its order."""

    model: "ModelArguments"
    data: "DataArguments"
    training: "CaptioningTrainingArguments"
    test: "TestArguments"
    recipe: str


def read_arguments(values: Mapping[str, Any]) -> TrainArguments:
    """Parse training arguments from a dictionary, as `HfArgumentParser.parse_dict` does.

    Names, types and choices are checked; numbers may be text (`1e-4`, which YAML does not read as a number), one value
    may stand for a list of one, None is accepted where the argument may be None.

    Args:
        values: names and values; `scst: true` asks for self-critical training, `recipe` for named settings, see
            `hf_captioners.training.few_images`.

    Raises:
        ValueError: a name is unknown, or a value is of a wrong type or out of range.

    Example:
        ```python
        from hf_captioners.reproduce.recipe import Recipe
        from hf_captioners.training.parser import read_arguments
        from hf_captioners.training.running import train_captioner

        recipe = Recipe.load("show_attend_tell/flickr8k_soft.yaml")
        own = {"train_dir": "flickr8k", "vision_model": "timm:resnet50.a1_in1k", "output_dir": "my_captioner"}
        train_captioner(*read_arguments({**recipe.arguments, **own}))
        ```
    """
    from .few_images import AUTO, REWARDS_RECIPE

    values = merge_arguments(values)
    run = {name: require_argument(name).read(values.pop(name)) for name in (SELF_CRITICAL, RECIPE) if name in values}
    self_critical = run.get(SELF_CRITICAL, run.get(RECIPE) == REWARDS_RECIPE)
    values = {name: require_argument(name, self_critical).read(value) for name, value in values.items()}
    types_by_group = _dataclasses()
    with_rewards = types_by_group.pop(SELF_CRITICAL)
    if self_critical:
        types_by_group["training"] = with_rewards
    model, data, training, test = (
        {field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values}
        for kind in types_by_group.values()
    )
    data_arguments = types_by_group["data"](**data)
    arguments = TrainArguments(
        types_by_group["model"](**model),
        data_arguments,
        # a data set has its own defaults: reports, for example, need longer captions
        types_by_group["training"](**data_arguments.generation_arguments | training),
        types_by_group["test"](**test),
        run.get(RECIPE, AUTO),
    )
    arguments.training.given |= run.keys() & {SELF_CRITICAL}
    return arguments


def _dataclasses() -> dict[str, type[Any]]:
    """Return the dataclasses of the training arguments by group."""
    from .arguments import CaptioningTrainingArguments
    from .data_arguments import DataArguments
    from .running import TestArguments
    from .scst.arguments import SCSTArguments
    from .starting import ModelArguments

    groups: dict[str, type[Any]] = {"model": ModelArguments, "data": DataArguments}
    return groups | {"training": CaptioningTrainingArguments, "test": TestArguments, SELF_CRITICAL: SCSTArguments}


@functools.cache
def arguments_of_dataclasses() -> dict[str, Argument]:
    """Return all training arguments by name, read from the dataclasses; see `argument_list`."""
    from .few_images import AUTO, RECIPE_HELP, RECIPE_NAMES

    self_critical = "Self-critical training: train on rewards of sampled captions, with defaults of its own."
    arguments = {
        SELF_CRITICAL: Argument(SELF_CRITICAL, ("bool",), (), "False", self_critical, "training"),
        RECIPE: Argument(RECIPE, ("str",), RECIPE_NAMES, AUTO, RECIPE_HELP, "training"),
    }
    for group, kind in _dataclasses().items():
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.init and field.name not in arguments:
                is_base = group == "training" and field.name not in inspect.get_annotations(kind)
                arguments[field.name] = _argument(field, hints[field.name], "transformers" if is_base else group)
    return arguments


def _argument(field: dataclasses.Field[Any], hint: Any, group: str) -> Argument:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = list(typing.get_args(hint)) if is_union else [hint]
    choices = [choice for option in options for choice in _choices_of(option, str in options)]
    choices = choices or list(_transformers_choices().get(field.name) or field.metadata.get("choices") or ())
    kinds = dict.fromkeys(kind for option in options if (kind := _kind_of(option)) is not None)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return Argument(
        name=field.name,
        kinds=tuple(kinds),
        choices=tuple(map(str, choices)),
        default=_as_text(default),
        help=" ".join(str(field.metadata.get("help", "")).replace("%%", "%").split()),
        group=group,
        added=field.metadata.get("action") == "extend",
    )


def _transformers_choices() -> dict[str, list[str]]:
    """Return the valid choices of transformers' fields that transformers itself declares as plain text."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.training_args import OptimizerNames

    from .optimization import OPTIMIZERS
    from .trainer import SAMPLING_STRATEGIES

    return {
        "optim": [*(member.value for member in OptimizerNames), *OPTIMIZERS],
        "train_sampling_strategy": list(SAMPLING_STRATEGIES),
        "report_to": ["all", "none", *INTEGRATION_TO_CALLBACK],
    }


def _choices_of(option: Any, is_text: bool) -> list[str]:
    """Return the members of an enumeration or `Literal`; empty for types that permit other values."""
    if isinstance(option, type) and issubclass(option, enum.Enum):
        return [member.value for member in option]
    return list(typing.get_args(option)) if typing.get_origin(option) is typing.Literal and not is_text else []


def _kind_of(option: Any) -> str | None:
    """Return the type's name for the command line; None for types without a text form."""
    origin = typing.get_origin(option) or option
    if origin is list:
        return "list[float]" if typing.get_args(option) == (float,) else "list[str]"
    if origin is dict:
        return "mapping"
    if origin is typing.Literal or (isinstance(origin, type) and issubclass(origin, enum.Enum)):
        return "str"
    return KINDS.get(origin)


def _as_text(default: Any) -> str:
    default = default.value if isinstance(default, enum.Enum) else default
    if default is None or default is dataclasses.MISSING:
        return NULL
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def list_as_json() -> str:
    """Return the JSON content of `arguments.json`."""
    arguments = [asdict(argument) for argument in arguments_of_dataclasses().values()]
    content = {"transformers": importlib.metadata.version("transformers"), "arguments": arguments}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from hf_captioners.output_files import write_text
    from hf_captioners.training import parser

    write_text(LIST, parser.list_as_json())
