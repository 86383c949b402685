"""The table of kept captions: what is written, and what stays as it was."""

import json
import multiprocessing
import os

import pytest
from PIL import Image

from hf_captioners.data.loading import load_captions
from hf_captioners.output_files import UnsafeFileError
from hf_captioners.review.table import ChangedCaptionsError, ReviewTable


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png", "deep/c.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    return tmp_path


def lines_of(folder):
    return (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()


def test_captions_are_kept_and_can_be_trained_on(folder):
    table = ReviewTable(folder)
    table.keep(2, ["  a  red box ", "", "a box"])
    table.keep(0, ["é ü 犬"])
    assert table.rows() == {"deep/c.png": ["a red box", "a box"], "a.png": ["é ü 犬"]}
    rows = load_captions("caption_folder", data_dir=str(folder))["train"]
    assert {row["file_name"]: row["captions"] for row in rows} == table.rows()


def test_what_is_proposed_comes_from_a_table_or_a_text_file_and_kept_captions_take_its_place(folder):
    (folder / "a.txt").write_text("of the file\n")
    (folder / "b.txt").write_text("of the file\n")
    generated = folder / "captions.out.jsonl"
    generated.write_text(json.dumps({"image": str(folder / "b.png"), "caption": "of the table", "score": -1.0}) + "\n")
    table = ReviewTable(folder, captions=generated)
    assert [table.captions(number) for number in range(3)] == [
        (["of the file"], "text file"),
        (["of the table"], "table"),
        ([], "none"),
    ]
    table.keep(0, ["mine"])
    assert table.captions(0) == (["mine"], "kept")


def test_other_lines_and_columns_stay_as_they_are(folder):
    untouched = '{"file_name": "elsewhere.png",   "captions": ["x"], "n": 1e3}'
    rows = [
        untouched,
        "not JSON",
        '{"file_name": "a.png", "caption": "one", "place": "Rome"}',
        '{"file_name": "a.png", "caption": "two", "place": "Rome"}',
        '{"file_name": "b.png", "captions": ["three"], "split": "test"}',
    ]
    (folder / "metadata.jsonl").write_text("\n".join(rows) + "\n")
    table = ReviewTable(folder)
    assert table.rows() == {"a.png": ["one", "two"], "b.png": ["three"]}
    table.keep(0, ["only"])
    table.keep(1, ["four", "five"])
    assert lines_of(folder) == [
        untouched,
        "not JSON",
        '{"file_name": "a.png", "caption": "only", "place": "Rome"}',
        '{"file_name": "b.png", "captions": ["four", "five"], "split": "test"}',
    ]


def test_bytes_that_are_no_text_survive(folder):
    bad = b'{"file_name": "\xff.png", "captions": ["x"]}'
    (folder / "metadata.jsonl").write_bytes(bad + b"\n")
    ReviewTable(folder).keep(0, ["a"])
    assert (folder / "metadata.jsonl").read_bytes().splitlines()[0] == bad


def test_a_name_that_is_not_utf8_is_read_back(folder):
    name = os.fsdecode(b"z\xff.png")
    try:
        Image.new("RGB", (8, 8)).save(folder / name)
    except OSError:
        pytest.skip("this file system has no such names")
    table = ReviewTable(folder)
    table.keep(table.names.index(name), ["a"])
    assert ReviewTable(folder).rows() == {name: ["a"]}


def test_a_change_by_another_program_is_kept(folder):
    table = ReviewTable(folder)
    table.keep(0, ["a"])
    with open(folder / "metadata.jsonl", "a") as file:
        file.write('{"file_name": "b.png", "captions": ["b"]}\n')
    table.keep(2, ["c"])
    assert table.rows() == {"a.png": ["a"], "b.png": ["b"], "deep/c.png": ["c"]}


@pytest.mark.parametrize("captions", [None, "text", [1], [], ["", "  "], ["x" * 2001], ["x"] * 21, ["\udcff"]])
def test_what_is_no_caption_is_refused(folder, captions):
    table = ReviewTable(folder)
    with pytest.raises(ValueError, match="caption"):
        table.keep(0, captions)
    assert not table.path.exists()


def test_folders_that_cannot_be_reviewed_are_refused_by_name(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        ReviewTable(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no images"):
        ReviewTable(tmp_path / "empty")
    (tmp_path / "wrong.jsonl").write_text('{"image": "elsewhere.png", "caption": "x"}\n')
    with pytest.raises(ValueError, match="names no image"):
        ReviewTable(folder, captions=tmp_path / "wrong.jsonl")
    (folder / "captions.csv").write_text("file_name,caption\na.png,x\n")
    with pytest.raises(ValueError, match=r"captions\.csv.*convert it"):
        ReviewTable(folder)
    (folder / "captions.csv").rename(folder / "deep" / "captions.csv")
    with pytest.raises(ValueError, match="review that folder"):
        ReviewTable(folder)


def test_a_table_that_is_a_link_is_not_replaced(folder, tmp_path_factory):
    """Neither when the page opens nor, if it becomes one, when captions are kept."""
    outside = tmp_path_factory.mktemp("outside") / "metadata.jsonl"
    outside.write_text('{"file_name": "a.png", "captions": ["old"]}\n')
    (folder / "metadata.jsonl").symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="metadata.jsonl is not written: it is a symbolic link to"):
        ReviewTable(folder)
    (folder / "metadata.jsonl").unlink()
    table = ReviewTable(folder)
    (folder / "metadata.jsonl").symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="symbolic link"):
        table.keep(0, ["new"])
    assert (folder / "metadata.jsonl").is_symlink() and "old" in outside.read_text()


def test_text_files_outside_are_proposed_only_where_that_is_typed(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_text("secret\n")
    (folder / "a.txt").symlink_to(outside)
    with pytest.raises(UnsafeFileError, match=r"a.txt is not read: it leads to .*secret, .*--follow_links"):
        ReviewTable(folder)
    assert ReviewTable(folder, follow_links=True).captions(0) == (["secret"], "text file")
    (folder / "a.txt").unlink()
    table = ReviewTable(folder)
    (folder / "a.txt").symlink_to(outside)
    assert table.captions(0) == ([], "none")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("name", ["metadata.jsonl", "a.txt"])
def test_pipes_and_devices_are_named_at_once(folder, name):
    """A request would wait for a pipe, and a device without an end fills the memory."""
    os.mkfifo(folder / name)
    with pytest.raises(UnsafeFileError, match=f"{name} is a named pipe"):
        ReviewTable(folder)
    (folder / name).unlink()
    table = ReviewTable(folder, follow_links=True)
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(UnsafeFileError, match="symbolic link|is a device"):
        ReviewTable(folder, follow_links=True)
    if name == "a.txt":
        assert table.captions(0) == ([], "none")


def test_the_mode_of_the_table_stays(folder):
    table = ReviewTable(folder)
    table.keep(0, ["one"])
    (folder / "metadata.jsonl").chmod(0o640)
    table.keep(0, ["two"])
    assert (folder / "metadata.jsonl").stat().st_mode & 0o777 == 0o640 and table.rows() == {"a.png": ["two"]}


def keep_all(folder, numbers):
    table = ReviewTable(folder)
    for number in numbers:
        table.keep(number, [f"caption {number}"])


def test_two_processes_lose_no_captions(tmp_path):
    for number in range(60):
        Image.new("RGB", (2, 2)).save(tmp_path / f"{number:03}.png")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=keep_all, args=(tmp_path, range(first, 60, 2))) for first in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert ReviewTable(tmp_path).rows() == {f"{number:03}.png": [f"caption {number}"] for number in range(60)}


def test_a_row_that_an_editor_adds_between_reading_and_replacing_is_kept(folder, monkeypatch):
    """An editor takes no lock."""
    table = ReviewTable(folder)
    table.keep(2, ["there before"])
    added = ['{"file_name": "b.png", "captions": ["by an editor"]}\n']

    def add_a_row_and_write(record):
        if added:
            with open(folder / "metadata.jsonl", "a") as file:
                file.write(added.pop())
        return json.dumps(record)

    monkeypatch.setattr("hf_captioners.review.table.json_line", add_a_row_and_write)
    table.keep(0, ["mine"])
    assert table.rows() == {"a.png": ["mine"], "b.png": ["by an editor"], "deep/c.png": ["there before"]}


def test_captions_that_changed_since_they_were_shown_are_not_replaced(folder):
    table = ReviewTable(folder)
    table.keep(0, ["first"], shown=[])
    table.keep(0, ["second"], shown=["first"])
    with pytest.raises(ChangedCaptionsError) as changed:
        table.keep(0, ["third"], shown=["first"])
    assert changed.value.captions == ["second"] and table.rows() == {"a.png": ["second"]}
    table.keep(0, ["second"], shown=["first"])  # the same text
    table.keep(0, ["third"])
    assert table.rows() == {"a.png": ["third"]}


def test_rows_of_one_image_keep_their_own_columns(folder):
    rows = [{"file_name": "a.png", "caption": text, "by": name} for text, name in (("one", "Ada"), ("two", "Bob"))]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = ReviewTable(folder)
    for captions, by in ((["1", "2"], "Ada Bob"), (["1", "2", "3"], "Ada Bob Bob"), (["1"], "Ada")):
        table.keep(0, captions)
        found = [json.loads(line) for line in lines_of(folder)]
        assert [row["caption"] for row in found] == captions and [row["by"] for row in found] == by.split()


def test_a_number_that_json_has_not_is_not_written(folder):
    content = '{"file_name": "a.png", "captions": ["x"], "n": 1e400}\n'
    (folder / "metadata.jsonl").write_text(content)
    with pytest.raises(ValueError, match="a number that is too large"):
        ReviewTable(folder).keep(0, ["y"])
    ReviewTable(folder).keep(1, ["y"])
    assert (folder / "metadata.jsonl").read_text().startswith(content)
