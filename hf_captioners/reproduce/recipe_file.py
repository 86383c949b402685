"""The file of a recipe: YAML of a limited size, its rows, the lines of its keys, and code that its arguments name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.names import read_named_values
from hf_captioners.training.parser import NAMES_FUNCTIONS, require_argument

if TYPE_CHECKING:
    import yaml

MAX_VALUES = 10_000
"""Most keys and values of a recipe, those that are repeated by aliases (`*name`) included."""
ROWS = "rows"
# A field of every configuration. `organisation/name` is a kernel of the Hub, which transformers downloads and runs.
ATTENTION = "attn_implementation"


def read_yaml(path: Path) -> "tuple[Any, yaml.Node | None]":
    """Read a YAML file.

    Returns:
        Its content, and the node of that, for `line_of`; None of an empty file.

    Raises:
        ValueError: it is no YAML, or has more than `MAX_VALUES` values, as an alias that contains itself has.
    """
    import yaml

    try:
        loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: a tenth of the time
        loader = loader_class(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if _is_larger(node, MAX_VALUES):
            raise ValueError(f"more than {MAX_VALUES:,} values, as an alias (`*name`) within what it repeats makes")
        return (None if node is None else loader.construct_document(node)), node
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or no date
        raise ValueError(f"{path} is no YAML of a recipe: {error}") from error


def row_names(path: Path) -> list[str]:
    """Return the names of the rows of a file; none of a file that has no rows or is no recipe."""
    try:
        content, _ = read_yaml(path) if path.is_file() else (None, None)
    except (OSError, ValueError):
        return []  # beside the recipe that was asked for
    rows = content.get(ROWS) if isinstance(content, dict) else None
    return [str(name) for name in rows] if isinstance(rows, dict) else []


def merge_nested(head: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with the values of a second one in place of its own; mappings within are merged likewise."""
    merged = dict(head)
    for name, value in row.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge_nested(merged[name], value) if both else value
    return merged


def _is_larger(node: Any, most: int) -> bool:
    """Return whether a tree of nodes has more than a number of them; it has no end where a node contains itself."""
    waiting, count = [node], 1
    while waiting and count <= most:
        value = getattr(waiting.pop(), "value", None)  # a list of nodes, a list of pairs of nodes, or text
        items = value if isinstance(value, list) else []
        children = [node for item in items for node in (item if isinstance(item, tuple) else (item,))]
        waiting += children
        count += len(children)
    return count > most


def line_of(node: Any, keys: Sequence[str]) -> int:
    """Return the line of a key, from 1, or of the last one on the way to it that the file itself has.

    Args:
        node: see `read_yaml`.
        keys: the keys from the top of the file to it.
    """
    line = 1
    for name in keys:
        entries = node.value if isinstance(getattr(node, "value", None), list) else []
        pair = next((one for one in entries if isinstance(one, tuple) and str(one[0].value) == name), None)
        if pair is None:
            return line
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def check_argument(place: str, name: str, value: Any, allow_code: bool) -> None:
    """Check an argument of a recipe; no code that it names is imported.

    Args:
        place: its file and line, for messages.
        name: of the argument.
        value: its value.
        allow_code: whether it may name code.

    Raises:
        ValueError: there is no such argument, it has another type, or it names code that is not allowed.
    """
    try:
        require_argument(name).read(value)
        code = None if allow_code else named_code(name, value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    if code is not None:
        raise ValueError(
            f"{place}: `{name}` names code, {code!r}, which would be run. If you trust the recipe and this code, type "
            "--allow_code (in Python, `Recipe.load(path, allow_code=True)`)."
        )


def named_code(name: str, value: Any) -> str | None:
    """Return the first function or kernel that an argument names; None if it names none."""
    if name in NAMES_FUNCTIONS:
        return next((one for one in require_argument(name).read(value) or () if ":" in one), None)
    if name == "model_config" and value is not None:
        fields: Mapping[str, Any] = read_named_values(value, name)
        kernel = str(fields.get(ATTENTION, ""))
        return kernel if "/" in kernel else None
    return None
