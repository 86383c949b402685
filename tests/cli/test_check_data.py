"""`hf-captioners check-data`, as a person types it."""

import argparse
import json

import PIL.Image
import pytest

from hf_captioners.cli import check_data


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


def test_what_cannot_be_read_at_all(tmp_path, folder, capsys):
    assert check(tmp_path / "nowhere") == 2
    assert "there is no folder" in capsys.readouterr().err
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
