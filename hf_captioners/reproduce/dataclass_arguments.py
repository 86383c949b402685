"""The arguments of a training run, read from their dataclasses; `argument_list` has them as a file."""

import dataclasses
import enum
import functools
import inspect
import types
import typing
from pathlib import Path
from typing import Any

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.training_args import OptimizerNames

from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.data_arguments import DataArguments
from hf_captioners.training.optimization import OPTIMIZERS
from hf_captioners.training.running import TestArguments
from hf_captioners.training.scst.arguments import SCSTArguments
from hf_captioners.training.starting import ModelArguments
from hf_captioners.training.trainer import SAMPLING_STRATEGIES

from .argument import NULL, SELF_CRITICAL, Argument

# Choices of fields of transformers that are declared as text, or of which `CaptioningTrainer` does not take all.
CHOICES = {
    "optim": [*(one.value for one in OptimizerNames), *OPTIMIZERS],
    "train_sampling_strategy": SAMPLING_STRATEGIES,
    "report_to": ["all", "none", *INTEGRATION_TO_CALLBACK],
}
KINDS = {bool: "bool", int: "int", float: "float", str: "str", Path: "str", type(None): NULL}


@functools.cache
def arguments_of_dataclasses() -> dict[str, Argument]:
    """Return all arguments of a training run by name, from the dataclasses; see `argument_list`."""
    groups = {"model": ModelArguments, "data": DataArguments, "training": CaptioningTrainingArguments}
    found: dict[str, Argument] = {}
    for group, kind in (*groups.items(), (SELF_CRITICAL, SCSTArguments), ("test", TestArguments)):
        hints = typing.get_type_hints(kind)
        for one in dataclasses.fields(kind):
            if one.init and one.name not in found:
                is_base = group == "training" and one.name not in inspect.get_annotations(kind)
                found[one.name] = _argument(one, hints[one.name], "transformers" if is_base else group)
    return found


def _argument(one: dataclasses.Field[Any], hint: Any, group: str) -> Argument:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = list(typing.get_args(hint)) if is_union else [hint]
    choices = [choice for option in options for choice in _choices_of(option, str in options)]
    choices = choices or list(CHOICES.get(one.name) or one.metadata.get("choices") or ())
    kinds = dict.fromkeys(kind for option in options if (kind := _kind_of(option)) is not None)
    default = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
    return Argument(
        name=one.name,
        kinds=tuple(kinds),
        choices=tuple(map(str, choices)),
        default=_as_text(default),
        help=" ".join(str(one.metadata.get("help", "")).replace("%%", "%").split()),
        group=group,
        added=one.metadata.get("action") == "extend",
    )


def _choices_of(option: Any, is_text: bool) -> list[str]:
    """Return the values of an enumeration, or of a `Literal` that does not stand beside any other text."""
    if isinstance(option, type) and issubclass(option, enum.Enum):
        return [member.value for member in option]
    return list(typing.get_args(option)) if typing.get_origin(option) is typing.Literal and not is_text else []


def _kind_of(option: Any) -> str | None:
    """Return the name of a type; None if it cannot be typed."""
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
