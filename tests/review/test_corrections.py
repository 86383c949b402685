"""Corrections: drafts, kept and rejected images and text files together, undone, and killed between two writes."""

import json

import pytest
from PIL import Image

from hf_captioners.data.generated_captions import record_generated, require_captions_of_people, text_digest
from hf_captioners.data.loading import load_captions
from hf_captioners.review.corrections import Corrections
from hf_captioners.review.drafts import DRAFTS
from hf_captioners.review.table import ReviewTable
from hf_captioners.review.text_files import TextFiles

WORDS = ["ein Hund", "كلب يجري", "一只狗。"]


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b", "c"):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text(f"generated {name}\n")
    record_generated(tmp_path, {f"{name}.txt": text_digest(f"generated {name}") for name in "abc"})
    (tmp_path / "b.txt").write_text("my own words\n")
    return tmp_path


def opened(folder, text_files=True):
    """Return the corrections of a server that begins anew."""
    table = ReviewTable(folder)
    return Corrections(table, TextFiles(table) if text_files else None)


def test_a_draft_is_there_after_the_server_was_killed_and_changes_nothing_else(folder):
    assert opened(folder).type(0, ["typed", ""]) is True
    assert not (folder / "metadata.jsonl").exists() and (folder / "a.txt").read_text() == "generated a\n"
    later = opened(folder)
    shown = later.captions(0)
    assert (shown["captions"], shown["source"], shown["draft"]) == (["typed", ""], "draft", True)
    assert later.states() == {"kept": [], "rejected": [], "drafts": [0]}
    assert later.type(0, ["generated a"]) is False and not (folder / DRAFTS).exists()


def test_an_older_draft_that_arrives_late_is_left(folder):
    corrections = opened(folder)
    corrections.type(0, ["typed"], time=2.0)
    corrections.type(0, ["ty"], time=1.0)
    assert corrections.captions(0)["captions"] == ["typed"]
    corrections.keep(0, ["typed"], time=3.0)
    corrections.type(0, ["type"], time=2.5)
    assert corrections.states() == {"kept": [0], "rejected": [], "drafts": []}


def test_kept_captions_go_to_the_text_file_of_a_captioner_and_to_no_other(folder):
    corrections = opened(folder)
    assert corrections.text_files.count() == 2
    assert corrections.keep(0, WORDS) == ""
    assert (folder / "a.txt").read_text(encoding="utf-8").splitlines() == WORDS
    assert "stays as it is" in corrections.keep(1, WORDS)
    assert (folder / "b.txt").read_text() == "my own words\n"
    assert corrections.keep(0, ["again"]) == "" and (folder / "a.txt").read_text() == "again\n"
    (folder / "metadata.jsonl").unlink()
    with pytest.raises(ValueError, match="captioner wrote") as refused:
        require_captions_of_people(folder)
    assert "c.txt" in str(refused.value) and "a.txt" not in str(refused.value)


def test_a_text_file_of_two_images_is_that_of_the_first(folder):
    """Of `a.bmp` and `a.png`, as for a captioner; the captions of both are in the table."""
    Image.new("RGB", (8, 8)).save(folder / "a.bmp")
    corrections = opened(folder)
    assert corrections.table.names[:2] == ["a.bmp", "a.png"] and corrections.text_files.count() == 2
    assert corrections.keep(0, ["the first"]) == ""
    assert corrections.keep(1, ["the second"]) == "Its text file is that of another image, and stays as it is."
    assert (folder / "a.txt").read_text() == "the first\n"
    assert corrections.table.rows() == {"a.bmp": ["the first"], "a.png": ["the second"]}


def test_text_files_stay_with_no_sidecars(folder):
    corrections = opened(folder, text_files=False)
    assert corrections.keep(0, WORDS) == "" and (folder / "a.txt").read_text() == "generated a\n"


def test_each_change_is_undone_and_made_again(folder):
    corrections = opened(folder)
    corrections.type(0, ["t"])
    corrections.type(0, ["typed"], begins=False)
    corrections.keep(0, ["typed"])
    corrections.reject(1, ["my own words"])
    states = [{"kept": [0], "rejected": [1], "drafts": []}]
    texts = [(folder / "a.txt").read_text()]
    for _ in range(3):
        corrections.undo()
        states.append(corrections.states())
        texts.append((folder / "a.txt").read_text())
    assert states[1:] == [
        {"kept": [0], "rejected": [], "drafts": []},
        {"kept": [], "rejected": [], "drafts": [0]},
        {"kept": [], "rejected": [], "drafts": []},
    ]
    assert texts == ["typed\n", "typed\n", "generated a\n", "generated a\n"]
    assert not (folder / "metadata.jsonl").exists()
    with pytest.raises(LookupError, match="nothing to undo"):
        corrections.undo()
    for state in reversed(states[:-1]):
        corrections.redo()
        assert corrections.states() == state
    assert (folder / "a.txt").read_text() == "typed\n"


def test_rejected_images_are_not_trained_on_and_keep_their_captions(folder):
    corrections = opened(folder)
    corrections.keep(0, ["kept"])
    corrections.keep(1, ["first kept"])
    corrections.reject(1, ["first kept"])
    corrections.reject(2, ["generated c"])
    rows = load_captions("caption_folder", data_dir=str(folder))["train"]
    assert [(row["file_name"], row["captions"]) for row in rows] == [("a.png", ["kept"])]
    assert corrections.captions(1)["captions"] == ["first kept"] and corrections.captions(1)["rejected"]
    corrections.keep(2, ["used again"])
    assert len(load_captions("caption_folder", data_dir=str(folder))["train"]) == 2
    records = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    assert [record.get("rejected") for record in records] == [None, True, None]


@pytest.mark.parametrize("write", ["TextFiles.write", "ReviewTable.keep", "Drafts.put"])
def test_a_kill_between_two_writes_loses_no_word(folder, monkeypatch, write):
    corrections = opened(folder)
    corrections.type(0, ["typed"])
    owner = {"TextFiles": corrections.text_files, "ReviewTable": corrections.table, "Drafts": corrections.drafts}
    name, method = write.split(".")

    def killed(*_, **__):
        raise SystemExit("killed")

    monkeypatch.setattr(owner[name], method, killed)
    with pytest.raises(SystemExit):
        corrections.keep(0, ["typed"])
    later = opened(folder)
    shown = later.captions(0)
    assert shown["captions"] == ["typed"] and (shown["draft"] or shown["kept"])
    later.keep(0, ["typed"])
    assert later.table.rows() == {"a.png": ["typed"]} and (folder / "a.txt").read_text() == "typed\n"
    assert later.states()["drafts"] == []
