"""Truth of `benchmarks/attention_on_objects.py`: the pixels of objects, and the nouns that name them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from hf_captioners.data.scenes import draw_example

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attention_on_objects.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("attention_on_objects", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))  # it imports others of that folder
        spec.loader.exec_module(module)
    return module


def test_every_noun_names_its_group_and_its_pixels(benchmark):
    """Each caption names every group once; the pixels of a group are on its side of the image."""
    sides = {"left of": np.s_[:, 32:], "right of": np.s_[:, :32], "above": np.s_[32:], "below": np.s_[:32]}
    compared = 0
    for index in range(60):
        scene, image, captions = draw_example(0, index, "test", 64)
        for caption in captions:
            words = caption.lower().rstrip(".").split()
            found = benchmark.named_groups(words, scene)
            assert sorted(group for _, group in found) == list(range(len(scene.groups))), caption
        if benchmark.usable(scene) and scene.where in sides:
            pixels = benchmark.object_pixels(scene, image, 0)
            away = pixels[sides[scene.where]].sum() / pixels.sum()
            assert away < 0.1, f"{scene.describe()}: {away:.0%} of its pixels are on the other side"
            compared += 1
    assert compared > 10


def test_shares_and_figures(benchmark):
    pixels = np.zeros((4, 4), dtype=bool)
    pixels[:2, :2] = True
    boxes = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0, 1, 1]])
    np.testing.assert_allclose(benchmark.shares(pixels, boxes), [1, 0, 0.25])
    row = {"on": 0.3, "even": 0.1, "strongest": True, "strongest_even": 0.2, "other": 0.1, "other_even": 0.1}
    found = benchmark.figures([[row], [{**row, "other": None, "other_even": None, "strongest": False}]])
    assert found["times_even"] == 3 and found["named_of_both"] == 0.75 and found["strongest"] == 0.5
