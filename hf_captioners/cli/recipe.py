"""Arguments from a YAML file: `hf-captioners train recipe.yaml --num_train_epochs 3`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def with_recipe(arguments: Sequence[str]) -> list[str]:
    """Put the contents of a YAML file, if it is the first argument, in front of the others, which override it.

    Args:
        arguments: what was typed behind the command.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds no mapping.
    """
    if not arguments or not arguments[0].endswith((".yaml", ".yml")):
        return list(arguments)
    import yaml

    path = Path(arguments[0])
    if not path.is_file():
        raise FileNotFoundError(f"There is no recipe {path}.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} holds a {type(recipe).__name__}, expected lines of the form `name: value`.")
    return [text for name, value in recipe.items() for text in as_arguments(name, value)] + list(arguments[1:])


def as_arguments(name: str, value: Any) -> list[str]:
    """The arguments that say the same as one entry: a list is several values, a mapping several `key=value`."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [f"--{name}", *(f"{key}={json.dumps(entry)}" for key, entry in value.items())]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(str(entry) for entry in values)]
