"""The arguments of a training run as a list that is read without importing torch or transformers.

`arguments.json` has the name, types, choices, default and help of every field of the dataclasses of arguments.
`python -m hf_captioners.cli.write_lists` writes it, after a field or the floor of transformers changed.
"""

import functools
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_captioners.names import did_you_mean

from .argument import SELF_CRITICAL, Argument

LIST = Path(__file__).with_name("arguments.json")


@functools.cache
def argument_list() -> dict[str, Argument]:
    """Return all arguments of a training run by name, those of self-critical training included."""
    content = json.loads(LIST.read_text(encoding="utf-8"))
    return {one["name"]: _from_json(one) for one in content["arguments"]}


def _from_json(entry: dict[str, Any]) -> Argument:
    return Argument(**entry | {name: tuple(entry[name]) for name in ("kinds", "choices")})


def list_is_current() -> bool:
    """Whether the list was made with the installed version of transformers, so that it has all its arguments."""
    content = json.loads(LIST.read_text(encoding="utf-8"))
    return content["transformers"] == importlib.metadata.version("transformers")


def as_json(arguments: Mapping[str, Argument]) -> str:
    """Return the content of the file of the list."""
    content = {
        "transformers": importlib.metadata.version("transformers"),
        "arguments": [asdict(argument) for argument in arguments.values()],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def require_argument(name: str, self_critical: bool = True) -> Argument:
    """Return an argument by its name.

    Args:
        name: of the argument.
        self_critical: whether the arguments of self-critical training are accepted.

    Raises:
        ValueError: there is none. The message has the nearest one.
    """
    known = argument_list()
    if name not in known and not list_is_current():
        from .dataclass_arguments import arguments_of_dataclasses  # another version of transformers may have it

        known = arguments_of_dataclasses()
    if name not in known:
        raise ValueError(f"There is no argument `{name}`.{did_you_mean(name, [*known, SELF_CRITICAL])}")
    if known[name].group == SELF_CRITICAL and not self_critical:
        raise ValueError(f"`--{name}` belongs to self-critical training: pass --scst too.")
    return known[name]
