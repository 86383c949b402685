"""A run resumes on the data that it began with, or says what changed."""

import json

import pytest
from PIL import Image

from hf_captioners.data import load_captions
from hf_captioners.training.data_record import FILE, STREAMED_ROWS, describe_rows, resumed_data


@pytest.fixture
def folder(tmp_path):
    rows = [{"file_name": f"{number}.png", "captions": [f"caption {number}", "x"]} for number in range(10)]
    for row in rows:
        Image.new("RGB", (8, 8)).save(tmp_path / row["file_name"])
    write_rows(tmp_path, rows)
    return tmp_path


def read_rows(folder):
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def write_rows(folder, rows):
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def load(folder, streaming=False):
    return load_captions("caption_folder", data_dir=str(folder), split="train", streaming=streaming)


def remove(folder):
    write_rows(folder, read_rows(folder)[3:])


def rename(folder):
    (folder / "0.png").rename(folder / "new.png")
    write_rows(folder, [{**row, "file_name": row["file_name"].replace("0", "new")} for row in read_rows(folder)])


def turn(folder):
    write_rows(folder, read_rows(folder)[::-1])


def edit(folder):
    rows = read_rows(folder)
    rows[4]["captions"][1] = "another"
    write_rows(folder, rows)


def swap_captions(folder):
    rows = read_rows(folder)
    rows[4]["captions"].reverse()
    write_rows(folder, rows)


def replace_image(folder):
    Image.new("RGB", (9, 9), "blue").save(folder / "5.png")


CHANGES = {
    remove: "10 training images before, 7 now",
    rename: "other training images",
    turn: "the training images are in a different order",
    edit: "captions of training images were edited",
    swap_captions: "captions of training images were edited",
    replace_image: "files of training images were replaced",
}


@pytest.mark.parametrize(("change", "said"), CHANGES.items(), ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("purpose", ["training", "evaluation"])
def test_changed_data_end_a_resumed_run_unless_they_are_allowed(folder, tmp_path, change, said, purpose):
    output, said = tmp_path / "run", said.replace("training", purpose)
    output.mkdir()
    assert resumed_data(output, None, {purpose: load(folder)}) == []
    checkpoint = str(output / "checkpoint-4")
    assert resumed_data(output, checkpoint, {purpose: load(folder)}) == []
    recorded = (output / FILE).read_bytes()
    change(folder)
    changed = {purpose: load(folder)}
    with pytest.raises(ValueError, match=f"changed since .*checkpoint-4 was written: {said}[.] Pass .*allow_changed"):
        resumed_data(output, checkpoint, changed)
    assert (output / FILE).read_bytes() == recorded
    told = [f"After checkpoint-4 it was resumed on changed data: {said}."]
    assert resumed_data(output, checkpoint, changed, allow_changed=True, is_main=False) == told
    assert (output / FILE).read_bytes() == recorded
    assert resumed_data(output, checkpoint, changed, allow_changed=True) == told
    assert resumed_data(output, checkpoint, changed) == told  # the card of a run that is killed again says so too


@pytest.mark.parametrize("change", [remove, turn, edit])
def test_the_beginning_of_a_stream_is_compared(folder, tmp_path, change):
    assert len(read_rows(folder)) <= STREAMED_ROWS
    before = describe_rows(load(folder, streaming=True))
    assert describe_rows(load(folder, streaming=True)) == before
    change(folder)
    assert describe_rows(load(folder, streaming=True)) != before


def test_a_folder_that_was_moved_is_the_same_data(folder, tmp_path_factory):
    before = describe_rows(load(folder))
    moved = folder.rename(tmp_path_factory.mktemp("moved") / "images")
    assert describe_rows(load(moved)) == before


def test_a_run_of_an_earlier_version_is_resumed_and_a_damaged_record_named(folder, tmp_path):
    rows = {"training": load(folder)}
    assert resumed_data(tmp_path, str(tmp_path / "checkpoint-1"), rows) == []
    assert (tmp_path / FILE).is_file()
    for content in ("{", "[]", '{"training": 1}', '{"changes": [1]}', "[" * 10**5):
        (tmp_path / FILE).write_text(content)
        with pytest.raises(ValueError, match=f"{FILE} is damaged .* Delete it to resume"):
            resumed_data(tmp_path, str(tmp_path / "checkpoint-1"), rows)
