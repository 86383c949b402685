"""`caption_folder`: every form of table, every kind of bad row."""

import json
import os

import pytest

from hf_captioners.data import BadRowsError, DataReport
from hf_captioners.data.folder_tables import find_tables

CAPTIONS = {"a.png": ["A dog runs.", "A dog, running"], "b.png": ["Two cats."]}


def write_lines(path, lines, encoding="utf-8", end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode(encoding))


def jsonl(rows):
    return [json.dumps(row) for row in rows]


@pytest.fixture
def folder(tmp_path, image):
    for name in CAPTIONS:
        image(tmp_path / "own" / name)
    return tmp_path / "own"


def captions_of(dataset):
    return {row["image_id"]: row["captions"] for row in dataset.remove_columns("image")}


FORMS = {
    "metadata.jsonl": jsonl({"file_name": name, "captions": captions} for name, captions in CAPTIONS.items()),
    "captions.jsonl": jsonl({"image": name, "text": caption} for name in CAPTIONS for caption in CAPTIONS[name]),
    "metadata.csv": ["file_name,caption", "a.png,A dog runs.", 'a.png,"A dog, running"', "b.png,Two cats."],
    "metadata.tsv": ["file_name\tcaption", "a.png\tA dog runs.", "a.png\tA dog, running", "b.png\tTwo cats."],
    "captions.csv": ["captions,file", '"[""A dog runs."", ""A dog, running""]",a.png', "Two cats.,b.png"],
    "captions.txt": ["a.png#0\tA dog runs.", "a.png#1\tA dog, running", "b.png#0\tTwo cats."],
}
TXT_FORMS = {
    "tab": ["a.png\tA dog runs.", "a.png\tA dog, running", "b.png\tTwo cats."],
    "number and blank": ["a.png#0 A dog runs.", "a.png#1 A dog, running", "b.png#0 Two cats."],
    "comma": ["a.png,A dog runs.", "a.png,A dog, running", "b.png,Two cats."],
    "comma with header and quotes": [
        "image,caption",
        "a.png,A dog runs.",
        'a.png,"A dog, running"',
        "b.png,Two cats.",
    ],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ends", [("utf-8", "\n"), ("utf-8-sig", "\r\n")], ids=["plain", "BOM and CRLF"])
def test_each_form_gives_the_same_rows(folder, load, form, ends):
    write_lines(folder / form, FORMS[form], *ends)
    report = DataReport()
    dataset = load("caption_folder", folder, "train", report=report)
    assert captions_of(dataset) == CAPTIONS
    assert report.problems == [] and report.kept == {"train": 2}
    assert dataset[0]["image"].size == (24, 16)


@pytest.mark.parametrize("form", TXT_FORMS)
def test_each_form_of_lines_gives_the_same_rows(folder, load, form):
    write_lines(folder / "captions.txt", TXT_FORMS[form])
    assert captions_of(load("caption_folder", folder, "train")) == CAPTIONS


def test_several_caption_columns(folder, load):
    write_lines(folder / "metadata.csv", ["f,one,two", "a.png,A dog runs.,A hound", "b.png,Two cats.,Cats"])
    dataset = load("caption_folder", folder, "train", file_column="f", caption_columns=["one", "two"])
    assert captions_of(dataset) == {"a.png": ["A dog runs.", "A hound"], "b.png": ["Two cats.", "Cats"]}


def coco_form():
    images = [{"id": number, "file_name": name, "width": 24} for number, name in enumerate(CAPTIONS, 5)]
    annotations = [
        {"image_id": number, "id": number * 10 + k, "caption": caption}
        for number, captions in enumerate(CAPTIONS.values(), 5)
        for k, caption in enumerate(captions)
    ]
    return {"images": images, "annotations": annotations}


def test_json_of_coco_and_list_of_objects(folder, load):
    (folder / "annotations.json").write_text(json.dumps(coco_form()))
    report = DataReport()
    dataset = load("caption_folder", folder, "train", report=report)
    assert dataset["captions"][:] == list(CAPTIONS.values()) and report.problems == []
    assert dataset["image_id"][:] == ["5", "6"] and dataset["width"][:] == [24, 24]
    (folder / "annotations.json").write_text(
        json.dumps([{"image": name, "caption": caption} for name in CAPTIONS for caption in CAPTIONS[name]])
    )
    assert captions_of(load("caption_folder", folder, "train")) == CAPTIONS
    wrong = coco_form()
    wrong["annotations"].append({"image_id": 99, "id": 1, "caption": "?"})
    (folder / "annotations.json").write_text(json.dumps(wrong))
    load("caption_folder", folder, report=report)
    assert report.counts() == {"missing image": 1} and "annotation 4 belongs to image 99" in report.problems[0].message
    (folder / "annotations.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="annotations.json has an unknown structure"):
        load("caption_folder", folder)


def test_text_files_beside_images(folder, load, image):
    for name, captions in CAPTIONS.items():
        write_lines((folder / name).with_suffix(".txt"), captions)
    image(folder / "deep" / "c.png")
    write_lines(folder / "deep" / "c.txt", ["A fox."])
    image(folder / "bare.png")
    report = DataReport()
    dataset = load("caption_folder", folder, "train", report=report)
    assert captions_of(dataset) == CAPTIONS | {"deep/c.png": ["A fox."]}
    assert report.counts() == {"image without caption": 1}
    assert str(report.problems[0]).endswith("bare.png: image without caption: no text file beside it")
    image(folder / "a.bmp")  # of the same name
    assert [path.name for table in find_tables(folder, None) for path in table.files()] == ["a.txt", "b.txt", "c.txt"]
    (folder / "a.bmp").unlink()
    write_lines(folder / "a.txt", ["A changed dog."])
    assert load("caption_folder", folder, "train")["captions"][0] == ["A changed dog."]


def test_nested_folders_with_a_table_each(tmp_path, image, load):
    for place in ("train/dogs", "train/cats/old", "val"):
        image(tmp_path / place / "same.png")
        write_lines(tmp_path / place / "captions.txt", [f"same.png\tImage of {place}"])
    loaded = load("caption_folder", tmp_path, strict=True)
    assert captions_of(loaded["train"]) == {
        "cats/old/same.png": ["Image of train/cats/old"],
        "dogs/same.png": ["Image of train/dogs"],
    }
    assert captions_of(loaded["validation"]) == {"same.png": ["Image of val"]}


def test_nested_folders_without_splits_are_train(tmp_path, image, load):
    for place in ("dogs", "cats"):
        image(tmp_path / place / "same.png")
        write_lines(tmp_path / place / "captions.txt", [f"same.png\tA image of {place}"])
    loaded = load("caption_folder", tmp_path, strict=True)
    assert {split: rows["image_id"][:] for split, rows in loaded.items()} == {
        "train": ["cats/same.png", "dogs/same.png"]
    }


def test_a_split_folder_without_table_is_an_error(tmp_path, image, load):
    image(tmp_path / "train" / "a.png")
    write_lines(tmp_path / "train" / "captions.txt", ["a.png\tA dog"])
    image(tmp_path / "test" / "b.png")
    with pytest.raises(FileNotFoundError, match=r"test has 1 images and no metadata.jsonl"):
        load("caption_folder", tmp_path)
    image(tmp_path / "val" / "b.png")
    image(tmp_path / "dev" / "b.png")
    with pytest.raises(ValueError, match="two folders for one split: dev, test, train, val"):
        load("caption_folder", tmp_path)


def test_parquet_table(folder, load):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"file_name": list(CAPTIONS), "captions": list(CAPTIONS.values()), "year": [1999, 2001]})
    pyarrow.parquet.write_table(table, folder / "metadata.parquet")
    dataset = load("caption_folder", folder, "train")
    assert captions_of(dataset) == CAPTIONS
    assert dataset["year"][:] == [1999, 2001]


def test_source_columns_are_kept_with_their_types(folder, load):
    rows = [
        {"file_name": "a.png", "captions": ["x y"], "image_id": 7, "score": 0.5, "tags": ["t"]},
        {"file_name": "b.png", "captions": ["z"], "image_id": 8, "score": 1},
    ]
    write_lines(folder / "metadata.jsonl", jsonl(rows))
    dataset = load("caption_folder", folder, "train")
    assert dataset["image_id"][:] == ["7", "8"]
    assert dataset["score"][:] == [0.5, 1.0] and dataset["tags"][:] == [["t"], None]
    assert dataset["file_name"][:] == ["a.png", "b.png"]


def test_splits_by_folder(tmp_path, image, load):
    for split in ("train", "val", "test"):
        image(tmp_path / "own" / split / "images" / f"{split}.png")
        write_lines(tmp_path / "own" / split / "captions.txt", [f"{split}.png\tA {split} image."])
    loaded = load("caption_folder", tmp_path / "own")
    assert {split: rows["image_id"][:] for split, rows in loaded.items()} == {
        "train": ["train.png"],
        "validation": ["val.png"],
        "test": ["test.png"],
    }
    with pytest.raises(ValueError, match="no split 'eval'; there are train, validation, test"):
        load("caption_folder", tmp_path / "own", "eval")
    assert len(load("caption_folder", tmp_path / "own", "train+test")) == 2


@pytest.mark.parametrize("by", ["column", "path"])
def test_splits_of_one_table(tmp_path, image, load, by):
    rows = []
    for split in ("train", "val"):
        image(tmp_path / "own" / split / f"{split}.png")
        name = f"{split}/{split}.png"
        rows.append({"file_name": name, "captions": ["x"]} | ({"split": split} if by == "column" else {}))
    write_lines(tmp_path / "own" / "metadata.jsonl", jsonl(rows))
    loaded = load("caption_folder", tmp_path / "own", strict=True)
    assert {split: rows["split"][:] for split, rows in loaded.items()} == {
        "train": ["train"],
        "validation": ["validation"],
    }


BAD_ROWS = {
    "malformed row": (["no json"], "not JSON"),
    "missing caption": (jsonl([{"file_name": "b.png", "captions": ["  "]}]), "expected text in captions, found '  '"),
    "missing image": (jsonl([{"file_name": "gone.png", "captions": ["x"]}]), "there is no file .*gone.png"),
    "duplicate": (jsonl([{"file_name": "a.png", "captions": ["x"]}]), "'a.png' is in line 1 already"),
    "unreadable image": (jsonl([{"file_name": "cut.jpg", "captions": ["x"]}]), "cut.jpg cannot be read"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows_are_reported_with_file_and_line(folder, load, image, kind, caplog):
    rows, message = BAD_ROWS[kind]
    whole = image(folder / "whole.jpg", size=(200, 200)).read_bytes()
    (folder / "whole.jpg").unlink()
    if kind == "unreadable image":
        (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    good = jsonl({"file_name": name, "captions": captions} for name, captions in CAPTIONS.items())
    good = good[:1] if kind == "missing caption" else good
    write_lines(folder / "metadata.jsonl", [*good, *rows])
    for _ in range(2):  # built, and found in the cache
        report = DataReport()
        dataset = load("caption_folder", folder, "train", report=report)
        assert captions_of(dataset) == {name: CAPTIONS[name] for name in list(CAPTIONS)[: len(good)]}
        assert report.counts() == {kind: 1}
        problem = report.problems[0]
        assert (problem.file, problem.line) == (str(folder / "metadata.jsonl"), len(good) + 1)
        assert kind in caplog.text and "metadata.jsonl:" in caplog.text
        with pytest.raises(BadRowsError, match=message):
            load("caption_folder", folder, "train", strict=True)
    with pytest.raises(BadRowsError, match=message):
        list(load("caption_folder", folder, "train", streaming=True, strict=True))
    streamed = DataReport()
    assert len(list(load("caption_folder", folder, "train", streaming=True, report=streamed))) == len(good)
    assert streamed.counts() == report.counts()


def test_strict_stops_a_first_build(folder, load):
    write_lines(folder / "captions.txt", ["a.png\tA dog.", "gone.png\tA cat.", "b.png\tC"])
    with pytest.raises(BadRowsError, match=r"captions.txt:2: missing image"):
        load("caption_folder", folder, strict=True)


def test_images_that_nobody_names_are_reported(folder, load):
    write_lines(folder / "captions.txt", ["a.png\tA dog."])
    report = DataReport()
    load("caption_folder", folder, report=report)
    assert report.counts() == {"image without caption": 1}
    assert report.problems[0].file == str(folder / "b.png")


def test_image_in_two_splits_is_reported_and_kept(tmp_path, image, load):
    for split in ("train", "test"):
        image(tmp_path / split / "same.png")
        write_lines(tmp_path / split / "captions.txt", ["same.png\tA dog."])
    report = DataReport()
    loaded = load("caption_folder", tmp_path, report=report)
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 1, "test": 1}
    assert report.counts() == {"image in two splits": 1}


def test_csv_with_too_many_fields_names_the_line(folder, load):
    write_lines(
        folder / "metadata.csv",
        ["file_name,caption", 'a.png,"two', 'lines"', "b.png,A dog, running", "b.png,Two cats."],
    )
    report = DataReport()
    dataset = load("caption_folder", folder, "train", report=report)
    assert captions_of(dataset) == {"a.png": ["two\nlines"], "b.png": ["Two cats."]}
    assert [(problem.line, problem.kind) for problem in report.problems] == [(4, "malformed row")]
    assert "Put captions with commas in double quotes" in report.problems[0].message


def test_lines_end_at_line_feeds_only(folder, load):
    write_lines(folder / "captions.txt", ["a.png\tone\u2028two\x85three\x0bfour", "b.png\tfive"])
    assert captions_of(load("caption_folder", folder, "train"))["a.png"] == ["one\u2028two\x85three\x0bfour"]


def test_lines_that_are_not_utf8_are_reported(folder, load):
    (folder / "captions.txt").write_bytes("a.png\tA döner\n".encode() + b"b.png\tcaf\xe9\nb.png\tTwo cats\n")
    report = DataReport()
    dataset = load("caption_folder", folder, "train", report=report)
    assert captions_of(dataset) == {"a.png": ["A döner"], "b.png": ["Two cats"]}
    assert report.problems[0].line == 2 and "not UTF-8" in report.problems[0].message


def test_mixed_types_name_both_lines(folder, load):
    rows = [{"file_name": name, "captions": ["x"], "year": year} for name, year in (("a.png", 1999), ("b.png", "?"))]
    write_lines(folder / "metadata.jsonl", jsonl(rows))
    with pytest.raises(ValueError, match=r"'year' mixes types: int in .*:1, str in .*:2"):
        load("caption_folder", folder)


def test_errors_say_what_to_do(tmp_path, folder, load):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="has 0 images and no metadata.jsonl"):
        load("caption_folder", tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="has 2 images and no metadata.jsonl"):
        load("caption_folder", folder)
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        load("caption_folder", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="pass data_dir="):
        load("caption_folder")
    with pytest.raises(ValueError, match="no data set 'folder'; expected one of by_columns, caption_folder"):
        load("folder", folder)
    with pytest.raises(ValueError, match="no option colum; it has .*caption_columns"):
        load("caption_folder", folder, colum="x")
    write_lines(folder / "captions.txt", ["gone.png\tA dog."])
    with pytest.raises(ValueError, match="'train' .*has no usable row(.|\n)*gone.png"):
        load("caption_folder", folder)
    write_lines(folder / "metadata.jsonl", jsonl([{"file_name": "a.png", "alt": "x"}]))
    with pytest.raises(ValueError, match="several tables: metadata.jsonl, captions.txt"):
        load("caption_folder", folder)
    with pytest.raises(ValueError, match=r"metadata.jsonl has no columns .* captions; it has file_name, alt"):
        load("caption_folder", folder, metadata_file="metadata.jsonl")
    with pytest.raises(ValueError, match=r"has no column 'caption'; it has file_name, alt"):
        load("caption_folder", folder, metadata_file="metadata.jsonl", caption_columns=["caption"])


def test_an_edit_is_never_served_from_the_cache(folder, load):
    table = folder / "captions.txt"
    write_lines(table, ["a.png\tA dog", "b.png\tA cat"])
    before = load("caption_folder", folder, "train")
    state = table.stat()
    write_lines(table, ["a.png\tA fox", "b.png\tA cat"])
    os.utime(table, ns=(state.st_atime_ns, state.st_mtime_ns))  # same size, same time
    after = load("caption_folder", folder, "train")
    assert (before[0]["captions"], after[0]["captions"]) == (["A dog"], ["A fox"])
    (folder / "b.png").unlink()
    assert len(load("caption_folder", folder, "train")) == 1


def test_flickr8k_photographs(material, load):
    report = DataReport()
    loaded = load("caption_folder", material / "flickr8k", report=report)
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 6000, "validation": 1000}
    assert report.problems == []
    assert {len(captions) for rows in loaded.values() for captions in rows["captions"]} == {5}
    assert loaded["train"][0]["image"].size == (224, 224)
    streamed = load("caption_folder", material / "flickr8k", "validation", streaming=True, check_images=False)
    assert [row["captions"] for row in streamed] == loaded["validation"]["captions"][:]


def test_coco_photographs(material, load):
    dataset = load("caption_folder", material / "coco", "train", strict=True)
    assert len(dataset) == 277 and sum(map(len, dataset["captions"])) >= 277 * 5
    assert dataset[0]["image_id"] == "9" and dataset[0]["image"].size == (dataset[0]["width"], dataset[0]["height"])
    assert {row["image"].mode for row in dataset} == {"RGB", "L"}


def test_images_that_nobody_has_reviewed_are_one_line(folder, load, image, caplog):
    """Images without captions are no list of faults; other problems are listed, and advice fits the command line."""
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "captions": ["A dog."]}\n')
    for number in range(5):
        image(folder / f"new{number}.png")
    load("caption_folder", folder, split="train")
    assert caplog.messages[-1].splitlines() == [
        "caption_folder: kept 1 train.",
        f"6 image(s) have no captions yet, such as {folder / 'b.png'}.",
    ]
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "captions": ["A dog."]}\n{"file_name": "c.png"}\n')
    report = DataReport()
    load("caption_folder", folder, split="train", report=report)
    said = report.summary()
    assert "Problems: 1 x " in said and "new" not in said and "report=DataReport()" in said
