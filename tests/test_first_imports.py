"""Modules can be the first that a process imports: importing transformers registers the architectures half-way."""

import pytest

MODULES = [
    "loading",
    "explain.explanation",
    "hub.pushing",
    "modeling.modeling_captioning",
    "pipelines.image_captioning",
    "training.trainer",
]


@pytest.mark.parametrize("module", MODULES)
def test_imported_first(module, fork_server):
    code = f"import sys; assert 'transformers' not in sys.modules; import hf_captioners.{module}"
    done = fork_server.run(["-c", code], libraries="torch")
    assert done.returncode == 0, done.stderr[-2000:]
