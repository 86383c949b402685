"""Tiny captioners of all architectures, built by the test cases in `tests/modeling`."""

from importlib import import_module
from pathlib import Path
from typing import Any

from hf_captioners.architectures import ARCHITECTURES
from tests.modeling.common_case import CaptionerCase
from tests.modeling.toy import TOY

NAMES = sorted({*ARCHITECTURES, TOY.name})


def case_of(name: str) -> CaptionerCase:
    """Return the test case of `tests/modeling/test_{name}.py`, which builds tiny models of an architecture.

    Raises:
        LookupError: there is none, so the architecture is not tested.
    """
    module = import_module(f"tests.modeling.test_{name}")
    model_type = ARCHITECTURES[name].model_type
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, CaptionerCase) and value.__module__ == module.__name__:
            case = value()
            if case.make_config().model_type == model_type:
                return case
    raise LookupError(f"{module.__file__} has no test class whose `make_config` makes a {model_type}.")


def save_captioner(name: str, directory: Path, **fields: Any) -> tuple[CaptionerCase, Any]:
    """Save a tiny model and its processor; return the test case and the model."""
    case = case_of(name)
    model = case.make_model(**fields)
    model.save_pretrained(directory)
    case.make_processor().save_pretrained(directory)
    return case, model
