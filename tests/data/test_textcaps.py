"""TextCaps: the official files, whose entries are captions."""

import json

import pytest

from hf_captioners.data import BadRowsError, DataReport

NAMES = ("0054c91397f2fe05", "005635e119b9f32f")


def entry(name, caption_id=None, caption=None):
    """A caption as in the official files; an entry of the test file has none."""
    made = {
        "question": "",
        "image_id": name,
        "image_classes": ["Motorcycle", "Tire"],
        "flickr_original_url": f"https://farm1.staticflickr.com/{name}_o.jpg",
        "flickr_300k_url": f"https://c2.staticflickr.com/{name}_z.jpg",
        "image_width": 24,
        "image_height": 16,
        "set_name": "train",
        "image_name": name,
        "image_path": f"train/{name}.jpg",
    }
    if caption is None:
        return made
    references = {"reference_strs": [caption, "Another."], "reference_tokens": [caption.lower().split(), ["another"]]}
    return {**made, "caption_id": caption_id, "caption_str": caption, "caption_tokens": caption.split(), **references}


def official(entries, kind="train"):
    return json.dumps({"dataset_name": "textcaps", "dataset_version": "0.1", "dataset_type": kind, "data": entries})


@pytest.fixture
def folder(tmp_path, image):
    root = tmp_path / "textcaps"
    for name in NAMES:
        image(root / "train_images" / f"{name}.jpg")
    image(root / "test_images" / "f00.jpg")
    first, second = NAMES
    # The captions of an image need not be neighbours.
    entries = [entry(first, 0, "A bike with AK-47 on it."), entry(second, 3, "A sign."), entry(first, 1, "A bike.")]
    (root / "TextCaps_0.1_train.json").write_text(official(entries))
    (root / "TextCaps_0.1_val.json").write_text(official([entry(second, 9, "STOP is on a sign.")], "val"))
    (root / "TextCaps_0.1_test.json").write_text(official([entry("f00")], "test"))
    return root


def test_entries_of_an_image_become_one_row(folder, load):
    loaded = load("textcaps", folder, strict=True)
    train = loaded["train"]
    assert train["image_id"][:] == list(NAMES)
    assert train["captions"][:] == [["A bike with AK-47 on it.", "A bike."], ["A sign."]]
    assert train[0]["caption_ids"] == [0, 1] and train[0]["image_classes"] == ["Motorcycle", "Tire"]
    assert train[0]["image"].size == (train[0]["width"], train[0]["height"]) == (24, 16)
    assert loaded["validation"]["captions"][:] == [["STOP is on a sign."]]
    assert loaded["test"]["captions"][:] == [[]] and loaded["test"][0]["image"].size == (24, 16)
    assert load("textcaps", folder, "train", row_per_caption=True)["caption_ids"][:] == [[0], [1], [3]]


def test_wrong_rows_are_named(folder, load):
    first, second = NAMES
    wrong = [
        entry(first, 0, "A bike."),
        {**entry(first, 1, "x"), "image_id": 17},
        entry(first, 2, "  "),
        entry(first, "3", "A bike."),
        entry(first, 0, "Again."),
        "a text",
        {**entry(second, 5, "A sign."), "image_width": "wide"},
        entry("gone", 6, "A dog."),
        entry(first, 7),
    ]
    path = folder / "TextCaps_0.1_train.json"
    path.write_text(official(wrong))
    report = DataReport()
    assert load("textcaps", folder, "train", report=report)["captions"][:] == [["A bike."]]
    assert {problem.file for problem in report.problems} == {str(path)}
    named = {problem.line: f"{problem.kind}: {problem.message}" for problem in report.problems}
    assert named[7].startswith("malformed row: Could not convert 'wide'")
    assert named[8].startswith("missing image: there is no file ") and named[8].endswith("gone.jpg")
    assert {line: text for line, text in named.items() if line not in (7, 8)} == {
        2: "malformed row: entry 2 of `data` lacks 'image_id'",
        3: f"missing caption: entry 3 of `data`: the `caption_str` of {first} is '  '",
        4: f"malformed row: entry 4 of `data`: the `caption_id` of {first} is '3'",
        5: f"duplicate: image {first} has the caption 0 twice",
        6: "malformed row: entry 6 of `data` lacks 'image_id'",
        9: f"malformed row: entry 9 of `data`: the `caption_id` of {first} is None",
    }
    with pytest.raises(BadRowsError, match="lacks 'image_id'"):
        load("textcaps", folder, strict=True)


def test_errors_name_what_is_missing(tmp_path, load):
    with pytest.raises(FileNotFoundError, match="neither TextCaps_0.1_train.json nor TextCaps_0.1_val.json"):
        load("textcaps", tmp_path)
    (tmp_path / "TextCaps_0.1_val.json").write_text('{"images": []}')
    with pytest.raises(ValueError, match="is not in the format of TextCaps"):
        load("textcaps", tmp_path)
