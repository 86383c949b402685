"""Extraction of numbers from cards, and number formats in which cards print values."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import safe_open

# Numbers that are not results: the year of the citation, "times 100", names of metrics, and marks of the card.
OF_THE_TEXT = re.compile(r"CVPR \d+|times 100|BLEU-\d|BLEU-\d, |sigma 6|<!--.*?-->|\]\[0\]|\[0\]|```.*?```", re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)*")


def numbers_of(text: str) -> set[str]:
    """Return all numbers in a text, as printed."""
    return {found.rstrip(",") for found in NUMBER.findall(OF_THE_TEXT.sub(" ", text))}


def forms_of(value: Any) -> set[str]:
    """Return all forms in which a card may print a value."""
    if isinstance(value, bool) or value is None:
        return set()
    if isinstance(value, str):
        return numbers_of(value)
    if isinstance(value, dict):
        return set().union(*map(forms_of, value.values()), *map(forms_of, value.keys()))
    if isinstance(value, list):
        return set().union(*map(forms_of, value))
    forms = {f"{value:.0f}", f"{value:.2f}", f"{value:.4f}", f"{value:,}", repr(value), repr(abs(value))}
    return forms | {f"{value / 60:.0f}", f"{value / 3600:.1f}"}


def numbers_in_files(paths: Iterable[Path]) -> set[str]:
    """Return the numbers in JSON files, and the parameter counts of weight files."""
    known: set[str] = set()
    for path in paths:
        if path.suffix == ".safetensors":
            with safe_open(path, "np") as file:
                total = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
            known.add(f"{total:,}")
        else:
            known |= forms_of(json.loads(path.read_text()))
    return known
