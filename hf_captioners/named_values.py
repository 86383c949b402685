"""Settings as they are typed: `protocol=r2gen max_views=2 sections=[findings,impression] learning_rate=1e-4`."""

import json
from collections.abc import Iterable, Mapping
from typing import Any


def read_named_values(entries: Mapping[str, Any] | Iterable[str] | str, flag: str) -> dict[str, Any]:
    """Read `name=value` entries.

    A value is read as JSON, which includes `1e-4`, or else as YAML, which includes `[a, b]` and plain text.

    Args:
        entries: the entries, or a mapping of names to values that are read already. `-` in a name is read as `_`.
        flag: name of the argument, for messages.

    Raises:
        ValueError: an entry has no `=`, or its value cannot be read.
    """
    if isinstance(entries, Mapping):
        return {str(name).replace("-", "_"): value for name, value in entries.items()}
    values = {}
    for entry in [entries] if isinstance(entries, str) else entries:
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
