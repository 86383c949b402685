"""Models and checkpoints for the checks of an architecture."""

import pytest

TOPICS = ("case", "configuration", "deployment", "forward", "generation", "saving", "search", "training", "views")
pytest.register_assert_rewrite("tests.comparisons", *(f"tests.modeling.common_{topic}" for topic in TOPICS))

from tests.comparisons import place  # noqa: E402, F401

from .common_saving import run_fresh_process  # noqa: E402
from .one_thread import one_thread  # noqa: E402, F401


@pytest.fixture(scope="class")
def model(request):
    """Return one model for all checks of an architecture; a check that changes it uses a copy."""
    return request.cls().make_model()


@pytest.fixture(scope="class")
def checkpoint(request, model, tmp_path_factory):
    """Return a directory with the saved model and its processor."""
    directory = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(directory)
    request.cls().make_processor().save_pretrained(directory)
    return directory


@pytest.fixture(scope="class")
def fresh_process(request, model, checkpoint, fork_server, tmp_path_factory):
    """Return the results of a fresh process with the checkpoint; one process serves many checks."""
    return run_fresh_process(fork_server, request.cls(), model, checkpoint, tmp_path_factory.mktemp("fresh"))
