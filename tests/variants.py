"""Variants of a test of which `make test` runs a few and `make test-all` all."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_unless(is_fast: Callable[[Any], bool], values: Iterable[Any]) -> list[Any]:
    """Return parameters, marked as slow where a function does not call them fast."""
    return [value if is_fast(value) else pytest.param(value, marks=pytest.mark.slow) for value in values]
