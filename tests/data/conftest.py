"""Pictures made by code, a cache for each test, and real data sets where there are any."""

import os
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import pytest

from hf_captioners.data import load_captions

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def quiet_progress():
    datasets.disable_progress_bars()


@pytest.fixture
def load(tmp_path):
    """`load_captions` with a cache that only this test has."""
    return partial(load_captions, cache_dir=tmp_path / "cache")


@pytest.fixture
def picture():
    """Write a small picture whose colours depend on its name."""

    def write(path, size=(24, 16), mode="RGB"):
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(list(path.name.encode()))
        pixels = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).convert(mode).save(path)
        return path

    return write


@pytest.fixture(scope="session")
def material():
    """Folder of real data sets, for tests that look at the world; they are skipped where it is not there."""
    folder = Path(os.environ.get("HF_CAPTIONERS_DATA_DIR") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set HF_CAPTIONERS_DATA_DIR)")
    return folder
