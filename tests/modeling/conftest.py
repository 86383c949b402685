"""Models and checkpoints for the checks of an architecture."""

import pytest

TOPICS = (
    *("case", "configuration", "deployment", "forward", "generation", "options", "saving", "search", "training"),
    "views",
)
pytest.register_assert_rewrite("tests.comparisons", *(f"tests.modeling.common_{topic}" for topic in TOPICS))

from tests.comparisons import place  # noqa: E402, F401

from .common_saving import results_of, run_fresh_process  # noqa: E402


@pytest.fixture(scope="class")
def model(request):
    """Return one model for all checks of an architecture; a check that changes it uses a copy."""
    return request.cls().make_model()


@pytest.fixture(scope="class")
def checkpoint(request, model, once_a_run):
    """Return a directory with the saved model and its processor."""

    def fill(folder):
        model.save_pretrained(folder)
        request.cls().make_processor().save_pretrained(folder)

    return once_a_run(f"{request.module.__name__}.{request.cls.__name__}", fill)


@pytest.fixture(scope="class")
def fresh_process(request, model, checkpoint, fork_server, once_a_run):
    """Return the results of a fresh process with the checkpoint; one process serves many checks."""

    def fill(folder):
        run_fresh_process(fork_server, request.cls(), model, checkpoint, folder)

    return results_of(once_a_run(f"{request.module.__name__}.{request.cls.__name__}.fresh", fill))
