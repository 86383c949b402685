"""Names in arguments: nearest valid name, `NAME=VALUE` settings, paths, `module:function`."""

import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def load_function(path: str, kind: str) -> Callable[..., Any]:
    """Import a function by its path; the current folder is searched for modules, too.

    Args:
        path: `module:function`, for example `my_module:my_metric` or `package.module:function`.
        kind: what the function is, for messages: `"metric"` or `"reward"`.

    Raises:
        ValueError: the path has another form, there is no such module or function, or it cannot be called. The message
            has the nearest name.
    """
    name, colon, attribute = path.partition(":")
    if not colon or not name or not attribute:
        raise ValueError(f"The {kind} {path!r} has no form that is known: write module:function.")
    module = _import(name, path, kind)
    if not hasattr(module, attribute):
        functions = [part for part, value in vars(module).items() if callable(value) and not part.startswith("_")]
        raise ValueError(
            f"There is no {attribute!r} in {module.__file__ or name}, for the {kind} {path!r}."
            f"{did_you_mean(attribute, functions)}"
        )
    function = getattr(module, attribute)
    if not callable(function):
        raise ValueError(f"The {kind} {path!r} is {function!r}, expected a function.")
    return function


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the valid name nearest to a misspelt one, ignoring case and dashes; None if none is near."""
    plain: dict[str, str] = {}
    for one in known:
        plain.setdefault(_plain(one), one)
    near = difflib.get_close_matches(_plain(name), plain, n=1)
    # `epochs` is not near `num_train_epochs`, but is one of its words.
    near = near or sorted((one for one in plain if _plain(name) in one.split("_")), key=len)
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")


def listed(names: Iterable[str], most: int = 16) -> str:
    """Join names with commas, up to a maximum number."""
    known = list(names)
    return ", ".join(known if len(known) <= most else [*known[:most], f"... ({len(known)} in all)"])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean ...?` with the nearest valid name; empty if none is near."""
    near = nearest_name(name, known)
    return "" if near is None else f" Did you mean `{near}`?"


def near_path(text: str | os.PathLike[str]) -> str:
    """Return ` Did you mean ...?` with the nearest existing path, or the folder that is missing."""
    path = Path(text)
    parent = path.parent
    if not parent.is_dir():
        return f" There is no folder {parent} either.{near_path(parent)}" if parent != path else ""
    near = did_you_mean(path.name, (one.name for one in parent.iterdir()))
    return near if str(parent) == "." else re.sub("`(.*)`", lambda found: f"`{parent / found[1]}`", near)


def read_named_values(entries: Mapping[str, Any] | Iterable[str] | str, argument: str) -> dict[str, Any]:
    """Parse `name=value` entries.

    A value is read as JSON, which includes `1e-4`, or else as YAML, which includes `[a, b]` and plain text.

    Args:
        entries: the entries, or a mapping of names to values that are read already. `-` in a name is read as `_`.
        argument: name of the argument that has them, for messages.

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
                f"`{argument}` has the entry {entry!r}, expected NAME=VALUE: write name=value, without blanks."
            )
        values[name.replace("-", "_")] = _read_value(text, entry, argument)
    return values


def _read_value(text: str, entry: str, argument: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"`{argument}` has the entry {entry!r}, whose value cannot be read: {error}") from error


def _import(name: str, path: str, kind: str) -> ModuleType:
    here = os.getcwd()
    sys.path.append(here)  # last: a file of the current folder does not hide an installed package
    try:
        importlib.invalidate_caches()  # the file may be new
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, and something that it imports does not
        modules = [one.stem for one in Path(here).glob("*.py")]
        raise ValueError(
            f"There is no module {name!r}, neither in the current folder {here} nor installed, for the {kind} "
            f"{path!r}.{did_you_mean(name, modules)}"
        ) from error
    finally:
        sys.path.remove(here)
