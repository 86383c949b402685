"""The flags of all arguments of a training run, from the list of `hf_captioners.reproduce.argument_list`."""

import argparse
from typing import Any

from hf_captioners.reproduce.argument import NULL, Argument
from hf_captioners.reproduce.argument_list import argument_list

TITLES = {
    "model": "captioner",
    "data": "data",
    "training": "training",
    "scst": "self-critical training, with --scst",
    "test": "test after training",
    "transformers": "arguments of transformers' Seq2SeqTrainer",
}
PLACEHOLDERS = {"int": "N", "float": "X", "mapping": "JSON"}


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each argument of a training run. What is not typed is missing in the result."""
    arguments = argument_list().values()
    for name, title in TITLES.items():
        group = parser.add_argument_group(title)
        for argument in arguments:
            if argument.group == name:
                _add_flag(group, argument)


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """Add the flag that allows recipes to name code, see `Recipe.load`."""
    parser.add_argument(
        "--allow_code",
        action="store_true",
        help="run code that recipes from files name, such as rewards and metrics module:function",
    )


def _add_flag(group: Any, argument: Argument) -> None:
    flag, missing = f"--{argument.name}", argparse.SUPPRESS
    options: dict[str, Any] = {"default": missing, "help": _help_of(argument).replace("%", "%%")}
    if argument.kinds[0] == "bool":
        group.add_argument(flag, type=_reader(argument), nargs="?", const=True, metavar="BOOL", **options)
        if argument.default == "True":
            group.add_argument(
                f"--no_{argument.name}", dest=argument.name, action="store_false", default=missing, help=missing
            )
        return
    options["metavar"] = next((PLACEHOLDERS[kind] for kind in argument.kinds if kind in PLACEHOLDERS), "TEXT")
    if argument.is_list:
        action = "extend" if argument.added else "store"
        group.add_argument(flag, type=_item, nargs="+", action=action, **options)
    else:
        group.add_argument(flag, type=_reader(argument), **options)


def _reader(argument: Argument) -> Any:
    return lambda text: argument.read(_item(text))


def _item(text: str) -> str | None:
    return None if text == NULL else text


def _help_of(argument: Argument) -> str:
    text = argument.help.rstrip(".")
    if argument.choices:
        text += f": {', '.join(argument.choices)}"
    return text if argument.default in (NULL, "") or "default" in text else f"{text}; default: {argument.default}"
