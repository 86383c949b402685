"""Data sets of `load_captions` have the same rows and images after `push_to_hub` and `load_dataset`."""

import json
import os

import numpy as np
import PIL.Image
import pytest

ROUND_TRIP = """
import hashlib, json, shutil, sys
import datasets
from hf_captioners.data import load_captions

def digests(rows):
    column = "images" if "images" in rows.features else "image"
    kind = datasets.List(datasets.Image(decode=False)) if column == "images" else datasets.Image(decode=False)
    for shown, stored in zip(rows, rows.cast_column(column, kind)):
        views, files = (row[column] if column == "images" else [row[column]] for row in (shown, stored))
        pixels = [[view.mode, view.size, hashlib.sha256(view.tobytes()).hexdigest()] for view in views]
        data = [file["bytes"] if file["bytes"] is not None else open(file["path"], "rb").read() for file in files]
        others = {name: value for name, value in shown.items() if name != column}
        yield [others, pixels, [hashlib.sha256(one).hexdigest() for one in data]]

name, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
loaded = load_captions(name, folder, **options)
before = {split: list(digests(rows)) for split, rows in loaded.items()}
loaded.push_to_hub("tester/images", private=True)
shutil.rmtree(folder)  # the copy on the Hub must be complete
again = datasets.load_dataset("tester/images")
after = {split: list(digests(rows)) for split, rows in again.items()}
assert after == before, (before, after)
assert {split: rows.features for split, rows in again.items()} == {s: rows.features for s, rows in loaded.items()}
if "image" in again["train"].column_names:
    where = {"image_column": "image", "caption_columns": ["captions"], "id_column": "image_id"}
    for streaming in (False, True):
        rows = load_captions("by_columns", path="tester/images", split="train", streaming=streaming, **where)
        found = [(row["image_id"], row["captions"], row["image"].size) for row in rows]
        expected = [(other["image_id"], other["captions"], tuple(views[0][1])) for other, views, _ in before["train"]]
        assert found == expected, (found, expected)
print(json.dumps({split: len(rows) for split, rows in after.items()}))
"""


def draw(path, number, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (12 + number, 20, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def round_trip(loopback_hub, fork_server, tmp_path):
    def run(name, folder, **options):
        environment = os.environ | loopback_hub.environment(tmp_path / "home")
        ran = fork_server.run(["-c", ROUND_TRIP, name, folder, json.dumps(options)], env=environment)
        assert ran.returncode == 0, ran.stderr[-3000:]
        return json.loads(ran.stdout.splitlines()[-1])

    return run


def test_a_folder_of_images(round_trip, tmp_path, loopback_hub):
    for split, count in (("train", 5), ("validation", 2)):
        lines = []
        for number in range(count):
            name, mode = [("a.jpg", "RGB"), ("b.png", "L"), ("c.png", "RGBA")][number % 3]
            draw(tmp_path / "data" / split / f"{number}{name}", number, mode)
            captions = [f"Image {number}, \u201cquoted\u201d.", "caf\u00e9"][: 1 + number % 2]
            lines.append(json.dumps({"file_name": f"{number}{name}", "captions": captions, "source": f"s{number}"}))
        (tmp_path / "data" / split / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    assert round_trip("caption_folder", tmp_path / "data") == {"train": 5, "validation": 2}
    files = loopback_hub.repository("tester/images", "dataset").files()
    assert {"data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"} <= set(files)


def test_studies_with_several_views(round_trip, tmp_path):
    content = {"train": [], "val": [], "test": []}
    for number, split in enumerate(["train", "train", "val", "test"]):
        study = f"CXR{number}_IM-000{number}"
        for view in (0, 1):
            draw(tmp_path / "iu" / "images" / study / f"{view}.png", number + view, "L")
        paths = [f"{study}/0.png", f"{study}/1.png"]
        content[split].append({"id": study, "report": f"Report {number}.", "image_path": paths, "split": split})
    (tmp_path / "iu" / "annotation.json").write_text(json.dumps(content))
    counts = round_trip("iu_xray", tmp_path / "iu", protocol="r2gen", allow_partial=True)
    assert counts == {"train": 2, "validation": 1, "test": 1}
