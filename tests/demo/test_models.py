"""The labels that the vision model of the demonstration learns from, and what it learns in a few steps."""

import numpy as np
import pytest

from hf_captioners.data.scene_drawing import PAINT
from hf_captioners.data.scene_world import COLOURS, INVERSE, SHAPES
from hf_captioners.data.scenes import draw_located
from hf_captioners.demo.models import LABELS, WHERE, _cells_of_scene, train_backbone
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL

SIDE = 64


def test_boxes_hold_the_pixels_of_their_objects():
    """In each box there is the colour of its group; outside of all boxes there is only background."""
    for scene, image, objects in draw_located(60, SIDE, seed=3):
        assert [sum(one.group == index for one in objects) for index in range(len(scene.groups))] == [
            group.count for group in scene.groups
        ]
        pixels, outside = np.asarray(image, dtype=float), np.ones((SIDE, SIDE), dtype=bool)
        for one in objects:
            left, top, right, bottom = (np.array(one.box) * SIDE).round().astype(int)
            distance = np.abs(pixels[top:bottom, left:right] - PAINT[scene.groups[one.group].colour]).max(-1)
            assert (distance < 20).mean() > 0.1, f"{scene.describe()}: {one}"
            outside[max(0, top - 3) : bottom + 3, max(0, left - 3) : right + 3] = False
        assert (np.abs(pixels - PAINT[scene.background]).max(-1) < 20)[outside].all(), scene.describe()


def test_cells_have_the_labels_of_their_objects():
    """Each group has the cells of its objects; of two objects on a cell, the smaller one counts."""
    seen = set()
    for scene, _, objects in draw_located(60, SIDE, seed=3):
        labels = dict(zip(LABELS, _cells_of_scene(scene, objects, 4), strict=True))
        for index, group in enumerate(scene.groups):
            own = (labels["colour"] == COLOURS.index(group.colour)) & (labels["shape"] == SHAPES.index(group.shape))
            assert own.any() and (labels["object"][own] == 1).all() and (labels["count"][own] + 1 == group.count).all()
            where = WHERE.index(INVERSE[scene.where] if index else scene.where)
            assert (labels["where"][own] == where).all(), scene.describe()
        empty = labels["object"] == 0
        assert all((labels[name][empty] == IGNORED_LABEL).all() for name in LABELS if name != "object")
        inner, *_ = sorted(objects, key=lambda one: one.box[2] - one.box[0])
        row, column = (int((inner.box[axis] + inner.box[axis + 2]) / 2 * 4) for axis in (1, 0))
        assert labels["colour"][row, column] == COLOURS.index(scene.groups[inner.group].colour)
        seen.add(scene.where)
    assert "inside" in seen


@pytest.mark.slow
def test_the_vision_model_learns():
    """After 60 steps of new images, whether there is an object and its colour; chance is 0.5 to 0.6 and 0.17."""
    _, accuracy = train_backbone(1920, SIDE, 0)
    assert set(accuracy) == set(LABELS)
    assert accuracy["object"] > 0.8 and accuracy["colour"] > 0.6, accuracy
