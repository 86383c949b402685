import json

import pytest

from hf_captioners.metrics.caption_files import CaptionTable, match_captions, read_captions


def written(folder, name, content):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


REFERENCE_FILES = {
    "coco.json": {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
        "annotations": [
            {"id": 7, "image_id": 1, "caption": "one"},
            {"id": 8, "image_id": 2, "caption": "two"},
            {"id": 9, "image_id": 1, "caption": "uno"},
        ],
    },
    "mapping.json": {"1": ["one", "uno"], "2": "two"},
    "rows.json": [{"image_id": 1, "captions": ["one", "uno"]}, {"image_id": "2", "text": "two"}],
    "rows.jsonl": '{"image_id": 1, "captions": ["one", "uno"]}\n\n{"image_id": 2, "caption": "two"}\n',
    "rows.csv": 'image_id,caption\n1,one\n1,uno\n2,"two"\n',
    "rows.tsv": "image_id\tcaption\n1\tone\n1\tuno\n2\ttwo\n",
    "rows.txt": "1#0\tone\n1#1\tuno\n2#0\ttwo\n",
}


@pytest.mark.parametrize("name", REFERENCE_FILES)
def test_forms_of_references(tmp_path, name):
    table = read_captions(written(tmp_path, name, REFERENCE_FILES[name]))
    assert table.captions == {"1": ["one", "uno"], "2": ["two"]}


def test_a_folder_stands_for_its_table(tmp_path):
    written(tmp_path, "metadata.jsonl", '{"file_name": "a.jpg", "captions": ["one"]}\n')
    assert read_captions(tmp_path).captions == {"a.jpg": ["one"]}
    with pytest.raises(FileNotFoundError, match=r"has none of metadata\.jsonl"):
        read_captions(written(tmp_path, "x.txt", "a\tb").parent / "..")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("out.jsonl", '{"image": "photos/a.jpg", "caption": "one", "score": -1.5}\n'),
        ("out.csv", "image,caption,score\nphotos/a.jpg,one,-1.5\n"),
        ("out.txt", "photos/a.jpg\tone\n"),
        ("out.json", [{"image_id": 1, "caption": "one"}]),
    ],
)
def test_what_the_caption_command_writes_is_matched(tmp_path, name, content):
    predictions = read_captions(written(tmp_path, name, content))
    references = read_captions(written(tmp_path, "coco.json", REFERENCE_FILES["coco.json"]))
    matched = match_captions(predictions, references)
    assert matched.images == ["1"]
    assert (matched.predictions, matched.references) == (["one"], [["one", "uno"]])
    assert (matched.missing, matched.extra) == (["2"], [])


def test_order_is_that_of_the_references_and_nothing_is_ignored():
    references = CaptionTable({"a": ["x"], "b": ["y"], "c": ["z"]}, {})
    matched = match_captions(CaptionTable({"d": ["4"], "c": ["3"], "a": ["1"]}, {}), references)
    assert matched.images == ["a", "c"]
    assert matched.predictions == ["1", "3"]
    assert (matched.missing, matched.extra) == (["b"], ["d"])


def test_a_file_name_that_two_images_share_names_neither():
    references = CaptionTable({"train/1.jpg": ["x"], "test/1.jpg": ["y"], "2.jpg": ["z"]}, {})
    matched = match_captions(CaptionTable({"test/1.jpg": ["a"], "p/1.jpg": ["b"], "p/2.jpg": ["c"]}, {}), references)
    assert matched.images == ["test/1.jpg", "2.jpg"]
    assert matched.extra == ["p/1.jpg"]


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ({"a": ["1", "2"]}, r"1 image\(s\) have more than one prediction, first 'a'"),
        ({"q": ["1"]}, "No image is in both files: predictions are for 'q', references for 'a', 'b'"),
        ({"x/a": ["1"], "y/a": ["2"]}, "Two predictions are for the image 'a'"),
    ],
)
def test_predictions_that_cannot_be_matched(predictions, message):
    with pytest.raises(ValueError, match=message):
        match_captions(CaptionTable(predictions, {}), CaptionTable({"a": ["x"], "b": ["y"]}, {}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "has no captions"),
        ("a.json", "[]", "has no captions"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "3", "contains a int"),
        ("a.jsonl", "{}\n", r"line 1 has \[\], expected the image under one of image_id"),
        ("a.jsonl", '{"image": "x"}\n', "expected the caption under one of caption"),
        ("a.jsonl", '{"image": "x", "caption": 3}\n', "has the caption 3, expected a string"),
        ("a.jsonl", '{"image": "x", "captions": []}\n', "empty list of captions"),
        ("a.jsonl", '["x"]\n', "expected an object"),
        ("a.jsonl", "{\n", "line 1: not JSON"),
        ("a.txt", "x y\n", "line 1: expected `name TAB caption` or `name,caption`"),
        ("a.parquet", "x", "expected one of .json, .jsonl"),
    ],
)
def test_wrong_files(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_captions(written(tmp_path, name, content))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_captions(tmp_path / "none.json")
