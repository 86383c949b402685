"""Settings as they are typed: `protocol=r2gen max_views=2 sections=[findings,impression] learning_rate=1e-4`."""

import json
from collections.abc import Iterable
from typing import Any


def read_named_values(entries: Iterable[str], flag: str) -> dict[str, Any]:
    """Read `name=value` entries; numbers, lists and true are what they look like, all else is text.

    A value is read as JSON, which knows `1e-4`, and where it is none as YAML, which knows `[a, b]`.

    Args:
        entries: what was typed; `-` in a name is read as `_`.
        flag: the argument that they were typed behind, for messages.

    Raises:
        ValueError: an entry has no `=`, or its value cannot be read.
    """
    values = {}
    for entry in entries:
        name, sign, text = entry.partition("=")
        if not sign:
            raise ValueError(
                f"`{flag}` has the entry {entry!r}, expected NAME=VALUE; write name=value without blanks around `=`."
            )
        values[name.replace("-", "_")] = _read(text, entry, flag)
    return values


def _read(text: str, entry: str, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"`{flag}` has the entry {entry!r}, whose value cannot be read: {error}") from error
