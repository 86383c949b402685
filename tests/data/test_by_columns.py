"""`by_columns`: Parquet and WebDataset shards, and whatever else `datasets` opens."""

import io
import tarfile

import datasets
import numpy as np
import PIL.Image
import pytest

from hf_captioners.data import BadRowsError, DataReport


def png(seed):
    stream = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 9, 3), dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def parquet(tmp_path):
    rows = {
        "photo": [
            {"bytes": png(0), "path": None},
            {"bytes": png(1), "path": None},
            None,
            {"bytes": png(3), "path": None},
        ],
        "alt": ["A dog.", "", "A fox.", "An owl."],
        "more": [["Dog"], [], ["Fox"], ["Owl", " "]],
        "key": [10, 11, 12, 13],
        "image": ["old", "old", "old", "old"],
        "split": ["?", "?", "?", "?"],
    }
    features = datasets.Features(
        {
            "photo": datasets.Image(),
            "alt": datasets.Value("string"),
            "more": datasets.List(datasets.Value("string")),
            "key": datasets.Value("int64"),
            "image": datasets.Value("string"),
            "split": datasets.Value("string"),
        }
    )
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "shards" / "train-0.parquet")
    return {
        "path": "parquet",
        "data_dir": tmp_path / "shards",
        "image_column": "photo",
        "caption_columns": ["alt", "more"],
        "id_column": "key",
    }


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_parquet_shards(parquet, load, streaming):
    report = DataReport()
    dataset = load("by_columns", split="train", streaming=streaming, report=report, **parquet)
    rows = list(dataset)
    assert [(row["image_id"], row["captions"], row["split"]) for row in rows] == [
        ("10", ["A dog.", "Dog"], "train"),
        ("13", ["An owl.", "Owl"], "train"),
    ]
    assert [row["image"].size for row in rows] == [(9, 8), (9, 8)] and [row["key"] for row in rows] == [10, 13]
    assert sorted(dataset.features) == ["captions", "image", "image_id", "key", "split"]
    assert report.kept == {"train": 2}
    assert [(problem.kind, problem.line) for problem in report.problems] == [
        ("missing caption", 2),
        ("missing image", 3),
    ]
    with pytest.raises(BadRowsError, match=r"parquet/train:2: missing caption: no text in alt, more"):
        list(load("by_columns", split="train", streaming=streaming, strict=True, **parquet))


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_webdataset_shards(tmp_path, load, streaming):
    for shard in range(2):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for number in range(3):
                for suffix, content in (("png", png(number)), ("txt", f"Image {shard} {number}".encode())):
                    member = tarfile.TarInfo(f"{shard}{number}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    options = {"path": "webdataset", "data_files": {"train": str(tmp_path / "*.tar")}, "id_column": "__key__"}
    loaded = load("by_columns", streaming=streaming, image_column="png", caption_columns=["txt"], **options)
    rows = list(loaded["train"])
    assert [row["captions"] for row in rows] == [
        [f"Image {shard} {number}"] for shard in range(2) for number in range(3)
    ]
    assert rows[0]["image_id"] == "00" and rows[0]["image"].size == (9, 8)


@pytest.fixture
def broken(tmp_path):
    """A Parquet file of four rows: the third image is cut off, the fourth is none."""
    images = [png(0), png(1), png(2)[:-40], b"no image"]
    rows = {"photo": [{"bytes": image, "path": None} for image in images], "alt": ["A dog."] * 4}
    features = datasets.Features({"photo": datasets.Image(), "alt": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "shards" / "train-0.parquet")
    return {
        "path": "parquet",
        "data_dir": tmp_path / "shards",
        "image_column": "photo",
        "caption_columns": ["alt"],
        "split": "train",
    }


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_images_that_cannot_be_read_are_named(broken, load, streaming):
    dataset = load("by_columns", streaming=streaming, **broken)
    rows = iter(dataset)
    assert [next(rows)["image"].size for _ in range(2)] == [(9, 8), (9, 8)]
    place = rf"given as bytes of the split 'train' of {broken['data_dir']} \(`check_images=True`.*\) cannot be read"
    with pytest.raises(ValueError, match=place):
        next(rows)
    if not streaming:
        with pytest.raises(ValueError, match=place):
            dataset[3]


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_images_are_checked(broken, load, streaming):
    report = DataReport()
    options = {"check_images": True, "streaming": streaming, **broken}
    assert len(list(load("by_columns", report=report, **options))) == 2 and report.kept == {"train": 2}
    assert [(one.kind, one.file, one.line) for one in report.problems] == [
        ("unreadable image", "parquet/train", 3),
        ("unreadable image", "parquet/train", 4),
    ]
    assert "the row 'train-000000002'" in report.problems[0].message
    with pytest.raises(BadRowsError, match=r"parquet/train:3: unreadable image"):
        list(load("by_columns", strict=True, **options))


def test_a_split_without_readable_images(broken, load):
    options = {**broken, "split": "train[2:]", "check_images": True}
    with pytest.raises(ValueError, match=r"has no image that can be read \(of 2\)"):
        load("by_columns", **options)


def test_columns_must_exist(parquet, load):
    with pytest.raises(ValueError, match="has no column caption; it has photo, alt, more, key, image, split"):
        load("by_columns", **{**parquet, "caption_columns": ["caption"]})
    with pytest.raises(ValueError, match="'by_columns' needs image_column=..., caption_columns=..."):
        load("by_columns", path="parquet")
