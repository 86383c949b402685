"""Limits on the text growth by `tokenizer.json` rules, checked before a library applies the rules."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RULES = ("normalizer", "pre_tokenizer", "decoder")
MAX_GROWTH = 100.0  # a text becomes this many times as long at most; rules of known tokenizers only shorten it


def require_limited_growth(path: Path) -> None:
    """Check that a tokenizer's replacement rules cannot blow up a short text, as 30 doublings do.

    Args:
        path: its `tokenizer.json`; one that is missing or no JSON is left to the library that reads it.

    Raises:
        ValueError: they do.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    for name in RULES if isinstance(content, dict) else ():
        growth = 1.0
        for replacement in replacements(content.get(name)):
            growth *= max(1.0, growth_by(replacement))
            if growth > MAX_GROWTH:
                raise ValueError(
                    f"{path} is hostile or damaged: the replacements of its `{name}` make a text more than "
                    f"{MAX_GROWTH:.0f} times as long. Use a tokenizer that you trust."
                )


def replacements(rules: Any) -> Iterator[dict[str, Any]]:
    """Yield the rules that replace or add text, also in nested sequences."""
    nested = [rules]
    while nested:
        rule = nested.pop()
        if isinstance(rule, dict):
            if isinstance(rule.get("content", rule.get("prepend")), str):
                yield rule
            nested += rule.values()
        elif isinstance(rule, list):
            nested += rule


def growth_by(rule: dict[str, Any]) -> float:
    """Return the maximum growth factor of a text under a rule."""
    pattern, new = rule.get("pattern"), str(rule.get("content", rule.get("prepend")))
    old = pattern.get("String") if isinstance(pattern, dict) else None
    # A regular expression may match single characters, and an empty text between all characters.
    return len(new) / len(old) if isinstance(old, str) and old else len(new) + (pattern == {"String": ""})
