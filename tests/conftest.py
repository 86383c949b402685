"""Location of the real data sets."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def shared_dir() -> Path:
    """Return the folder of real data sets, which may be missing."""
    return Path(os.environ.get("HF_CAPTIONERS_DATA_DIR") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(scope="session")
def material() -> Path:
    """Folder of real data sets; tests that need it are skipped if it is missing."""
    if not shared_dir().is_dir():
        pytest.skip(f"no real data at {shared_dir()} (set HF_CAPTIONERS_DATA_DIR)")
    return shared_dir()
