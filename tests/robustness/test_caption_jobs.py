"""Captioning jobs with names, images and interruptions of every kind."""

import csv
import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import PIL.Image
import pytest
import torch

from hf_captioners.captioning import batches, caption_files, columns
from hf_captioners.captioning.caption_files import CaptionFile
from hf_captioners.captioning.image_list import find_images, views_of
from hf_captioners.cli import main
from hf_captioners.loading import load_captioner
from hf_captioners.metrics.caption_files import read_captions
from hf_captioners.output_files import only_writer_of, printable, quoted_name, unquoted_name
from tests.variants import slow_unless

ODD_NAMES = [
    b"latin\xff.png",
    b"tab\tname.png",
    b"line\nbreak.png",
    b'"quoted".png',
    b"\\udcff.png",
    b"comma, 'and' more.png",
    b" blanks .png",
    "smiling \N{GRINNING FACE} \u202e.png".encode(),
]


@pytest.fixture
def folder(images, tmp_path):
    """Four of the images."""
    target = tmp_path / "photos"
    target.mkdir()
    for number in range(4):
        shutil.copy(images / f"scene_00{number}.png", target)
    return target


@pytest.fixture
def odd(folder):
    """Images whose names are hard to write down."""
    for name in ODD_NAMES:
        shutil.copy(folder / "scene_000.png", os.fsencode(folder) + b"/" + name)
    return folder


def caption(folder, model, output, *typed):
    return main(["caption", str(folder), "--model", model, "--output", str(output), "--num_beams", "1", *typed])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_names_of_any_bytes_are_read_back_to_the_same_files(odd, captioner, tmp_path, capsys):
    wanted = sorted(os.listdir(os.fsencode(odd)))
    assert caption(odd, captioner, tmp_path / "out.jsonl") == 0, capsys.readouterr().err
    names = [record["image"] for record in lines_of(tmp_path / "out.jsonl")]
    assert sorted(os.path.basename(os.fsencode(name)) for name in names) == wanted
    assert caption(odd, captioner, tmp_path / "out.csv") == 0
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [unquoted_name(row["image"]) for row in rows] == names
    assert caption(odd, captioner, tmp_path / "out.txt") == 0
    lines = (tmp_path / "out.txt").read_bytes().decode("utf-8").split("\n")[:-1]
    assert [unquoted_name(line.split("\t")[0]) for line in lines] == names
    assert list(read_captions(tmp_path / "out.jsonl").captions) == names
    assert list(read_captions(tmp_path / "out.csv").captions) == names


def test_a_list_may_have_names_of_any_bytes(odd, captioner, tmp_path, capsys):
    names = [os.fsdecode(name) for name in ODD_NAMES]
    lines = [quoted_name(name) if set(name) & set('\n"') else name for name in names]
    (odd / "list.txt").write_bytes(os.fsencode("\n".join(lines)))
    found = find_images([str(odd / "list.txt")])
    assert [os.path.basename(name) for name in found] == names
    assert [views_of(name) for name in found] == [[name] for name in found]
    assert main(["caption", str(odd / "list.txt"), "--model", captioner, "--num_beams", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(names)


def test_a_tab_still_separates_views(folder):
    (folder / "list.txt").write_text("scene_000.png\tscene_001.png\n")
    (study,) = find_images([str(folder / "list.txt")])
    assert views_of(study) == [str(folder / "scene_000.png"), str(folder / "scene_001.png")]


@pytest.mark.parametrize("name", ["a.png", "a\tb", "\udcff", '"', '"a"', '"a" b', "\\udcff", "", "a\nb", '"\udcff\t'])
def test_quoted_names(name):
    for one_line in (False, True):
        quoted = quoted_name(name, one_line)
        assert unquoted_name(quoted) == name
        quoted.encode("utf-8")
        assert not one_line or not set(quoted) & set("\t\n")
    assert printable(name).isprintable()


def hostile(folder):
    """Add bad images; return their names."""
    whole = (folder / "scene_000.png").read_bytes()
    (folder / "scene_000_cut.png").write_bytes(whole[:80])
    (folder / "scene_001_postscript.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (folder / "scene_001_new.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    (folder / "notes.md").write_text("no image by its name")
    PIL.Image.new("RGB", (8, 8)).save(folder / "exif.jpg", exif=b"Exif\0\0\xe8M\0*\0\0\0\x08\0\0")
    return ["scene_000_cut.png", "scene_001_postscript.jpg", "scene_001_new.heic"]


def test_bad_images_are_named_and_the_others_captioned(folder, captioner, tmp_path, capsys):
    bad = hostile(folder)
    assert caption(folder, captioner, tmp_path / "out.jsonl", "--batch_size", "2") == 1
    captioned = [Path(record["image"]).name for record in lines_of(tmp_path / "out.jsonl")]
    assert captioned == ["exif.jpg", *(f"scene_00{number}.png" for number in range(4))]
    err = capsys.readouterr().err
    assert all(err.count(f"{name} cannot be read") == 1 for name in bad) and "3 image(s) could not be read" in err
    assert err.count("notes.md") == 1 and "left out: 1 file(s) that end with .md" in err
    assert caption(folder, captioner, tmp_path / "again.jsonl", "--batch_size", "2", "--allow_skipped") == 0
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_an_image_that_cannot_be_prepared_ends_no_job(folder, captioner, monkeypatch):
    pipeline = batches.load_pipeline(captioner, device="cpu")
    paths = find_images([str(folder)])
    preprocess = type(pipeline).preprocess
    PIL.Image.new("RGB", (5, 77)).save(paths[1])

    def refused(self, image, **options):
        if image.size == (5, 77):
            raise RuntimeError("too narrow")
        return preprocess(self, image, **options)

    monkeypatch.setattr(type(pipeline), "preprocess", refused)
    (batch,) = batches.caption_batches(pipeline, paths, num_beams=1)
    assert [record["image"] for record in batch.records] == [paths[0], *paths[2:]]
    assert [fault.image for fault in batch.unreadable] == [paths[1]] and "too narrow" in batch.unreadable[0].reason


def test_too_many_pixels_are_named_and_can_be_allowed(folder, captioner, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", PIL.Image.MAX_IMAGE_PIXELS)  # set back afterwards
    PIL.Image.new("1", (200, 200)).save(folder / "large.png")
    assert caption(folder, captioner, tmp_path / "a.jsonl", "--max_image_pixels", "30000") == 1
    assert "large.png cannot be read" in (err := capsys.readouterr().err) and "--max_image_pixels" in err
    assert caption(folder, captioner, tmp_path / "b.jsonl", "--max_image_pixels", "40000") == 0
    with pytest.raises(SystemExit, match="2"):
        caption(folder, captioner, tmp_path / "c.jsonl", "--max_image_pixels", "0")


def stop_after(monkeypatch, count):
    """Interrupt captioning after some batches."""
    whole = batches.caption_batches

    def stopped(*arguments, **options):
        for number, batch in enumerate(whole(*arguments, **options)):
            if number == count:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(batches, "caption_batches", stopped)


@pytest.mark.parametrize(
    "lost", slow_unless(lambda lost: lost in (1, 300), [0, 1, 30, 300]), ids=lambda lost: f"{lost} bytes lost"
)
def test_a_resumed_job_passes_over_bad_images(folder, captioner, tmp_path, capsys, monkeypatch, lost):
    """And its output is that of an undisturbed job, byte for byte; all bad images are listed at its end."""
    bad = hostile(folder)
    assert caption(folder, captioner, tmp_path / "whole.jsonl", "--batch_size", "3") == 1
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert caption(folder, captioner, tmp_path / "out.jsonl", "--batch_size", "3") == 130
    partial = tmp_path / "out.jsonl.partial"
    partial.write_bytes(partial.read_bytes()[: -lost or None])
    read = []
    decoded = columns.decoded
    monkeypatch.setattr(columns, "decoded", lambda path, *size: read.append(path) or decoded(path, *size))
    capsys.readouterr()
    resumed = ["--batch_size", "3", "--workers", "0", "--resume"]
    assert caption(folder, captioner, tmp_path / "out.jsonl", *resumed) == 1
    assert lost or len(read) == 2  # of 8 images, without those of the first two batches
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    err = capsys.readouterr().err
    assert all(err.count(f"{name} cannot be read") == 1 for name in bad) and "3 image(s) could not be read" in err


def test_a_job_is_resumed_only_as_it_was(folder, captioner, tmp_path, capsys, monkeypatch):
    """Other inputs, part, data type, weights or settings are another job."""
    output, other = tmp_path / "out.jsonl", tmp_path / "other"
    arguments = ["--batch_size", "1"]
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert caption(folder, captioner, output, *arguments, "--shard", "1/1") == 130
    before = (tmp_path / "out.jsonl.partial").read_bytes()
    shutil.copytree(folder, other)
    model, processor = load_captioner(captioner)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(tmp_path / "trained")
    processor.save_pretrained(tmp_path / "trained")
    same = ["--resume", "--shard", "1/1"]
    for inputs, weights, typed, said in (
        (other, captioner, same, "inputs was"),
        (folder / "scene_000.png", captioner, same, "inputs was"),
        (folder, captioner, ["--resume"], "shard was '1/1', is None"),
        (folder, captioner, ["--resume", "--shard", "2/2"], "shard was '1/1', is '2/2'"),
        (folder, captioner, [*same, "--dtype", "bfloat16"], "dtype was 'torch.float32', is 'torch.bfloat16'"),
        (folder, str(tmp_path / "trained"), same, "model_digest was"),
        (folder, captioner, [*same, "--max_new_tokens", "3"], "max_new_tokens was None, is 3"),
        (folder, captioner, [*same, "--prompt", "a"], "prompt was None, is 'a'"),
    ):
        assert caption(inputs, weights, output, *typed) == 2
        assert said in (err := capsys.readouterr().err) and "--overwrite" in err, err
        assert (tmp_path / "out.jsonl.partial").read_bytes() == before
    moved = shutil.copytree(captioner, tmp_path / "moved")
    assert caption(folder, str(moved), output, *same) == 0  # the same weights elsewhere
    assert len(lines_of(output)) == 4


def test_a_file_of_other_images_is_not_mixed(folder, captioner, tmp_path):
    """Also from Python, where the caller gives the settings."""
    pipeline = batches.load_pipeline(captioner, device="cpu")
    with CaptionFile(tmp_path / "out.jsonl", {}) as file:
        file.add([{"image": "elsewhere.png", "caption": "a", "score": 0.0}])
    with (
        CaptionFile(tmp_path / "out.jsonl", {}, resume=True) as file,
        pytest.raises(ValueError, match=r"1 images that are no inputs of this job, such as elsewhere.png"),
    ):
        batches.caption_into_file(file, pipeline, find_images([str(folder)]))


@pytest.mark.parametrize("content", [b"{}\n", b"[1]\n", b'{"settings": {}}\n{"image": 3}\n', b'{"settings": {}}\nx\n'])
def test_a_damaged_partial_file_is_named(content, tmp_path):
    (tmp_path / "out.jsonl.partial").write_bytes(content)
    with pytest.raises(ValueError, match=r"out.jsonl.partial, line \d is damaged. Pass `overwrite`"):
        CaptionFile(tmp_path / "out.jsonl", {}, resume=True)


def hold(path, started):
    with CaptionFile(path, {}):
        started.set()
        time.sleep(3600)


def test_one_writer_at_a_time_and_a_kill_frees_the_output(folder, captioner, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hf_captioners.output_files.PATIENCE", 0.2)
    context = multiprocessing.get_context("fork")
    output, started = tmp_path / "out.jsonl", context.Event()
    process = context.Process(target=hold, args=(output, started))
    process.start()
    try:
        assert started.wait(600)
        before = (tmp_path / "out.jsonl.partial").read_bytes()
        for typed in (["--resume"], ["--overwrite"]):
            assert caption(folder, captioner, output, *typed) == 2
            assert "Another run is writing" in (err := capsys.readouterr().err) and "different `--output`" in err
        assert (tmp_path / "out.jsonl.partial").read_bytes() == before
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert caption(folder, captioner, output, "--overwrite") == 0
    with only_writer_of(output), only_writer_of(tmp_path / "other.jsonl"):
        pass


def test_a_full_disk_is_explained_and_resumed(folder, captioner, tmp_path, capsys, monkeypatch):
    """A limit of the size of files stands for the full disk."""
    assert caption(folder, captioner, tmp_path / "whole.jsonl", "--batch_size", "1") == 0
    output = tmp_path / "out.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
        assert caption(folder, captioner, output, "--batch_size", "1") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    err = capsys.readouterr().err
    assert "out.jsonl.partial could not be written: File too large" in err and "--resume" in err
    assert caption(folder, captioner, output, "--batch_size", "1", "--resume") == 0
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_disk_that_is_full_at_the_end_is_explained(tmp_path, monkeypatch):
    def full(records, file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(caption_files.WRITERS, ".jsonl", full)
    with (
        CaptionFile(tmp_path / "out.jsonl", {}) as file,
        pytest.raises(OSError, match=r"out.jsonl could not be written: No space left on device"),
    ):
        file.finish()
    assert (tmp_path / "out.jsonl.partial").exists() and not (tmp_path / "out.jsonl").exists()
