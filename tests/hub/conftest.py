"""A Hub on the loopback address, and a captioner to push."""

import shutil

import pytest

from tests.comparisons import place  # noqa: F401
from tests.modeling.one_thread import one_thread  # noqa: F401

from .captioner_cases import save_captioner
from .loopback_hub import loopback_hub  # noqa: F401


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A captioner as training leaves it, with files that must not be pushed."""
    directory = tmp_path_factory.mktemp("saved") / "captioner"
    save_captioner("visualgpt", directory)
    for name in ("training_args.bin", "optimizer.pt", "my_script.py", "notes.txt", ".env"):
        (directory / name).write_text("secret")
    (directory / "features").mkdir()
    (directory / "features" / "regions.safetensors").write_bytes(b"much")
    return directory


@pytest.fixture
def captioner(saved, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(saved, tmp_path / "captioner")


@pytest.fixture
def hub(loopback_hub, monkeypatch, tmp_path):  # noqa: F811
    """The Hub that this process uses, signed in as its user."""
    loopback_hub.use_here(monkeypatch, tmp_path / "home")
    return loopback_hub
