"""Arguments from a dictionary: what a recipe and a command line give is checked and read into the dataclasses."""

import dataclasses
import difflib
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformers.hf_argparser import string_to_bool

from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.data_arguments import DataArguments
from hf_captioners.training.running import TestArguments
from hf_captioners.training.scst_arguments import SCSTArguments
from hf_captioners.training.starting import ModelArguments

from .recipe import NAMED_VALUES, merge_arguments

SELF_CRITICAL = "scst"
EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text (put it into quotes)"}


class TrainArguments(NamedTuple):
    """All arguments of a training run, in the order in which `train_captioner` takes them."""

    model: ModelArguments
    data: DataArguments
    training: CaptioningTrainingArguments
    test: TestArguments


def argument_types(self_critical: bool) -> tuple[type, ...]:
    """Return the dataclasses that hold the arguments of a training run."""
    training = SCSTArguments if self_critical else CaptioningTrainingArguments
    return ModelArguments, DataArguments, training, TestArguments


def read_arguments(values: Mapping[str, Any]) -> TrainArguments:
    """Read the arguments of a training run from a dictionary, as `HfArgumentParser.parse_dict` does.

    Names, types and choices are checked. Numbers may be text (`1e-4`, which YAML does not read as a number), one value
    may stand for a list of one, None is accepted where the argument may be None.

    Args:
        values: names and values; `scst: true` asks for self-critical training.

    Raises:
        ValueError: a name is unknown, or a value is of a wrong type or out of range.

    Example:
        ```python
        from hf_captioners.reproduce.reading import read_arguments
        from hf_captioners.reproduce.recipe import Recipe
        from hf_captioners.training.running import train_captioner

        recipe = Recipe.load("show_attend_tell/flickr8k_soft.yaml")
        own = {"train_dir": "flickr8k", "vision_model": "timm:resnet50.a1_in1k", "output_dir": "my_captioner"}
        train_captioner(*read_arguments({**recipe.arguments, **own}))
        ```
    """
    values = merge_arguments(values)
    self_critical = _read(SELF_CRITICAL, bool, values.pop(SELF_CRITICAL, False))
    types_of_run = argument_types(self_critical)
    _require_known(values, types_of_run)
    model_type, data_type, training_type, test_type = types_of_run
    data = data_type(**_fields_of(data_type, values))
    defaults = data.generation_arguments  # those of the data set, which reports, for example, need longer
    return TrainArguments(
        model_type(**_fields_of(model_type, values)),
        data,
        training_type(**(defaults | _fields_of(training_type, values))),
        test_type(**_fields_of(test_type, values)),
    )


def field_types(kind: type) -> dict[str, Any]:
    """Return the type of every argument of a dataclass by its name."""
    hints = typing.get_type_hints(kind)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind) if one.init}


def _require_known(values: Mapping[str, Any], kinds: tuple[type, ...]) -> None:
    known = [name for kind in kinds for name in field_types(kind)]
    for name in values:
        if name in known:
            continue
        if name in field_types(SCSTArguments):
            raise ValueError(f"`--{name}` belongs to self-critical training: pass --scst too.")
        near = difflib.get_close_matches(name, known, n=1)
        raise ValueError(f"There is no argument `{name}`." + (f" Did you mean `{near[0]}`?" if near else ""))


def _fields_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _read(name, hint, values[name]) for name, hint in field_types(kind).items() if name in values}


def _read(name: str, hint: Any, value: Any) -> Any:
    """Return a value as its type wants it.

    Raises:
        ValueError: it is of a different type.
    """
    options = list(typing.get_args(hint)) if isinstance(hint, types.UnionType) or _is_union(hint) else [hint]
    if value is None and type(None) in options:
        return None
    if name in NAMED_VALUES and isinstance(value, Mapping):
        return dict(value)
    enums = [option for option in options if isinstance(option, type) and issubclass(option, enum.Enum)]
    # Text is the last choice: what can be a number or one of a list of names is checked as such.
    for option in enums or sorted(options, key=lambda option: option is str):
        try:
            return _as_type(option, value)
        except (TypeError, ValueError):
            continue
    raise ValueError(f"`{name}` is {value!r}, expected {' or '.join(filter(None, map(_expected, enums or options)))}.")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Union


def _as_type(option: Any, value: Any) -> Any:
    origin = typing.get_origin(option) or option
    if origin is typing.Literal:
        return next(choice for choice in _found(option, value))
    if origin is list:
        (item,) = typing.get_args(option) or (Any,)
        return [_as_type(item, one) for one in (value if isinstance(value, list) else [value])]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise TypeError
        return dict(value)
    if origin is bool:
        return value if isinstance(value, bool) else _bool(value)
    if origin in (int, float):
        return _number(origin, value)
    if origin is str:
        if isinstance(value, bool | Mapping | list) or value is None:
            raise TypeError
        return str(value)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return origin(value.value if isinstance(value, enum.Enum) else value).value
    if origin is Any or isinstance(value, origin):
        return value
    raise TypeError


def _found(option: Any, value: Any) -> list[Any]:
    choices = [choice for choice in typing.get_args(option) if str(choice) == str(value)]
    if not choices:
        raise ValueError
    return choices


def _bool(value: Any) -> bool:
    try:
        return string_to_bool(str(value))
    except Exception as error:  # argparse's own type of error
        raise ValueError from error


def _number(kind: type, value: Any) -> Any:
    if isinstance(value, bool) or (kind is int and isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return kind(value)


def _expected(option: Any) -> str:
    """Return how a type is written in a message."""
    origin = typing.get_origin(option) or option
    if origin is type(None):
        return "null"
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(option)))
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return "one of " + ", ".join(member.value for member in origin)
    if origin is list:
        return "a list"
    return "a mapping" if origin is dict else EXPECTED.get(origin, getattr(origin, "__name__", ""))
