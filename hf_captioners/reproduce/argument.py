"""An argument of a training run: its name, types, choices and help; nothing is imported for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_captioners.names import did_you_mean, listed

NULL = "null"
SELF_CRITICAL = "scst"
# Arguments that are typed as NAME=VALUE; other mappings are typed as JSON.
NAMED_VALUES = ("model_config", "processor_config", "data_options")
EXPECTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "mapping": "a mapping"}
EXPECTED |= {"str": "text (put it into quotes)", "null": "null", "list[str]": "a list", "list[float]": "a list"}
TRUE, FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")  # as transformers reads them


@dataclass(frozen=True)
class Argument:
    """An argument of a training run.

    Args:
        name: of the field, and of the flag.
        kinds: types of its values: `null`, `bool`, `int`, `float`, `mapping`, `list[str]`, `list[float]`, `str`.
        choices: the texts that it may be, if they are known.
        default: what it is if it is not given, as text.
        help: what it does.
        group: `model`, `data`, `training`, `transformers` (of `Seq2SeqTrainingArguments`), `scst` or `test`.
        added: whether what is typed is added to what a recipe has, instead of replacing it.
    """

    name: str
    kinds: tuple[str, ...]
    choices: tuple[str, ...]
    default: str
    help: str
    group: str
    added: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return any(kind.startswith("list") for kind in self.kinds)

    def read(self, value: Any) -> Any:
        """Return a value as its type wants it; numbers and truth values may be text.

        Raises:
            ValueError: it is of a different type, or none of the choices. The message has the nearest one.
        """
        if value is None and "null" in self.kinds:
            return None
        if self.name in NAMED_VALUES and isinstance(value, Mapping):
            return dict(value)
        if value == [None]:  # `null` is typed
            return self.read(None)
        if self.choices:
            return [self._chosen(one) for one in _items(value)] if self.is_list else self._chosen(value)
        # Text is the last choice: what can be a number is checked as such.
        for kind in sorted(self.kinds, key=lambda kind: kind == "str"):
            try:
                return _READERS[kind](value)
            except (TypeError, ValueError):
                continue
        expected = " or ".join(EXPECTED[kind] for kind in self.kinds)
        raise ValueError(f"`{self.name}` is {value!r}, expected {expected}.")

    def _chosen(self, value: Any) -> str:
        if str(value) in self.choices:
            return str(value)
        null = ["null"] if "null" in self.kinds else []
        raise ValueError(
            f"`{self.name}` is {value!r}, expected one of {listed([*self.choices, *null])}."
            f"{did_you_mean(str(value), self.choices)}"
        )


def _null(value: Any) -> None:
    if value is not None:
        raise TypeError


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in (*TRUE, *FALSE):
        raise ValueError
    return text in TRUE


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, bool | Mapping | list) or value is None:
        raise TypeError
    return str(value)


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        raise TypeError
    return dict(value)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


_READERS: dict[str, Any] = {
    "null": _null,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "mapping": _mapping,
    "str": _text,
    "list[str]": lambda value: [_text(item) for item in _items(value)],
    "list[float]": lambda value: [_float(item) for item in _items(value)],
}
