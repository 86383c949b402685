"""COCO: Karpathy's file, the official files with split lists, and the whole of both where they are at hand."""

import gzip
import importlib.util
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hf_captioners.data import BadRowsError, DataReport

# id -> (folder, part, captions)
IMAGES = {
    9: ("train2014", "train", ["A meal. ", "Bins of food\n", "Trays", "Food", "Lunch", "A sixth"]),
    25: ("train2014", "train", ["A giraffe eats.", "Tall"]),
    42: ("val2014", "restval", ["A dog on shoes."]),
    73: ("val2014", "val", ["A motorbike.", "Parked"]),
    74: ("val2014", "test", ["A sleeping dog."]),
}
TEST_IMAGE = 191
TOKENS = {"A meal. ": ["a", "meal"]}


def name_of(image_id, folder):
    return f"COCO_{folder}_{image_id:012d}.jpg"


def caption_id(image_id, index):
    return image_id * 10 + index


def karpathy():
    return {
        "dataset": "coco",
        "images": [
            {
                "filepath": folder,
                "filename": name_of(image_id, folder),
                "imgid": number,
                "cocoid": image_id,
                "split": part,
                "sentids": [caption_id(image_id, i) for i in range(len(captions))],
                "sentences": [
                    {"raw": raw, "tokens": raw.lower().split(), "imgid": number, "sentid": caption_id(image_id, i)}
                    for i, raw in enumerate(captions)
                ],
            }
            for number, (image_id, (folder, part, captions)) in enumerate(IMAGES.items())
        ],
    }


def official(folder):
    chosen = {image_id: captions for image_id, (where, _, captions) in IMAGES.items() if where == folder}
    annotations = [
        {"image_id": image_id, "id": caption_id(image_id, i), "caption": caption}
        for image_id, captions in chosen.items()
        for i, caption in enumerate(captions)
    ]
    images = [{"id": i, "file_name": name_of(i, folder), "height": 16, "width": 24} for i in chosen]
    return {"info": {}, "licenses": [], "images": images, "annotations": annotations[::-1]}


def dump(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def images(tmp_path, image):
    for image_id, (folder, _, _) in IMAGES.items():
        image(tmp_path / "coco" / folder / name_of(image_id, folder))
    image(tmp_path / "coco" / "test2014" / name_of(TEST_IMAGE, "test2014"))
    return tmp_path / "coco"


@pytest.fixture
def karpathy_folder(images):
    dump(images / "dataset_coco.json", karpathy())
    return images


@pytest.fixture
def official_folder(images):
    for part in ("train", "val"):
        dump(images / "annotations" / f"captions_{part}2014.json", official(f"{part}2014"))
    image = {"id": TEST_IMAGE, "file_name": name_of(TEST_IMAGE, "test2014"), "height": 16, "width": 24}
    dump(images / "annotations" / "image_info_test2014.json", {"images": [image]})
    return images


def captions_by_split(loaded):
    return {
        split: {int(row["image_id"]): row["captions"] for row in rows.remove_columns("image")}
        for split, rows in loaded.items()
    }


KARPATHY = {
    "train": {image_id: IMAGES[image_id][2] for image_id in (9, 25, 42)},
    "validation": {73: IMAGES[73][2]},
    "test": {74: IMAGES[74][2]},
}


def test_karpathy_split(karpathy_folder, load):
    loaded = load("coco", karpathy_folder, strict=True)
    assert captions_by_split(loaded) == KARPATHY
    first = loaded["train"][0]
    assert first["image"].size == (24, 16) and first["cocoid"] == 9 and first["source_split"] == "train"
    assert first["tokens"][0] == ["a", "meal."] and first["caption_ids"] == [90, 91, 92, 93, 94, 95]
    apart = load("coco", karpathy_folder, restval_in_train=False)
    assert {split: len(rows) for split, rows in apart.items()} == {
        "train": 2,
        "restval": 1,
        "validation": 1,
        "test": 1,
    }


def test_entries_without_cocoid_take_it_from_the_file_name(karpathy_folder, load):
    content = karpathy()
    for entry in content["images"]:
        del entry["cocoid"]
    dump(karpathy_folder / "dataset_coco.json", content)
    assert captions_by_split(load("coco", karpathy_folder)) == KARPATHY


def test_references_cut_and_laid_out(karpathy_folder, load):
    five = load("coco", karpathy_folder, "train", max_captions=5)
    assert len(five[0]["captions"]) == len(five[0]["tokens"]) == len(five[0]["caption_ids"]) == 5
    rows = load("coco", karpathy_folder, "train", row_per_caption=True, max_captions=5)
    assert len(rows) == 8
    assert rows["caption_ids"][:] == [[90], [91], [92], [93], [94], [250], [251], [420]]
    assert rows[1]["captions"] == ["Bins of food\n"]
    with pytest.raises(ValueError, match="`max_captions` is 0"):
        load("coco", karpathy_folder, max_captions=0)


def test_official_split_has_test_images_without_captions(official_folder, load):
    loaded = load("coco", official_folder, official=True, strict=True)
    assert {split: rows["image_id"][:] for split, rows in loaded.items()} == {
        "train": ["9", "25"],
        "validation": ["42", "73", "74"],
        "test": [str(TEST_IMAGE)],
    }
    assert loaded["test"][0]["captions"] == [] and loaded["test"][0]["image"].size == (24, 16)
    assert loaded["train"][0]["captions"] == IMAGES[9][2], "captions by ascending annotation id"


@pytest.mark.parametrize("form", ["json", "npy", "txt"])
def test_split_lists_give_karpathys_split(official_folder, tmp_path, load, form):
    lists = tmp_path / "lists"
    lists.mkdir()
    if form == "json":
        lists = lists / "ids.json"
        dump(lists, {"val": [73], "test": [74]})
    for part in ("train", "restval", "val", "test"):
        chosen = {i: value for i, value in IMAGES.items() if value[1] == part}
        if form == "npy":
            ids = [caption_id(i, k) for i, (_, _, captions) in chosen.items() for k in range(len(captions))]
            np.save(lists / f"coco_{'dev' if part == 'val' else part}_ids.npy", np.array(ids))
        elif form == "txt":
            names = [name_of(i, folder) for i, (folder, _, _) in chosen.items()]
            (lists / f"coco_{part}.txt").write_text("\n".join(names) + "\n")
    assert captions_by_split(load("coco", official_folder, split_lists=lists)) == KARPATHY


def test_annotation_id_lists_can_part_the_captions_of_an_image(official_folder, tmp_path, load):
    """M2's lists name captions, not images: a low-data list may hold one caption of an image."""
    np.save(tmp_path / "coco_train_ids.npy", np.array([91, 93]))
    loaded = load("coco", official_folder, split_lists=tmp_path)
    assert captions_by_split(loaded) == {"train": {9: ["Bins of food\n", "Food"]}}


def test_streaming_gives_the_same_rows(karpathy_folder, load):
    stored = load("coco", karpathy_folder, "train", row_per_caption=True)
    streamed = list(load("coco", karpathy_folder, "train", streaming=True, row_per_caption=True))
    assert [(row["image_id"], row["captions"]) for row in streamed] == [
        (row["image_id"], row["captions"]) for row in stored
    ]


def test_bad_entries_are_reported(official_folder, load):
    content = official("val2014")
    content["annotations"] += [
        {"image_id": 999, "id": 1, "caption": "nobody"},
        {"image_id": 73, "id": 730, "caption": "again"},
        {"image_id": 73, "id": 2, "caption": " "},
        {"image_id": 73, "id": 3},
    ]
    content["images"] += [content["images"][0], {"id": 80, "file_name": "x.jpg"}, {"id": 81}]
    dump(official_folder / "annotations" / "captions_val2014.json", content)
    (official_folder / "train2014" / name_of(25, "train2014")).unlink()
    report = DataReport()
    loaded = load("coco", official_folder, official=True, report=report)
    assert report.kept == {"train": 1, "validation": 3, "test": 1} and len(loaded["validation"]) == 3
    assert report.counts() == {
        "missing image": 2,
        "duplicate": 2,
        "missing caption": 2,
        "malformed row": 2,
    }
    with pytest.raises(BadRowsError, match="image 999, which `images` lacks"):
        load("coco", official_folder, official=True, strict=True)


def test_errors_name_the_file_that_is_missing(tmp_path, official_folder, load):
    with pytest.raises(FileNotFoundError, match="has no dataset_coco.json, which defines Karpathy's split"):
        load("coco", official_folder)
    with pytest.raises(FileNotFoundError, match="neither dataset_coco.json nor captions_train2014.json"):
        load("coco", tmp_path)
    dump(tmp_path / "dataset_coco.json", [1])
    with pytest.raises(ValueError, match="is not a split file"):
        load("coco", tmp_path)
    (tmp_path / "dataset_coco.json").write_text('{"images": [')
    with pytest.raises(ValueError, match="dataset_coco.json is not JSON"):
        load("coco", tmp_path)
    content = karpathy()
    content["images"][1]["split"] = "extra"
    del content["images"][2]["filename"]
    dump(tmp_path / "dataset_coco.json", content)
    report = DataReport()
    load("coco", tmp_path, with_images=False, report=report)
    assert [(problem.line, problem.kind) for problem in report.problems] == [(k, "malformed row") for k in (2, 3)]


def test_real_excerpts_agree(material, tmp_path, load):
    """Both forms of 300 real images give the same captions; only blanks at the ends may differ, and do not."""
    source = material / "coco_formats"
    for name in ("dataset_coco", "captions_train2014", "captions_val2014"):
        (tmp_path / f"{name}.json").write_bytes(gzip.decompress((source / f"{name}.excerpt.json.gz").read_bytes()))
    karpathy_rows = load("coco", tmp_path, with_images=False)
    assert {split: len(rows) for split, rows in karpathy_rows.items()} == {"train": 258, "validation": 17, "test": 25}
    lists = load("coco", tmp_path, with_images=False, split_lists=source / "karpathy_split_ids.json.gz")
    for split, rows in karpathy_rows.items():
        other = dict(zip(lists[split]["image_id"], lists[split]["captions"], strict=True))
        for image_id, captions in zip(rows["image_id"], rows["captions"], strict=True):
            assert other[image_id] == captions


@pytest.mark.slow
def test_the_complete_official_files(tmp_path, load):
    found = importlib.util.find_spec("pycocoevalcap")
    if found is None:
        pytest.skip("pycocoevalcap, which carries the complete caption files, is not installed")
    jar = Path(next(iter(found.submodule_search_locations))) / "spice" / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive:
        for part in ("train", "val"):
            member = f"coco/annotations/captions_{part}2014.json"
            dump_path = tmp_path / f"captions_{part}2014.json"
            dump_path.write_bytes(archive.read(member))
    loaded = load("coco", tmp_path, official=True, with_images=False)
    counts = {split: (len(rows), sum(map(len, rows["captions"]))) for split, rows in loaded.items()}
    assert counts == {"train": (82_783, 414_113), "validation": (40_504, 202_654)}
