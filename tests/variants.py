"""Test parameters of which `make test` runs a few and `make test-all` runs all."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_unless(is_fast: Callable[[Any], bool], values: Iterable[Any]) -> list[Any]:
    """Return test parameters, marked as slow unless a function selects them."""
    return [value if is_fast(value) else pytest.param(value, marks=pytest.mark.slow) for value in values]
