"""Counting of compared figures; `tests/conftest.py` reports them at the end of a run."""

import pytest


@pytest.fixture
def report_compared(record_property):
    """Return a function that records how many figures a test compared."""
    return lambda count: record_property("figures_compared", count)
