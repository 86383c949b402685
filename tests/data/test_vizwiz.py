"""VizWiz-Captions: the official files, and the captions that its protocol leaves out."""

import json

import pytest

from hf_captioners.data import BadRowsError, DataReport

PRECANNED = "Quality issues are too severe to recognize visual content."
# image -> (caption, is_precanned, is_rejected)
CAPTIONS = {
    0: [("A can of soup.", False, False), (PRECANNED, True, False), ("Spam.", False, True)],
    1: [("A green bottle.", False, False), ("A bottle.", False, False)],
    2: [(PRECANNED, True, False), (PRECANNED, True, True)],
}


def official(split="train"):
    images = [
        {
            "file_name": f"VizWiz_{split}_{number:08d}.jpg",
            "id": number,
            "vizwiz_url": f"https://vizwiz.cs.colorado.edu/VizWiz_visualization_img/VizWiz_{split}_{number:08d}.jpg",
            "text_detected": number == 0,
        }
        for number in CAPTIONS
    ]
    annotations = [
        {
            "caption": text,
            "image_id": number,
            "is_precanned": precanned,
            "is_rejected": rejected,
            "text_detected": True,
        }
        for number, captions in CAPTIONS.items()
        for text, precanned, rejected in captions
    ]
    annotations = [{**annotation, "id": place} for place, annotation in enumerate(annotations)]
    return {"info": {"version": "1.0"}, "images": images, "annotations": annotations}


@pytest.fixture
def folder(tmp_path, image):
    root = tmp_path / "vizwiz"
    (root / "annotations").mkdir(parents=True)
    for split in ("train", "val", "test"):
        content = official(split)
        if split == "test":
            del content["annotations"]
        for entry in content["images"]:
            image(root / split / entry["file_name"])
        (root / "annotations" / f"{split}.json").write_text(json.dumps(content))
    return root


def captions(rows):
    return dict(zip(rows["image_id"], rows["captions"], strict=True))


def test_rejected_and_precanned_captions_are_left_out_and_counted(folder, load):
    report = DataReport()
    loaded = load("vizwiz", folder, strict=True, report=report)
    expected = {"0": ["A can of soup."], "1": ["A green bottle.", "A bottle."]}
    assert captions(loaded["train"]) == captions(loaded["validation"]) == expected
    assert loaded["train"]["text_detected"][:] == [True, False]
    assert captions(loaded["test"]) == {"0": [], "1": [], "2": []}
    assert report.notes == {"precanned caption": 4, "rejected caption": 4, "image without other captions": 2}
    assert report.kept == {"train": 2, "validation": 2, "test": 3} and not report.problems


def test_captions_that_are_left_out_can_be_kept(folder, load):
    kept = load("vizwiz", folder, "train", ignore_precanned=False)
    assert captions(kept) == {
        "0": ["A can of soup.", PRECANNED],
        "1": ["A green bottle.", "A bottle."],
        "2": [PRECANNED],
    }
    everything = load("vizwiz", folder, "train", ignore_precanned=False, ignore_rejected=False)
    assert [len(row) for row in everything["captions"]] == [3, 2, 2]


def test_wrong_rows_are_named(folder, load):
    content = official("val")
    content["images"].append({"file_name": "VizWiz_val_00000009.jpg", "id": 9})
    content["images"][1]["text_detected"] = "maybe"
    content["annotations"] += [
        {"image_id": 0, "id": 50, "caption": None, "is_precanned": False, "is_rejected": False},
        {"image_id": 77, "id": 51, "caption": "nobody"},
    ]
    (folder / "annotations" / "val.json").write_text(json.dumps(content))
    (folder / "val" / "VizWiz_val_00000000.jpg").unlink()
    (folder / "val" / "VizWiz_val_00000002.jpg").unlink()  # its captions are left out, so nobody misses it
    report = DataReport()
    with pytest.raises(ValueError, match="The split 'validation' of 'vizwiz' has no usable row"):
        load("vizwiz", folder, report=report)
    named = [(problem.kind.value, problem.line) for problem in report.problems]
    assert sorted(named) == [
        ("malformed row", 2),
        ("missing caption", 4),
        ("missing caption", 8),
        ("missing image", 1),
        ("missing image", 9),
    ]
    with pytest.raises(BadRowsError, match="image 77, which `images` lacks"):
        load("vizwiz", folder, strict=True)
