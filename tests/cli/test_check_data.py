"""`hf-captioners check-data`, as a person types it."""

import argparse
import json

import PIL.Image
import pytest

from hf_captioners.cli import check_data
from hf_captioners.data.generated_captions import record_generated, text_digest


def check(*arguments):
    parser = argparse.ArgumentParser(prog="hf-captioners check-data")
    check_data.add_arguments(parser)
    return check_data.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png"):
        PIL.Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "captions.txt").write_text("a.png\tA dog runs.\na.png\tA dog.\nb.png\tA cat\n")
    return tmp_path


def test_a_good_folder(folder, capsys):
    assert check(folder) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train: 2 images",
        "captions per image: 1 to 2, mean 1.50",
        "words per caption: 2 to 3, mean 2.33",
        "Nothing is wrong.",
    ]


def test_bad_rows_are_shown_with_their_lines(folder, capsys):
    (folder / "captions.txt").write_text("a.png\tA dog.\ngone.png\tA fox.\nbroken\nb.png\tA cat\n")
    (folder / "b.png").write_bytes(b"no image")
    assert check(folder) == 1
    out = capsys.readouterr().out
    first = out.index("malformed row")
    assert first < out.index("missing image") < out.index("unreadable image"), "grave ones first"
    assert "captions.txt:2: missing image: there is no file" in out
    assert "captions.txt:3: malformed row" in out
    assert "captions.txt:4: unreadable image" in out
    assert out.endswith("Wrong: 1 x malformed row, 1 x missing image, 1 x unreadable image.\n")
    assert check(folder, "--show", 1) == 1
    assert "... and 2 more (--show 0 shows all)" in capsys.readouterr().out
    assert check(folder, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["kept"] == {"train": 1} and [problem["line"] for problem in report["problems"]] == [3, 2, 4]


def test_images_that_nobody_has_reviewed_are_one_line(folder, capsys):
    """They are no faults, beside which they would be lost, or the other way round; `--show 0` lists them."""
    for number in range(60):
        PIL.Image.new("RGB", (8, 8)).save(folder / f"new_{number:02}.png")
    assert check(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    told = f"60 image(s) have no captions yet, such as {folder}/new_00.png (--show 0 lists them)."
    assert lines[-2:] == [told, "Nothing else is wrong."] and len(lines) == 5
    (folder / "captions.txt").write_text("a.png\tA dog.\ngone.png\tA fox.\n")
    assert check(folder) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "captions.txt:2: missing image" in lines[0] and lines[-1] == "Wrong: 1 x missing image."
    assert check(folder, "--show", 0) == 1
    assert capsys.readouterr().out.count(": image without caption: ") == 61


def test_captions_of_a_captioner_are_told(tmp_path, capsys):
    for name in ("a", "b"):
        PIL.Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text(f"a {name}\n")
    record_generated(tmp_path, {"a.txt": text_digest("a a"), "b.txt": text_digest("another b")})
    assert check(tmp_path) == 0
    assert "A captioner wrote 1 text file(s) and nobody changed them: training takes" in capsys.readouterr().out


def test_what_cannot_be_read_at_all(tmp_path, folder, capsys):
    assert check(tmp_path / "nowhere") == 2
    assert "there is no file or folder" in capsys.readouterr().err
    assert check(folder, "--data_options", "colour=red") == 2
    assert "has no option colour" in capsys.readouterr().err
    assert check(folder, "--data_options", "check_images") == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err


def test_options_and_other_data_sets(folder, capsys):
    (folder / "dataset_flickr8k.json").write_text(
        json.dumps({"images": [{"filename": "a.png", "split": "train", "sentences": [{"raw": "A dog", "sentid": 1}]}]})
    )
    assert check(folder, "--dataset", "flickr8k", "--data_options", "max-captions=1") == 0
    assert "train: 1 images" in capsys.readouterr().out


def test_no_fault_hides_the_others(tmp_path, capsys):
    for split in ("train", "val", "test"):
        (tmp_path / split).mkdir()
        PIL.Image.new("RGB", (8, 8)).save(tmp_path / split / "a.png")
    rows = [
        {"file_name": "a.png", "caption": "A dog.", "year": 1999},
        {"file_name": "gone.png", "caption": "A fox.", "year": "old"},
        {"file_nam": "a.png", "caption": "A cat."},
    ]
    (tmp_path / "train/metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "val/captions.csv").write_text("file_name,caption,caption\na.png,A dog.,A hound.\n")
    (tmp_path / "test/a.png").write_bytes(b"no image")
    (tmp_path / "test/captions.txt").write_text("a.png\tA dog.\n")
    assert check(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    kinds = ["unreadable table", "mixed types", "malformed row", "missing image", "unreadable image"]
    assert [next(kind for kind in kinds if f": {kind}: " in line) for line in lines[:5]] == kinds, lines
    assert "captions.csv:1 has the column 'caption' twice" in lines[0]
    assert "'year' mixes types: int in" in lines[1] and "metadata.jsonl:2" in lines[1]
    assert "train: 1 images" in lines


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        ({"metadata.jsonl": "", "captions.txt": "a.png\tA dog."}, ["has several tables"]),
        ({"captions.txt": "\ufeffa.png\tA dog.".encode("utf-16-le")[:-1]}, ["cannot be read as utf-16-le"]),
        ({"metadata.parquet": "no table"}, ["cannot be read as Parquet"]),
        ({"train/captions.txt": "b.png\tA dog.", "test/b.png": ""}, ["test has 1 images", "there is no file"]),
        ({"val/captions.txt": "b\tA", "dev/captions.txt": "c\tA"}, ["two folders for one split", "no file"]),
    ],
)
def test_a_table_that_cannot_be_read_is_one_problem(tmp_path, capsys, files, faults):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert check(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    for fault, line in zip(faults, lines, strict=False):
        assert fault in line, lines


def test_a_broken_file_of_coco_does_not_hide_the_other(tmp_path, capsys):
    good = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "id": 1, "caption": "A dog"}]}
    (tmp_path / "captions_train2014.json").write_text("{")
    (tmp_path / "captions_val2014.json").write_text(json.dumps(good))
    assert check(tmp_path, "--dataset", "coco", "--data_options", "official=true") == 1
    out = capsys.readouterr().out
    assert "captions_train2014.json is not JSON" in out and "missing image: there is no file" in out
    (tmp_path / "captions_val2014.json").write_text("[]")
    assert check(tmp_path, "--dataset", "coco", "--data_options", "official=true") == 1
    assert capsys.readouterr().out.count("unreadable table") == 3  # two lines and their number
