"""The folder of a small captioner of photographs, see NOTICE for the terms of its weights."""

from pathlib import Path


def folder() -> Path:
    """Return the folder of the captioner."""
    return Path(__file__).parent / "captioner"
