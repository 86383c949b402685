"""`hf-captioners caption DIR --sidecar`: text files beside images, written once, whatever happens."""

import importlib.util
import io
import json
import shutil

import PIL.Image
import pytest

from hf_captioners.captioning import batches, sidecars
from hf_captioners.cli import main
from hf_captioners.data.generated_captions import RECORD_NAME, generated_digests, text_digest


@pytest.fixture
def folder(images, tmp_path):
    """Six images in two folders, one of them damaged."""
    target = tmp_path / "photos"
    (target / "more").mkdir(parents=True)
    for number in range(6):
        shutil.copy(images / f"scene_00{number}.png", target / ("more" if number > 3 else "") / f"{number}.png")
    (target / "2.png").write_bytes((target / "2.png").read_bytes()[:90])
    return target


@pytest.fixture
def caption(folder, captioner, capsys):
    """Run the command; return its exit status and what it said."""

    def run(*typed, batch_size=2):
        options = ["--model", captioner, "--num_beams", "1", "--batch_size", str(batch_size), "--workers", "0"]
        return main(["caption", str(folder), "--sidecar", *typed, *options]), capsys.readouterr().err

    return run


def texts(folder, ending="txt"):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob(f"*.{ending}"))}


def all_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_text_file_beside_each_image(folder, caption, captioner, tmp_path):
    """As in other outputs; the damaged image has none; nothing else stays but hidden records."""
    before = all_files(folder)
    status, said = caption()
    assert status == 1 and "2.png cannot be read" in said and "Wrote 5 text files beside images." in said
    arguments = ["--model", captioner, "--num_beams", "1", "--batch_size", "2", "--allow_skipped"]
    output = tmp_path / "all.txt"
    assert main(["caption", str(folder), "--output", str(output), *arguments]) == 0
    lines = [line.split("\t") for line in output.read_text().splitlines()]
    found = texts(folder)
    assert list(found) == ["0.txt", "1.txt", "3.txt", "more/4.txt", "more/5.txt"]
    assert found == {name[len(str(folder)) + 1 : -3] + "txt": f"{caption}\n" for name, caption in lines}
    new = set(all_files(folder)) - set(before) - set(found)
    assert new == {RECORD_NAME, f"more/{RECORD_NAME}", ".sidecars.txt.jsonl.lock"}
    assert generated_digests(folder / "more")["4.txt"] == {text_digest(found["more/4.txt"])}


@pytest.mark.parametrize(("typed", "ending"), [("caption", "caption"), (".caption", "caption"), ("a.txt", "a.txt")])
def test_endings(folder, caption, typed, ending):
    assert caption(typed, "--allow_skipped")[0] == 0
    assert sorted(texts(folder, ending)) == [f"{name}.{ending}" for name in ("0", "1", "3", "more/4", "more/5")]


def test_what_is_there_is_kept_unless_something_is_typed(folder, caption):
    (folder / "1.txt").write_text("mine\r\n", newline="")
    status, said = caption()
    assert status == 2 and "1 image(s) have a text file, such as" in said
    assert "Pass --skip_existing, --overwrite_generated, --append, --prepend or --overwrite." in said
    assert texts(folder) == {"1.txt": "mine\n"} and sorted(all_files(folder))[0] == "0.png"
    status, said = caption("--skip_existing", "--allow_skipped")
    assert status == 0 and "Wrote 4 text files beside images. 1 had one." in said
    found = texts(folder)
    assert found["1.txt"] == "mine\n" and len(found) == 5
    assert caption("--append", "--allow_skipped", "--prefix", "a photo: ", "--suffix", " (new)")[0] == 0
    appended = texts(folder)
    assert appended["1.txt"].startswith("mine\na photo: ") and appended["1.txt"].endswith(" (new)\n")
    assert appended["0.txt"] == f"{found['0.txt']}a photo: {found['0.txt'].strip(chr(10))} (new)\n"
    assert caption("--prepend", "--allow_skipped")[0] == 0
    prepended = texts(folder)
    assert prepended["3.txt"] == found["3.txt"] + appended["3.txt"]
    assert caption("--overwrite", "--yes", "--allow_skipped")[0] == 0
    assert texts(folder)["3.txt"] == found["3.txt"] and "mine" not in texts(folder)["1.txt"]


def write_rows(folder, **captions):
    lines = [json.dumps({"file_name": f"{name}.png", **row}) for name, row in captions.items()]
    (folder / "metadata.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_images_that_were_reviewed_are_done(folder, caption):
    """Kept and rejected images, in the table of any folder up to the typed one; a row without a caption is none."""
    write_rows(
        folder, **{"0": {"captions": ["a dog"]}, "1": {"captions": [], "rejected": True}, "3": {"captions": []}}
    )
    with (folder / "metadata.jsonl").open("a") as file:
        file.write('{"file_name": "./more/4.png", "captions": ["two dogs"]}\nno row\n')
    status, said = caption("--allow_skipped")
    assert status == 0 and "Wrote 2 text files beside images. 3 image(s) were reviewed already" in said
    assert sorted(texts(folder)) == ["3.txt", "more/5.txt"]


def test_a_second_round_after_all_was_reviewed_captions_nothing(folder, caption, monkeypatch):
    (folder / "2.png").unlink()
    write_rows(folder, **{name: {"captions": ["a dog"]} for name in ("0", "1", "3", "more/4", "more/5")})
    monkeypatch.setattr("hf_captioners.cli.caption.load_model", pytest.fail)
    status, said = caption()
    assert status == 0 and "There is nothing to caption. 5 image(s) were reviewed already" in said


def test_only_texts_that_nobody_changed_are_replaced(folder, caption):
    """With `--overwrite_generated`: not what a person wrote or corrected, nor what is no UTF-8."""
    (folder / "1.txt").write_text("mine\n")
    assert caption("--skip_existing", "--allow_skipped")[0] == 0
    first = texts(folder)
    (folder / "0.txt").write_text("corrected\n")
    (folder / "3.txt").write_text(f"\n{first['3.txt'].strip()}\r\n")  # an editor that changes line ends
    (folder / "more" / "5.txt").write_bytes(b"\xff\xfe")
    status, said = caption()
    assert status == 2 and "5 image(s) have a text file" in said
    assert "a captioner wrote 2 of them and nobody changed these. Pass --skip_existing, --overwrite_generated" in said
    status, said = caption("--overwrite_generated", "--allow_skipped", "--prefix", "new: ")
    assert status == 0, said
    assert (
        "Wrote 2 text files beside images. 3 text file(s) were written or changed by somebody, and are kept." in said
    )
    assert (folder / "more" / "5.txt").read_bytes() == b"\xff\xfe"
    (folder / "more" / "5.txt").unlink()
    assert texts(folder) == {
        "0.txt": "corrected\n",
        "1.txt": "mine\n",
        "3.txt": f"new: {first['3.txt']}",
        "more/4.txt": f"new: {first['more/4.txt']}",
    }


def test_words_of_people_are_replaced_only_where_a_person_agrees(folder, caption, monkeypatch):
    """`--overwrite` names them and asks in a terminal, and needs `--yes` elsewhere."""
    assert caption("--allow_skipped")[0] == 0
    first = texts(folder)
    assert caption("--overwrite", "--allow_skipped")[0] == 0 and texts(folder) == first  # all are generated
    (folder / "0.txt").write_text("my own words\n")
    own = texts(folder)
    status, said = caption("--overwrite", "--allow_skipped")
    assert status == 2 and f"written or changed by somebody: {folder}/0.txt\n" in said and texts(folder) == own
    assert "1 text file(s) have words that no captioner wrote. Pass `--overwrite_generated`" in said
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    status, said = caption("--overwrite", "--allow_skipped")
    assert status == 2 and "Replace them? [y/N]" in said and "Nothing was replaced." in said and texts(folder) == own
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert caption("--overwrite", "--allow_skipped")[0] == 0 and texts(folder) == first
    (folder / "0.txt").write_text("my own words\n")
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert caption("--overwrite", "--yes", "--allow_skipped")[0] == 0 and texts(folder) == first
    status, said = caption("--append", "--yes")
    assert status == 2 and "`--yes` answers the question of `--overwrite`" in said


class Terminal(io.StringIO):
    """Lines that a person types."""

    def isatty(self):
        return True


def test_a_name_that_cannot_have_a_text_file_does_not_end_the_job(folder, caption, images):
    """Too long, taken by another image, or by a folder: named, counted, and the exit status of unreadable images."""
    (folder / "2.png").unlink()
    PIL.Image.new("RGB", (8, 8)).save(folder / "0.jpg")
    (folder / "1.txt").mkdir()
    shutil.copy(images / "scene_006.png", folder / f"{'a' * 248}.png")  # the name of the text file fits
    shutil.copy(images / "scene_006.png", folder / f"{'b' * 251}.png")
    status, said = caption("description")
    assert status == 1 and f"not captioned: The text file of {folder}/{'b' * 251}.png would have a name of" in said
    assert f"{'a' * 248}.png would have a name of 260 bytes" in said
    assert sorted(texts(folder, "description"))[:2] == ["0.description", "1.description"]
    status, said = caption("--prefix", "x ")
    assert (
        status == 1 and f"not captioned: {folder}/0.png has no text file of its own: {folder}/0.txt is that of" in said
    )
    assert f"not captioned: {folder}/1.txt is a folder, expected the text file of {folder}/1.png." in said
    assert "2 image(s) can have no text file because of their names." in said and "Wrote 6 text files" in said
    (folder / "1.txt").rmdir()
    assert {f"{'a' * 248}.txt", f"{'b' * 251}.txt", "0.txt"} < set(texts(folder))
    assert caption("--overwrite_generated", "--allow_skipped")[0] == 0


def test_a_raw_photograph_leaves_the_text_file_to_its_developed_copy(folder, caption):
    (folder / "0.dng").write_bytes(b"II*\0")
    status, said = caption("--allow_skipped")
    assert status == 0 and f"{folder}/0.dng has no text file of its own" in said and "0.txt" in texts(folder)


def test_several_captions_are_several_lines(folder, caption):
    assert caption("--allow_skipped", "--generate", "do_sample=true", "num_return_sequences=3")[0] == 0
    assert {text.count("\n") for text in texts(folder).values()} == {3}


def test_a_text_file_that_is_no_text_is_kept(folder, caption):
    (folder / "1.txt").write_bytes(b"\xff\xfe")
    status, said = caption("--append")
    assert status == 1 and "1.txt is not UTF-8" in said and (folder / "1.txt").read_bytes() == b"\xff\xfe"
    assert (folder / "0.txt").exists()


@pytest.mark.parametrize(
    ("change", "typed", "said"),
    [
        ("", ["png"], "the ending of images"),
        ("", ["no/ending"], "expected the ending of the text files"),
        ("", ["FOLDER"], "hf-captioners caption DIR --sidecar"),
        ("list", ["--overwrite"], "which is an image of this job"),
        ("study", [], "is a study of several"),
        ("", ["--output", "x.jsonl"], "exclude each other"),
        ("", ["--prefix", "a\nb"], "expected one line of text"),
        ("", ["--generate", "temprature=2"], "Did you mean `temperature`?"),
        ("", ["--generate", "top_k=a"], "expected a whole number from 0"),
        ("", ["--generate", "num_beams=2"], "are the same option"),
        ("", ["--workers", "-1"], "expected 0 (no other process)"),
        ("", ["--bad_words", " "], "has an empty word"),
    ],
)
def test_what_cannot_be_is_said_before_the_first_image(folder, captioner, capsys, change, typed, said):
    inputs = folder
    if change in ("list", "study"):
        inputs = folder / "list.lst"
        inputs.write_text("0.png\n0.txt\n" if change == "list" else "0.png\t1.png\n")
    typed = [str(folder) if text == "FOLDER" else text for text in typed]
    before = all_files(folder)
    assert main(["caption", str(inputs), "--model", captioner, "--num_beams", "1", "--sidecar", *typed]) == 2
    assert said in capsys.readouterr().err
    assert all_files(folder) == before


def test_modes_need_text_files(folder, captioner, capsys):
    assert main(["caption", str(folder), "--model", captioner, "--append"]) == 2
    assert "`--append` is about text files beside images" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["caption", str(folder), "--model", captioner, "--sidecar", "--append", "--overwrite"])
    assert "not allowed with" in capsys.readouterr().err
    assert main(["caption", "--model", captioner, "--sidecar", str(folder)]) == 2
    assert "hf-captioners caption DIR --sidecar" in capsys.readouterr().err
    assert main(["caption", "--model", captioner]) == 2
    assert "Images are missing" in capsys.readouterr().err


class Killed(BaseException):
    """A kill -9: nothing is done any more."""


KILLS = ("before captions are noted", "after they are noted", "after the record", "between two files", "at the end")


def kill_at(monkeypatch, moment):
    """Kill the job at its second batch, or at its end."""
    calls = {"add": 0, "write": 0}
    add, record, write, finish = (
        batches.CaptionFile.add,
        sidecars.record_generated,
        sidecars.change_file,
        sidecars.SidecarFiles.finish,
    )

    def killed_add(self, records, skipped=()):
        calls["add"] += 1
        if calls["add"] == 2 and moment == KILLS[0]:
            raise Killed
        add(self, records, skipped)
        if calls["add"] == 2 and moment == KILLS[1]:
            raise Killed

    def killed_record(*arguments, **assessed):
        record(*arguments, **assessed)
        if calls["add"] == 2 and moment == KILLS[2]:
            raise Killed

    def killed_write(*arguments):
        written = write(*arguments)
        calls["write"] += 1
        if calls["write"] == 3 and moment == KILLS[3]:
            raise Killed
        return written

    def killed_finish(self):
        if moment == KILLS[4]:
            raise Killed
        finish(self)

    monkeypatch.setattr(batches.CaptionFile, "add", killed_add)
    monkeypatch.setattr(sidecars, "record_generated", killed_record)
    monkeypatch.setattr(sidecars, "change_file", killed_write)
    monkeypatch.setattr(sidecars.SidecarFiles, "finish", killed_finish)


@pytest.mark.parametrize("mode", ["", "--append"])
@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_job_writes_once(folder, caption, monkeypatch, tmp_path, moment, mode):
    """The files equal those of an undisturbed job, also with captions that are added to texts of people."""
    typed = ["--allow_skipped", *([mode] if mode else [])]
    if mode:
        for number in (0, 3):
            (folder / f"{number}.txt").write_text("mine\n")
    start = shutil.copytree(folder, tmp_path / "start")
    assert caption(*typed, batch_size=3)[0] == 0
    expected = texts(folder)
    shutil.rmtree(folder)
    shutil.copytree(start, folder)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, moment)
        caption(*typed, batch_size=3)
    status, said = caption(*typed, batch_size=3)
    assert status == 2 and ("--resume" in said or mode == "")
    status, said = caption(*typed, "--resume", batch_size=3)
    assert status == 0 and "2.png cannot be read" in said
    assert texts(folder) == expected
    if mode:  # the last kill may come after the job
        status, said = caption(*typed, "--resume", batch_size=3)
        assert status == 2 and "no interrupted run" in said and texts(folder) == expected
    assert not (folder / "sidecars.txt.jsonl.partial").exists()
    digests = generated_digests(folder) | {f"more/{k}": v for k, v in generated_digests(folder / "more").items()}
    assert all(text_digest(text) in digests[name] for name, text in expected.items())


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_second_round_writes_once(folder, caption, monkeypatch, tmp_path, moment):
    """As an undisturbed one: texts of the captioner are replaced, those of people and reviewed images are not."""
    typed = ["--overwrite_generated", "--allow_skipped", "--suffix", " (new)"]
    assert caption("--allow_skipped", "--prefix", "old: ", batch_size=3)[0] == 0
    (folder / "1.txt").write_text("corrected\n")
    write_rows(folder, **{"more/5": {"captions": ["a dog"]}})
    start = shutil.copytree(folder, tmp_path / "start")
    assert caption(*typed, batch_size=2)[0] == 0
    expected = texts(folder)
    assert [name for name, text in expected.items() if "(new)" in text] == ["0.txt", "3.txt", "more/4.txt"]
    shutil.rmtree(folder)
    shutil.copytree(start, folder)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, moment)
        caption(*typed, batch_size=2)
    assert caption(*typed, "--resume", batch_size=2)[0] == 0
    assert texts(folder) == expected and not list(folder.glob("*.partial"))


def test_a_change_between_kill_and_resumption_is_kept(folder, caption, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, KILLS[3])
        caption("--allow_skipped", batch_size=3)
    (folder / "0.txt").write_text("corrected")
    (folder / "more" / "4.txt").write_text("mine, too")
    assert caption("--allow_skipped", "--resume", batch_size=3)[0] == 0
    assert texts(folder)["0.txt"] == "corrected" and texts(folder)["more/4.txt"] == "mine, too"


@pytest.mark.parametrize("mode", [["--append"], ["--overwrite", "--yes"]])
def test_a_text_that_another_program_changes_while_it_is_written_is_kept_and_named(folder, caption, monkeypatch, mode):
    """Also between the check of a batch and the replacement of the file."""
    (folder / "0.txt").write_text("old\n")
    (folder / "1.txt").write_text("old\n")
    record = sidecars.record_generated

    def record_and_edit(*arguments, **assessed):
        record(*arguments, **assessed)
        (folder / "1.txt").write_text("by an editor\n")

    monkeypatch.setattr(sidecars, "record_generated", record_and_edit)
    status, said = caption(*mode, "--allow_skipped", "--prefix", "a ")
    assert status == 0 and "1.txt was changed by another program while this job ran; it is kept." in said
    assert "Wrote 4 text files" in said and texts(folder)["1.txt"] == "by an editor\n" != texts(folder)["0.txt"]


def test_other_settings_are_not_resumed(folder, caption, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, KILLS[1])
        caption("--append", batch_size=3)
    for typed, said in ((["--prepend"], "mode was 'append', is 'prepend'"), (["--prefix", "a"], "prefix was None")):
        status, err = caption("--resume", *(["--append"] if typed[0] == "--prefix" else []), *typed, batch_size=3)
        assert status == 2 and said in err


def test_parts_of_a_job_write_beside_each_other(folder, caption):
    assert caption("--shard", "1/2", "--allow_skipped")[0] == 0
    assert caption("--shard", "2/2", "--allow_skipped")[0] == 0
    assert sorted(texts(folder)) == ["0.txt", "1.txt", "3.txt", "more/4.txt", "more/5.txt"]


def test_files_that_are_left_out_are_named(folder, captioner, capsys):
    """By ending, with those that are read; texts beside images and hidden files are none of them."""
    own = ("sidecars.txt.jsonl.partial", "out.csv.partial", RECORD_NAME)
    for name in ("a.mp4", "b.MP4", "0.txt", "0.json", "metadata.csv", ".hidden.mp4", "more/noise", *own):
        (folder / name).write_bytes(b"")
    assert main(["caption", str(folder), "--model", captioner, "--num_beams", "1", "--allow_skipped"]) == 0
    said = capsys.readouterr().err
    assert f"left out: 2 file(s) that end with .mp4, such as {folder}/a.mp4\n" in said
    assert f"left out: 1 file(s) without an ending, such as {folder}/more/noise\n" in said
    assert "Images have the endings .jpg .jpeg" in said and said.count("left out:") == 2


@pytest.mark.parametrize("package", ["pillow_heif", "json"])
def test_printed_endings_are_those_that_are_read(tmp_path, captioner, capsys, monkeypatch, package):
    """HEIC with the extra `heif` only."""
    found = None if package == "pillow_heif" else importlib.util.find_spec(package)
    monkeypatch.setattr("hf_captioners.data.images.find_spec", lambda name: found)
    (tmp_path / "a.mp4").touch()
    assert main(["caption", str(tmp_path), "--model", captioner]) == 2
    said = capsys.readouterr().err
    assert ".jpg .jpeg" in said and (".heic .heif" in said) == (found is not None)


def test_training_refuses_captions_that_nobody_changed(folder, caption, captioner, tmp_path, capsys):
    """Captions of people are taken, and generated captions if that is typed."""
    (folder / "2.png").unlink()
    assert caption()[0] == 0
    for name, text in texts(folder).items():
        (folder / name).write_text(f"a scene\n{text}")
    train = ["train", "--model", captioner, "--recipe", "none", "--train_dir", str(folder), "--max_steps", "1"]
    train += ["--validation_share", "0.4", "--disable_tqdm", "true", "--use_cpu", "--report_to", "none"]
    train += ["--generation_max_new_tokens", "3"]
    assert main([*train, "--output_dir", str(tmp_path / "a")]) == 0, capsys.readouterr().err
    (folder / "0.txt").unlink()
    assert caption("--skip_existing")[0] == 0
    assert main([*train, "--output_dir", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert f"A captioner wrote 1 text file(s) of {folder} and nobody changed them: {folder}/0.txt." in said
    assert main([*train, "--output_dir", str(tmp_path / "c"), "--train_on_generated"]) == 0
    assert "nobody changed" not in capsys.readouterr().err
