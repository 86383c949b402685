"""Fixtures: local Hub server, and a captioner to push."""

import shutil

import pytest

from tests.comparisons import place  # noqa: F401

from .captioner_cases import save_captioner
from .loopback_hub import loopback_hub  # noqa: F401


@pytest.fixture(scope="session")
def saved(once_a_run):
    """A captioner as saved by training, with files that must not be pushed."""

    def fill(folder):
        save_captioner("visualgpt", folder)
        for name in ("training_args.bin", "optimizer.pt", "my_script.py", "notes.txt", ".env"):
            (folder / name).write_text("secret")
        (folder / "features").mkdir()
        (folder / "features" / "regions.safetensors").write_bytes(b"much")

    return once_a_run("trained_captioner", fill)


@pytest.fixture
def captioner(saved, tmp_path):
    """A copy of the captioner that a test may change."""
    return shutil.copytree(saved, tmp_path / "captioner")


@pytest.fixture
def hub(loopback_hub, monkeypatch, tmp_path):  # noqa: F811
    """The local Hub server, used by this process and signed in."""
    loopback_hub.use_here(monkeypatch, tmp_path / "home")
    return loopback_hub
