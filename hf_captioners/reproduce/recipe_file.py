"""Recipe files: YAML of a limited size, its rows, line numbers of its keys, and code that its arguments name."""

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
    """Read a YAML file of limited size.

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
    """Return the names of the rows in a recipe file; [] if it has no rows or is no recipe."""
    try:
        content, _ = read_yaml(path) if path.is_file() else (None, None)
    except (OSError, ValueError):
        return []  # beside the recipe that was asked for
    rows = content.get(ROWS) if isinstance(content, dict) else None
    return [str(name) for name in rows] if isinstance(rows, dict) else []


def merge_nested(head: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a mapping into another, whose values it overrides; nested mappings are merged likewise."""
    merged = dict(head)
    for name, value in row.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge_nested(merged[name], value) if both else value
    return merged


def _is_larger(node: Any, limit: int) -> bool:
    """Return True if a tree of YAML nodes has more than `limit` nodes, as one that contains itself has."""
    waiting, count = [node], 1
    while waiting and count <= limit:
        value = getattr(waiting.pop(), "value", None)  # a list of nodes, a list of pairs of nodes, or text
        items = value if isinstance(value, list) else []
        children = [node for item in items for node in (item if isinstance(item, tuple) else (item,))]
        waiting += children
        count += len(children)
    return count > limit


def line_of(node: Any, keys: Sequence[str]) -> int:
    """Return the line number of a key, from 1; of its nearest parent if the file itself has no such key.

    Args:
        node: see `read_yaml`.
        keys: the keys from the top of the file to it.
    """
    line = 1
    for name in keys:
        entries = node.value if isinstance(getattr(node, "value", None), list) else []
        pair = next((entry for entry in entries if isinstance(entry, tuple) and str(entry[0].value) == name), None)
        if pair is None:
            return line
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def check_argument(place: str, name: str, value: Any, allow_code: bool) -> None:
    """Check the name and value of a recipe's argument; no code that it names is imported.

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
    """Return the first `module:function` or Hub kernel that an argument names; None without any."""
    if name in NAMES_FUNCTIONS:
        return next((text for text in require_argument(name).read(value) or () if ":" in text), None)
    if name == "model_config" and value is not None:
        fields: Mapping[str, Any] = read_named_values(value, name)
        kernel = str(fields.get(ATTENTION, ""))
        return kernel if "/" in kernel else None
    return None
