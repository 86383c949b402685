"""Fixtures: generated images, and a separate cache for each test."""

from functools import partial

import datasets
import numpy as np
import PIL.Image
import pytest

from hf_captioners.data import load_captions


@pytest.fixture(autouse=True)
def quiet_progress():
    datasets.disable_progress_bars()


@pytest.fixture
def load(tmp_path):
    """`load_captions` with a cache for this test only."""
    return partial(load_captions, cache_dir=tmp_path / "cache")


@pytest.fixture
def image():
    """Write a small image with colours that depend on its name."""

    def write(path, size=(24, 16), mode="RGB"):
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(list(path.name.encode()))
        pixels = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).convert(mode).save(path)
        return path

    return write
