"""Checks of the inputs of metrics. Every error states the value found, the expected value and a remedy."""

from collections.abc import Sequence
from typing import Any

_EXAMPLE = 'For example predictions=["a cat"], references=[["a cat sits", "one cat"]].'


def check_predictions(predictions: Sequence[Any]) -> None:
    """Check that `predictions` is a sequence of strings.

    Raises:
        TypeError: `predictions` is a string, or one of its items is not a string.
        ValueError: there is no prediction.
    """
    if isinstance(predictions, str):
        raise TypeError(f"`predictions` is the string {predictions!r}, expected a list of strings. {_EXAMPLE}")
    if not len(predictions):
        raise ValueError(f"`predictions` is empty, expected one caption per image. {_EXAMPLE}")
    for number, caption in enumerate(predictions):
        if not isinstance(caption, str):
            raise TypeError(f"predictions[{number}] is {caption!r} ({type(caption).__name__}), expected a string.")


def check_references(references: Sequence[Any]) -> None:
    """Check that `references` is a sequence of non-empty sequences of captions (strings or token ids).

    Raises:
        TypeError: a string was passed where a list of captions is expected.
        ValueError: there are no references, or an image has none.
    """
    if isinstance(references, str):
        raise TypeError(f"`references` is the string {references!r}, expected a list of lists of strings. {_EXAMPLE}")
    if not len(references):
        raise ValueError(f"`references` is empty, expected a list of captions per image. {_EXAMPLE}")
    for number, captions in enumerate(references):
        if isinstance(captions, str):
            raise TypeError(
                f"references[{number}] is the string {captions!r}, expected a list of strings. With one reference "
                f"per image pass references=[[caption] for caption in captions]."
            )
        if not len(captions):
            raise ValueError(f"references[{number}] is empty, expected at least one caption. Leave the image out.")


def check_reference_strings(references: Sequence[Sequence[Any]]) -> None:
    """Check that every reference caption is a string.

    Raises:
        TypeError: a reference is not a string.
    """
    for number, captions in enumerate(references):
        for place, caption in enumerate(captions):
            if not isinstance(caption, str):
                kind = type(caption).__name__
                raise TypeError(f"references[{number}][{place}] is {caption!r} ({kind}), expected a string.")


def check_pairs(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Check that predictions and references are well formed and equally many.

    Raises:
        TypeError: a caption is not a string, or a string was passed where a list is expected.
        ValueError: a list is empty, or the lengths differ.
    """
    check_predictions(predictions)
    check_references(references)
    check_reference_strings(references)
    if len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} predictions and {len(references)} lists of references, expected one list of "
            f"references per prediction, in the same order."
        )
