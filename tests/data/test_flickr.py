"""Flickr8k and Flickr30k: Karpathy's file and the original token files."""

import gzip
import json

import pytest

from hf_captioners.data import DataReport

NAMES = {"train": ["1_a.jpg", "2_b.jpg"], "validation": ["3_c.jpg"], "test": ["4_d.jpg"]}
LISTS = {
    "flickr8k": {
        "train": "Flickr_8k.trainImages.txt",
        "validation": "Flickr_8k.devImages.txt",
        "test": "Flickr_8k.testImages.txt",
    },
    "flickr30k": {"train": "train.txt", "validation": "val.txt", "test": "test.txt"},
}
TOKEN_FILES = {"flickr8k": "Flickr8k.token.txt", "flickr30k": "results_20130124.token"}


def expected():
    return {split: {name: [f"{name} one .", f'{name} two, "x" .'] for name in names} for split, names in NAMES.items()}


def captions_of(loaded):
    return {split: dict(zip(rows["image_id"], rows["captions"], strict=True)) for split, rows in loaded.items()}


@pytest.fixture
def folder(tmp_path, image):
    for names in NAMES.values():
        for name in names:
            image(tmp_path / "flickr" / "Images" / name)
    return tmp_path / "flickr"


@pytest.mark.parametrize("name", LISTS)
def test_token_files(folder, load, name):
    lines = [
        f"{n}#{k}\t{c}" for part in expected().values() for n, captions in part.items() for k, c in enumerate(captions)
    ]
    # the original has captions of an image that does not exist; no list names it
    lines.append("2258277193_586949ec62.jpg.1#0\tA ghost .")
    (folder / TOKEN_FILES[name]).write_text("\r\n".join(lines) + "\r\n")
    for split, list_name in LISTS[name].items():
        ends = ".jpg" if name == "flickr8k" else ""  # Flickr30k's lists are bare numbers
        (folder / list_name).write_text("\n".join(n.removesuffix(".jpg") + ends for n in NAMES[split]) + "\n")
    loaded = load(name, folder, strict=True)
    assert captions_of(loaded) == expected()
    assert loaded["test"][0]["image"].size == (24, 16) and loaded["test"][0]["caption_ids"] == [6, 7]


@pytest.mark.parametrize("name", LISTS)
def test_karpathy_file_without_filepath_and_cocoid(folder, load, name):
    entries = [
        {
            "filename": n,
            "split": "val" if split == "validation" else split,
            "imgid": 0,
            "sentids": [0, 1],
            "sentences": [{"raw": c, "tokens": c.split(), "imgid": 0, "sentid": k} for k, c in enumerate(captions)],
        }
        for split, part in expected().items()
        for n, captions in part.items()
    ]
    (folder / f"dataset_{name}.json").write_text(json.dumps({"images": entries, "dataset": name}))
    loaded = load(name, folder, strict=True)
    assert captions_of(loaded) == expected()
    assert "cocoid" not in loaded["train"].features


def test_bad_lines_are_reported(folder, load):
    (folder / "Flickr8k.token.txt").write_text("1_a.jpg#0\tOne .\nbroken line\n2_b.jpg#0\t \n3_c.jpg#0\tThree .\n")
    (folder / "Flickr_8k.trainImages.txt").write_text("1_a.jpg\n2_b.jpg\n")
    (folder / "Flickr_8k.devImages.txt").write_text("3_c.jpg\n")
    report = DataReport()
    load("flickr8k", folder, report=report)
    assert [(p.file.rsplit("/")[-1], p.line, p.kind) for p in report.problems] == [
        ("Flickr8k.token.txt", 2, "malformed row"),
        ("Flickr8k.token.txt", 3, "missing caption"),
        ("Flickr_8k.trainImages.txt", 2, "missing caption"),
    ]


def test_errors_name_what_is_missing(folder, load):
    with pytest.raises(FileNotFoundError, match="no dataset_flickr8k.json and no token file such as"):
        load("flickr8k", folder)
    (folder / "Flickr8k.token.txt").write_text("1_a.jpg#0\tOne .\n")
    with pytest.raises(FileNotFoundError, match="no lists of images: expected .*trainImages.txt"):
        load("flickr8k", folder)
    (folder / "Flickr8k.lemma.token.txt").write_text("x")
    with pytest.raises(
        FileNotFoundError, match=r"several token files \(Flickr8k.lemma.token.txt, Flickr8k.token.txt\)"
    ):
        load("flickr8k", folder)


def test_real_token_file(material, tmp_path, load):
    source = material / "flickr8k"
    tokens = gzip.decompress((source / "Flickr8k.token.without_test.txt.gz").read_bytes())
    (tmp_path / "Flickr8k.token.txt").write_bytes(tokens)
    for part in ("train", "dev"):
        (tmp_path / f"Flickr_8k.{part}Images.txt").write_bytes((source / f"Flickr_8k.{part}Images.txt").read_bytes())
    report = DataReport()
    loaded = load("flickr8k", tmp_path, with_images=False, report=report)
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 6000, "validation": 1000}
    assert report.problems == []
    folders = load("caption_folder", source, check_images=False)
    assert captions_of(loaded) == captions_of(folders), "7,000 x 5 captions in the same order"
