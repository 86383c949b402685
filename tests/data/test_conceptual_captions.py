"""Conceptual Captions: the TSV form with its traps, and the images that were fetched."""

import gzip
import hashlib

import pytest

from hf_captioners.data import DataReport
from hf_captioners.data.conceptual_captions import NOT_FETCHED, images_to_fetch

LINES = [
    "author : a life in photography -- in images\thttps://example.org/a?resize=3",
    'it \'s 5 "feet" <3 & more , caf\u00e9 \u2665\thttp://example.org/b.jpg',
    "first\u2028second\x85third\thttp://example.org/c",
    "A Person\thttps://example.org/d.png",
]
TRAIN, VALIDATION = "Train_GCC-training.tsv", "Validation_GCC-1.1.0-Validation.tsv"


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


def test_captions_are_untouched_and_lines_end_at_line_feeds(tmp_path, load):
    write(tmp_path / VALIDATION, LINES)
    dataset = load("conceptual_captions", tmp_path, "validation", strict=True, with_images=False)
    assert dataset["captions"][:] == [[line.split("\t")[0]] for line in LINES]
    assert dataset["url"][:] == [line.split("\t")[1] for line in LINES]
    assert dataset["image"][:] == [None] * 4 and dataset["image_id"][2] == "000000002"
    lower = load("conceptual_captions", tmp_path, "validation", with_images=False, lower_case=True)
    assert lower["captions"][3] == ["a person"]


def test_fetched_images_by_number_or_hash_of_the_address(tmp_path, image, load):
    write(tmp_path / TRAIN, LINES)
    image(tmp_path / "train" / "000000001.png")
    image(tmp_path / "train" / f"{hashlib.sha1(b'http://example.org/c').hexdigest()}.jpg")
    image(tmp_path / "train" / f"{hashlib.md5(b'https://example.org/d.png').hexdigest()}.webp")
    (tmp_path / "train" / "000000000.jpg").write_bytes(b"<html>gone</html>")
    report = DataReport()
    dataset = load("conceptual_captions", tmp_path, "train", report=report, check_images=True)
    assert dataset["image_id"][:] == ["000000001", "000000002", "000000003"]
    assert report.counts() == {"unreadable image": 1} and report.notes == {}
    numbered_from_one = DataReport()
    other = load("conceptual_captions", tmp_path, "train", report=numbered_from_one, first_number=1)
    assert other["captions"][0] == [LINES[0].split("\t")[0]], "000000001 is now the image of the first line"
    assert numbered_from_one.notes == {NOT_FETCHED: 1}
    with pytest.raises(ValueError, match="'train' .* has no usable row"):
        load("conceptual_captions", tmp_path, image_dir=tmp_path / "elsewhere")


def test_malformed_lines_are_reported(tmp_path, load):
    lines = [LINES[0], "no address", "a\tb\thttp://x", "\thttp://x", "caption\tftp://x", LINES[1]]
    write(tmp_path / TRAIN, lines)
    with open(tmp_path / TRAIN, "ab") as stream:
        stream.write(b"caf\xe9\thttp://x\nlast\thttp://y")
    report = DataReport()
    dataset = load("conceptual_captions", tmp_path, "train", report=report, with_images=False)
    assert [problem.line for problem in report.problems] == [2, 3, 4, 5, 7]
    assert dataset["captions"][-1] == ["last"] and dataset["image_id"][-1] == "000000007"


def test_held_out_pairs_are_drawn_by_seed(tmp_path, load):
    write(tmp_path / TRAIN, [f"caption {i}\thttp://example.org/{i}" for i in range(100)])
    write(tmp_path / VALIDATION, LINES)
    options = {"with_images": False, "held_out": 10}
    loaded = load("conceptual_captions", tmp_path, **options)
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 90, "validation": 10, "test": 4}
    assert not set(loaded["train"]["image_id"]) & set(loaded["validation"]["image_id"])
    again = load("conceptual_captions", tmp_path, "validation", **options)
    assert again["image_id"][:] == loaded["validation"]["image_id"][:]
    other = load("conceptual_captions", tmp_path, "validation", **options, held_out_seed=1)
    assert other["image_id"][:] != again["image_id"][:]
    with pytest.raises(ValueError, match="`held_out` is 100; expected 1 to 99"):
        load("conceptual_captions", tmp_path, with_images=False, held_out=100)


def test_names_and_addresses_for_the_downloader(tmp_path):
    write(tmp_path / TRAIN, [LINES[0], "broken", LINES[1]])
    assert list(images_to_fetch(tmp_path, "train")) == [
        ("000000000", "https://example.org/a?resize=3"),
        ("000000002", "http://example.org/b.jpg"),
    ]


def test_real_lines(material, tmp_path, load):
    source = material / "conceptual_captions" / "Validation_GCC-1.1.0-Validation.first12000.tsv.gz"
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    report = DataReport()
    dataset = load("conceptual_captions", tmp_path, "validation", report=report, with_images=False)
    captions = [captions[0] for captions in dataset["captions"]]
    assert (len(dataset), len(set(captions)), len(set(dataset["url"]))) == (12_000, 11_801, 12_000)
    assert report.problems == []
    assert sum(any(ord(letter) > 127 for letter in caption) for caption in captions) == 26
    assert sum(len(caption.split()) for caption in captions) / 12_000 == pytest.approx(10.39, abs=0.01)
    assert gzip.decompress(source.read_bytes()).decode().split("\n")[0].split("\t")[0] == captions[0]
