"""The examples in the docstrings of the metrics."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import hf_captioners.metrics

MODULES = sorted(module.name for module in pkgutil.iter_modules(hf_captioners.metrics.__path__))
RESULT_TYPES = {"BleuCounts", "CaptionSupport", "ChairResult", "Score"}  # see the function that returns them


@pytest.mark.parametrize("name", ["", *MODULES])
def test_examples_run(name):
    module = importlib.import_module(f"hf_captioners.metrics.{name}".rstrip("."))
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        assert doctest.DocTestRunner().run(test).failed == 0, test.name


def test_every_public_function_and_class_has_an_example():
    """Functions of the registry are called by `compute_caption_metrics`, whose example has them by name."""
    public = {name: getattr(hf_captioners.metrics, name) for name in hf_captioners.metrics.__all__}
    public = {name: value for name, value in public.items() if inspect.isfunction(value) or inspect.isclass(value)}
    assert len(public) >= 15
    registered = {metric.function.partition(":")[2] for metric in hf_captioners.metrics.METRICS.values()}
    without = {name for name, value in public.items() if ">>> " not in (value.__doc__ or "")}
    assert without - registered == RESULT_TYPES
