"""Tests of transformers' common suite that do not apply to captioners, with the capability that is missing.

An entry whose test passes is reported, and fails the run.
"""

from fnmatch import fnmatch
from typing import NamedTuple

MODELS, PROCESSOR, IMAGES = ("pixels", "regions"), ("processor",), ("image processor",)
SUITES = (*MODELS, *PROCESSOR)


class Entry(NamedTuple):
    """Tests that do not apply.

    Args:
        test: name of the test; `*` stands for any characters.
        suites: the suites in which it does not apply.
        reason: the capability that captioners lack, or the assumption of the test.
        architectures: those it does not apply to; None: all.
    """

    test: str
    suites: tuple[str, ...]
    reason: str
    architectures: tuple[str, ...] | None = None


NOT_APPLICABLE = [
    Entry("test_training_overfit", MODELS, "trains causal language models only: other modalities raise ValueError"),
]


def reason_of(architecture: str, suite: str, test: str) -> str | None:
    """Return why a test does not apply to an architecture; None if it applies."""
    for entry in NOT_APPLICABLE:
        is_named = entry.architectures is None or architecture in entry.architectures
        if suite in entry.suites and is_named and fnmatch(test, entry.test):
            return entry.reason
    return None
