"""Arguments from a dictionary: what a recipe and a command line give is checked and read into the dataclasses."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from hf_captioners.names import did_you_mean
from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.data_arguments import DataArguments
from hf_captioners.training.running import TestArguments
from hf_captioners.training.scst.arguments import SCSTArguments
from hf_captioners.training.starting import ModelArguments

from .argument import SELF_CRITICAL, Argument
from .dataclass_arguments import arguments_of_dataclasses
from .recipe import merge_arguments


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


_SCST = Argument(SELF_CRITICAL, ("bool",), (), "False", "", "training")


def read_arguments(values: Mapping[str, Any]) -> TrainArguments:
    """Read the arguments of a training run from a dictionary, as `HfArgumentParser.parse_dict` does.

    Names, types and choices are checked; numbers may be text (`1e-4`, which YAML does not read as a number), one value
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
    self_critical = _SCST.read(values.pop(SELF_CRITICAL, False))
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


def _require_known(values: Mapping[str, Any], kinds: tuple[type, ...]) -> None:
    known = [one.name for kind in kinds for one in dataclasses.fields(kind) if one.init]
    for name in values:
        if name in known:
            continue
        argument = arguments_of_dataclasses().get(name)
        if argument is not None and argument.group == SELF_CRITICAL:
            raise ValueError(f"`--{name}` belongs to self-critical training: pass --scst too.")
        raise ValueError(f"There is no argument `{name}`.{did_you_mean(name, known)}")


def _fields_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    known = arguments_of_dataclasses()
    names = [one.name for one in dataclasses.fields(kind) if one.init and one.name in values]
    return {name: known[name].read(values[name]) for name in names}
