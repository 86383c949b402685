"""Where tests find real data."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def shared_dir() -> Path:
    """Folder of real data sets; it need not exist."""
    return Path(os.environ.get("HF_CAPTIONERS_DATA_DIR") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(scope="session")
def material() -> Path:
    """Folder of real data sets, for tests that look at the world; they are skipped where it is not there."""
    if not shared_dir().is_dir():
        pytest.skip(f"no real data at {shared_dir()} (set HF_CAPTIONERS_DATA_DIR)")
    return shared_dir()
