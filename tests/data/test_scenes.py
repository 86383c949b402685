"""`scenes`: repeatable, without leakage, and of no use to those who do not look."""

import hashlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from hf_captioners.data import DataReport
from hf_captioners.data.scenes import caption_texts, draw_example, draw_labelled

FRESH_PROCESS = """
import hashlib, json, sys
from hf_captioners.data.scenes import draw_example
found = []
for split in ("train", "validation"):
    scene, image, captions = draw_example(3, 5, split, 64)
    found.append([scene.describe(), captions, hashlib.sha256(image.tobytes()).hexdigest()])
print(json.dumps(found))
"""
SMALL = {"train": 40, "validation": 20, "test": 20}


def drawn(split, count, seed=0):
    return [draw_example(seed, index, split, 64) for index in range(count)]


@pytest.mark.slow
def test_the_same_in_another_process():
    environment = {"PYTHONHASHSEED": "77", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(filter(None, sys.path))}
    output = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS], env=environment, capture_output=True, text=True, check=True
    ).stdout
    here = []
    for split in ("train", "validation"):
        scene, image, captions = draw_example(3, 5, split, 64)
        here.append([scene.describe(), captions, hashlib.sha256(image.tobytes()).hexdigest()])
    assert json.loads(output) == here


def test_the_world_is_pinned():
    """A scene is a promise: models and figures refer to it by seed and index."""
    scene, _, captions = draw_example(0, 0)
    assert scene.describe() == "3 large orange star left of 3 small purple circle on grey"
    assert captions[0] == "You can see three large orange stars left of three small purple discs."


def test_splits_share_nothing():
    parts = {split: drawn(split, 400) + drawn(split, 400, seed=1) for split in ("train", "validation", "test")}
    texts = set(caption_texts(2000))
    seen = {
        split: {
            "description": {scene.describe() for scene, _, _ in part},
            "contents": {scene.contents() for scene, _, _ in part},
            "caption": {caption for _, _, captions in part for caption in captions},
            "image": {image.tobytes() for _, image, _ in part},
        }
        for split, part in parts.items()
    }
    for split, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        for what in seen[split]:
            assert not seen[split][what] & seen[other][what], (split, other, what)
    assert not texts & (seen["validation"]["caption"] | seen["test"]["caption"])
    assert all(len(seen[split]["image"]) == 800 for split in seen), "every image differs from every other"


def test_five_different_captions_that_fit():
    for scene, _, captions in drawn("train", 200):
        assert len(set(captions)) == 5
        for caption in captions:
            assert all(group.colour in caption.lower() for group in scene.groups), (scene, caption)


@pytest.mark.parametrize("size", [64, 128])
def test_loads_in_both_ways(load, size):
    report = DataReport()
    loaded = load("scenes", num_images=SMALL, image_size=size, seed=4, report=report)
    assert {split: len(rows) for split, rows in loaded.items()} == SMALL and report.problems == []
    assert loaded["train"][3]["image"].size == (size, size)
    assert list(loaded["train"].column_names) == ["image_id", "image", "captions", "split", "scene", "objects"]
    streamed = list(load("scenes", split="validation", streaming=True, num_images=SMALL, image_size=size, seed=4))
    assert [row["captions"] for row in streamed] == loaded["validation"]["captions"][:]
    assert all(
        a["image"].tobytes() == b["image"].tobytes() for a, b in zip(streamed, loaded["validation"], strict=True)
    )


def test_objects_are_boxes_of_drawn_pixels(load):
    """Outside of all boxes the image is background; every edge of a box has pixels of another colour beside it."""
    rows, side = load("scenes", split="train", num_images={"train": 30}, image_size=128, seed=2), 128
    labels = rows.features["objects"].feature["label"]
    for row in rows:
        pixels = np.asarray(row["image"]).astype(int)
        painted = np.abs(pixels - pixels[0, 0]).max(-1) > 8
        covered = np.zeros_like(painted)
        names = [labels.int2str(one["label"]) for one in row["objects"]]
        assert all(name in row["scene"] for name in names)
        for one in row["objects"]:
            left, top, right, bottom = (round(edge * side, 3) for edge in one["box"])
            inside = painted[math.floor(top) : math.ceil(bottom), math.floor(left) : math.ceil(right)]
            covered[math.floor(top) : math.ceil(bottom), math.floor(left) : math.ceil(right)] = True
            rows_with, columns_with = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
            assert rows_with[0] <= 1 and len(inside) - rows_with[-1] <= 2, (row["scene"], one)
            assert columns_with[0] <= 1 and inside.shape[1] - columns_with[-1] <= 2, (row["scene"], one)
        assert not (painted & ~covered).any(), row["scene"]


def test_labels_can_be_seen_and_leak_nothing():
    labelled = draw_labelled(60, image_size=64, seed=1)
    assert [labelled.features[name].num_classes for name in ("colour", "shape", "size", "count")] == [6, 6, 2, 4]
    assert labelled[0]["image"].size == (64, 64)
    evaluation = {scene.contents() for split in ("validation", "test") for scene, _, _ in drawn(split, 300)}
    names = {name: labelled.features[name] for name in ("count", "colour", "shape")}
    shown = {" ".join(names[name].int2str(row[name]) for name in names) for row in labelled.remove_columns("image")}
    assert not shown & evaluation


def test_wrong_options_are_named(load):
    with pytest.raises(ValueError, match="`image_size` is 8; expected 32 to 512"):
        load("scenes", image_size=8)
    with pytest.raises(ValueError, match="`num_images` is .*'dev'.*expected at least one image"):
        load("scenes", num_images={"dev": 3})
    with pytest.raises(ValueError, match="expected at least one image"):
        load("scenes", num_images={"train": 0})


def test_captions_of_other_images_score_badly():
    """CIDEr-D of one caption against the four others of its image, and against those of the next image."""
    from hf_captioners.metrics import compute_caption_metrics

    captions = [found for _, _, found in drawn("validation", 300)]
    first, references = [found[0] for found in captions], [found[1:] for found in captions]
    blind = ["A red circle is to the left of a blue square."] * len(first)
    scores = {
        name: compute_caption_metrics(texts, references, metrics=("cider_d",))["cider_d"]
        for name, texts in {"own": first, "shuffled": first[1:] + first[:1], "blind": blind}.items()
    }
    print({name: round(score, 3) for name, score in scores.items()})
    assert scores["own"] > 2 and scores["shuffled"] < scores["own"] / 4 and scores["blind"] < scores["own"] / 4
