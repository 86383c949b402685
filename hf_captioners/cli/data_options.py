"""Options of a data set, as they are typed: `protocol=r2gen max_views=2 sections=[findings,impression]`."""

from collections.abc import Iterable
from typing import Any


def read_options(entries: Iterable[str], flag: str) -> dict[str, Any]:
    """Read `name=value` entries; values are YAML, so that numbers, lists and true are what they look like.

    Args:
        entries: what was typed.
        flag: the argument that they were typed behind, for messages.

    Raises:
        ValueError: an entry has no `=`, or its value is no YAML.
    """
    import yaml

    options = {}
    for entry in entries:
        name, sign, value = entry.partition("=")
        if not sign:
            raise ValueError(f"`{flag}` has the entry {entry!r}; expected NAME=VALUE, as image_dir=photos.")
        try:
            options[name.replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"`{flag}` has the entry {entry!r}, whose value cannot be read: {error}") from error
    return options
