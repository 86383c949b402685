"""Folders of a stranger, with links and special files: nothing is written outside, and no text of a file outside is
copied. Folders of the Hub cache, of git-annex and of DVC work, as do folders that are links."""

import json
import os
import shutil
import stat

import pytest

from hf_captioners.cli import main
from hf_captioners.data.generated_captions import RECORD_NAME

PRECIOUS = "export PATH=/bin\n"


@pytest.fixture
def folder(images, tmp_path):
    """Two images, one of them in a folder below; beside the folder, a file that must not change."""
    target = tmp_path / "photos"
    (target / "more").mkdir(parents=True)
    shutil.copy(images / "scene_000.png", target / "0.png")
    shutil.copy(images / "scene_001.png", target / "more" / "1.png")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bashrc").write_text(PRECIOUS)
    return target


@pytest.fixture
def home(folder):
    """The folder outside; it is as it was at the end of every test."""
    place = folder.parent / "home"
    yield place
    assert [path.name for path in place.iterdir()] == [".bashrc"] and (place / ".bashrc").read_text() == PRECIOUS


@pytest.fixture
def caption(folder, captioner, capsys):
    """Run the command on the folder or other inputs; return its exit status and what it said."""

    def run(*typed, inputs=None):
        options = ["--model", captioner, "--num_beams", "1", "--max_new_tokens", "3", "--workers", "0"]
        named = [str(one) for one in (inputs or [folder])]
        return main(["caption", *named, *map(str, typed), *options]), capsys.readouterr().err

    return run


MODES = ([], ["--skip_existing"], ["--append"], ["--prepend"], ["--overwrite"])


@pytest.mark.parametrize("target", [".bashrc", "new"])
@pytest.mark.parametrize(
    "name",
    [
        RECORD_NAME,
        f"more/{RECORD_NAME}",
        "sidecars.txt.jsonl.partial",
        ".sidecars.txt.jsonl.lock",
        "0.txt",
        "more/1.txt",
    ],
)
def test_sidecars_are_not_written_through_links(folder, home, caption, name, target):
    """In all modes, to a file that exists and to one that does not."""
    link = folder / name
    link.symlink_to(os.path.relpath(home / target, link.parent))
    for mode in MODES:
        status, said = caption("--sidecar", *mode)
        is_text = name.endswith(".txt")
        if is_text and mode == ["--skip_existing"]:  # a text file is there, of whatever kind
            assert status == 0 and "1 had one" in said
        elif is_text and not mode:
            assert status == 2 and "1 image(s) have a text file" in said
        else:
            assert status == 2 and f"{link.name} is not written: it is a symbolic link" in said, (mode, said)
        assert link.is_symlink()
        for text in folder.rglob("*.txt"):
            if not text.is_symlink():
                text.unlink()


def test_a_file_that_is_not_a_link_is_recorded_as_before(folder, home, caption):
    """A name that a shell would run is one of a file, and nothing else."""
    (folder / "0.png").rename(folder / "$(touch PWNED).png")
    assert caption("--sidecar")[0] == 0
    assert "$(touch PWNED).txt" in (folder / RECORD_NAME).read_text()


def test_a_folder_below_that_is_a_link_is_not_written_to(folder, home, caption, images):
    """As a list may name it; the same folder may be typed itself."""
    outside = folder.parent / "outside"
    outside.mkdir()
    shutil.copy(images / "scene_002.png", outside / "2.png")
    (folder / "sub").symlink_to(outside)
    (folder / "list.txt").write_text("sub/2.png\n")
    status, said = caption("--sidecar", inputs=[folder / "list.txt"])
    assert status == 2 and "outside of" in said and [path.name for path in outside.iterdir()] == ["2.png"]
    assert caption("--sidecar", inputs=[folder / "sub"])[0] == 0
    assert (outside / "2.txt").is_file()


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.partial", ".all.jsonl.lock"])
def test_an_output_is_not_written_through_a_link(folder, home, caption, name):
    (folder / name).symlink_to("../home/.bashrc")
    for mode in ([], ["--overwrite"], ["--resume"]):
        status, said = caption("--output", folder / "all.jsonl", *mode)
        assert status == 2 and name in said and (folder / name).is_symlink()


@pytest.mark.parametrize("mode", ["--append", "--prepend", "--overwrite"])
def test_a_text_file_that_links_outside_is_neither_copied_nor_replaced(folder, home, caption, mode):
    (folder / "0.txt").symlink_to("../home/.bashrc")
    status, said = caption("--sidecar", mode)
    assert status == 2 and "0.txt is not written: it is a symbolic link" in said
    assert (folder / "0.txt").is_symlink() and not (folder / "more" / "1.txt").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("mode", ["--append", "--overwrite"])
@pytest.mark.parametrize("kind", ["pipe", "zero"])
@pytest.mark.parametrize("name", ["0.txt", RECORD_NAME, "sidecars.txt.jsonl.partial"])
def test_special_files_are_refused_by_name(folder, home, caption, mode, kind, name):
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    status, said = caption("--sidecar", mode)
    assert status == 2 and name in said and ("named pipe" in said or "symbolic link" in said)


def test_modes_of_files_that_are_replaced_stay(folder, home, caption):
    (folder / "0.txt").write_text("mine\n")
    (folder / "0.txt").chmod(0o640)
    assert caption("--sidecar", "--append")[0] == 0
    assert stat.S_IMODE((folder / "0.txt").stat().st_mode) == 0o640
    assert (folder / "0.txt").read_text().startswith("mine\n")


def hub_cache(folder, root):
    """A folder as `snapshot_download` leaves it."""
    snapshot, blobs = root / "snapshots" / "0123", root / "blobs"
    shutil.copytree(folder, snapshot)
    return snapshot, blobs


def git_annex(folder, root):
    """A work tree of git-annex, whose images are in `.git/annex/objects`."""
    shutil.copytree(folder, root / "photos")
    return root / "photos", root / ".git" / "annex" / "objects"


def dvc_cache(folder, root):
    """A work tree of DVC, whose images are in a cache outside of it, by absolute links."""
    shutil.copytree(folder, root / "photos")
    return root / "photos", root / "cache"


def linked(layout, folder, root, endings):
    """Make a layout of a folder in which files of some endings are links to a store."""
    place, store = layout(folder, root)
    store.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in place.rglob("*") if path.suffix in endings)):
        path.rename(store / f"{number:064x}")
        target = store / f"{number:064x}"
        path.symlink_to(target if layout is dvc_cache else os.path.relpath(target, path.parent))
    return place


@pytest.mark.parametrize("layout", [hub_cache, git_annex, dvc_cache])
def test_images_that_are_links_are_captioned(folder, home, caption, layout, tmp_path):
    """Text files are written beside the links, and outputs are equal to those of plain files."""
    place = linked(layout, folder, tmp_path / "layout", {".png"})
    assert caption("--sidecar")[0] == 0 and caption("--sidecar", inputs=[place])[0] == 0
    written = {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*.txt")}
    assert written == {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.txt")}
    assert len(written) == 2 and (place / "0.png").is_symlink()
    assert caption("--output", tmp_path / "all.csv", inputs=[place])[0] == 0


def test_a_typed_folder_may_be_a_link(folder, home, caption, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert caption("--sidecar", inputs=[tmp_path / "link"])[0] == 0
    assert (folder / "0.txt").is_file() and (folder / "more" / "1.txt").is_file()
    (tmp_path / "out").symlink_to(tmp_path / "home" / "..")
    assert caption("--output", tmp_path / "out" / "all.txt")[0] == 0


@pytest.mark.parametrize("table", ["metadata.jsonl", "0.txt"])
def test_text_outside_is_read_only_where_that_is_typed(folder, home, captioner, capsys, table):
    """By the commands that read captions; one line names the file, and the flag that allows it."""
    outside = folder.parent / "outside"
    row = json.dumps({"file_name": "0.png", "captions": ["of another folder"]})
    outside.write_text(row + "\n" if table == "metadata.jsonl" else "of another folder\n")
    (folder / table).symlink_to(outside)
    assert main(["check-data", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"{table} is not read: it leads to {outside}" in said and "--follow_links" in said and said.count("\n") == 1
    assert main(["check-data", str(folder), "--follow_links"]) == 0
    assert "train: 1 images" in capsys.readouterr().out
    typed = ["train", "--model", captioner, "--train_dir", str(folder), "--output_dir", str(folder.parent / "run")]
    assert main(typed) == 2
    assert f"{table} is not read" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("name", ["metadata.jsonl", "0.txt", "captions.csv"])
def test_tables_that_are_no_plain_files_are_named(folder, home, capsys, name):
    os.mkfifo(folder / name)
    assert main(["check-data", str(folder)]) == (1 if name == "0.txt" else 2)
    said = capsys.readouterr()
    assert f"{name} is a named pipe" in said.out + said.err


def test_tables_of_a_hub_cache_are_read(folder, home, capsys, tmp_path):
    (folder / "metadata.jsonl").write_text(
        "".join(json.dumps({"file_name": name, "captions": ["a"]}) + "\n" for name in ("0.png", "more/1.png"))
    )
    place = linked(hub_cache, folder, tmp_path / "hub", {".png", ".jsonl"})
    assert (place / "metadata.jsonl").is_symlink()
    assert main(["check-data", str(place)]) == 0 and "train: 2 images" in capsys.readouterr().out
