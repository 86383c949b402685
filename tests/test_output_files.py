"""The one place that opens files for writing: no link is written through, nothing is written outside of a folder."""

import ast
import os
import stat
from pathlib import Path

import pytest

from hf_captioners.output_files import (
    UnsafeFileError,
    atomic_file,
    lock_of,
    new_folder,
    only_run_in,
    open_for_writing,
    open_plain,
    read_bytes_inside,
    read_text_inside,
    require_link_inside,
    write_text,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    """A folder that was typed, beside a file that is none of its business."""
    (tmp_path / "typed" / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious.txt").write_text("precious\n")
    return tmp_path / "typed"


def replace(path, inside):
    write_text(path, "new\n", inside)


def append(path, inside):
    with open_for_writing(path, "a", inside) as file:
        file.write("new\n")


def truncate(path, inside):
    with open_for_writing(path, "w", inside) as file:
        file.write("new\n")


def lock(path, inside):
    with lock_of(path, inside=inside):
        pass


WRITES = (replace, append, truncate, lock)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("target", ["../elsewhere/precious.txt", "../elsewhere/new.txt", "inside.txt", "loop"])
def test_nothing_is_written_through_a_link(folder, write, target):
    """Neither to a file that exists nor to a new one, also inside of the folder."""
    (folder / "inside.txt").write_text("inside\n")
    (folder / "loop").symlink_to(target)
    with pytest.raises(UnsafeFileError, match=r"loop is not written: it is a symbolic link to"):
        write(folder / "loop", folder)
    assert os.readlink(folder / "loop") == target and (folder / "inside.txt").read_text() == "inside\n"
    assert [path.name for path in (folder / ".." / "elsewhere").iterdir()] == ["precious.txt"]
    assert (folder / "../elsewhere/precious.txt").read_text() == "precious\n"
    assert sorted(path.name for path in folder.iterdir()) == ["inside.txt", "loop", "sub"]


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_below_a_folder_that_is_a_link(folder, write):
    (folder / "out").symlink_to("../elsewhere")
    (folder / "in").symlink_to("sub")
    with pytest.raises(UnsafeFileError, match=r"out/precious.txt is not written: its folder is .*elsewhere, outside"):
        write(folder / "out" / "precious.txt", folder)
    assert (folder / "../elsewhere/precious.txt").read_text() == "precious\n"
    write(folder / "in" / "a.txt", folder)
    write(folder / "out" / "b.txt", folder / "out")  # typed itself
    assert (folder / "sub" / "a.txt").is_file() and (folder / "../elsewhere/b.txt").is_file()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_what_is_no_plain_file_is_named_at_once(folder, write):
    os.mkfifo(folder / "pipe")
    with pytest.raises(UnsafeFileError, match="pipe is a named pipe, expected a plain file"):
        write(folder / "pipe", folder)
    with pytest.raises(UnsafeFileError, match="null is a device, expected a plain file"):
        write(Path(os.devnull), None)


def test_a_link_that_appears_after_the_check_is_not_followed(folder, monkeypatch):
    monkeypatch.setattr("hf_captioners.output_files.require_safe_target", lambda path, inside=None: None)
    (folder / "a.txt").symlink_to("../elsewhere/precious.txt")
    for mode in ("a", "w", "ab+"):
        with pytest.raises(OSError, match="symbolic link"):
            open_for_writing(folder / "a.txt", mode)
    assert (folder / "../elsewhere/precious.txt").read_text() == "precious\n"


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o444, 0o755])
def test_the_mode_of_a_file_that_is_replaced_stays(folder, mode):
    path = folder / "a.txt"
    path.write_text("old\n")
    path.chmod(mode)
    with atomic_file(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode, "the new content can be read by others"
        file.write("new\n")
    assert path.read_text() == "new\n" and stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127, "図" * 85])
def test_names_as_long_as_file_systems_allow(folder, name):
    write_text(folder / name, "new\n")
    assert [path.name for path in folder.iterdir() if path.is_file()] == [name]
    with new_folder(folder / "sub" / name) as partial:
        (partial / "a.txt").touch()
    assert (folder / "sub" / name / "a.txt").exists()


def test_a_run_refuses_a_folder_with_links_out_of_it(folder):
    """Libraries write checkpoints by names of their own, and follow links."""
    (folder / "latest").symlink_to("sub")
    with only_run_in(folder):
        pass
    (folder / "sub" / "trainer_state.json").symlink_to("../../elsewhere/precious.txt")
    with (
        pytest.raises(UnsafeFileError, match=r"trainer_state.json is a symbolic link to .*precious.txt, outside of"),
        only_run_in(folder),
    ):
        pass


def test_links_are_read_inside_of_the_folder_and_from_the_blobs_of_a_hub_cache(folder, tmp_path):
    (folder / "a.txt").symlink_to("sub/b.txt")
    (folder / "sub" / "b.txt").write_text("\ufeffone\r\ntwo\n")
    assert read_text_inside(folder / "a.txt", folder) == "one\ntwo\n"
    (folder / "out.txt").symlink_to("../elsewhere/precious.txt")
    with pytest.raises(UnsafeFileError, match=r"out.txt is not read: it leads to .*precious.txt, .* --follow_links"):
        read_text_inside(folder / "out.txt", folder)
    assert read_text_inside(folder / "out.txt", folder, follow_links=True) == "precious\n"
    snapshot = tmp_path / "datasets--me--photos" / "snapshots" / "0123" / "deep"
    blobs = tmp_path / "datasets--me--photos" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "89ab").write_text("of the Hub\n")
    (snapshot / "a.txt").symlink_to("../../../blobs/89ab")
    assert read_text_inside(snapshot / "a.txt", snapshot) == "of the Hub\n"
    (snapshot / "typed").symlink_to(folder)
    assert read_text_inside(snapshot / "typed" / "a.txt", snapshot / "typed") == "one\ntwo\n"
    (folder / "blob.txt").symlink_to(blobs / "89ab")  # of a cache that the folder is no part of
    with pytest.raises(UnsafeFileError, match=r"blob.txt is not read"):
        require_link_inside(folder / "blob.txt", folder)


def test_reads_have_a_limit_and_pipes_and_devices_no_end(folder):
    (folder / "a.txt").write_bytes(b"x" * 11)
    assert read_bytes_inside(folder / "a.txt", limit=11) == b"x" * 11
    with pytest.raises(UnsafeFileError, match="more than 10 bytes"):
        read_bytes_inside(folder / "a.txt", limit=10)
    (folder / "zero").symlink_to("/dev/zero")
    for read in (open_plain, lambda path: read_bytes_inside(path, follow_links=True)):
        with pytest.raises(UnsafeFileError, match="zero is a device"):
            read(folder / "zero")


# Calls that write files by their names, and modules of which all such functions are.
WRITING_METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "save_pretrained", "FileLock"}
WRITING_METHODS |= {"SoftFileLock", "save_file", "serialize_file", "savez", "savez_compressed"}
WRITING_FUNCTIONS = {
    "os": {"open", "replace", "rename", "renames", "link", "symlink", "truncate", "mkfifo"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
    "np": {"save", "savetxt"},
    "torch": {"save"},
}


def writing_calls(source: str) -> set[str]:
    """Return the calls in a Python source that write a file by its name.

    `open` counts unless its mode is a constant for reading; `write_text(...)` is the function of `output_files`, and
    `path.write_text(...)` is not.
    """
    found = set()
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = getattr(call.func.value, "id", "") if isinstance(call.func, ast.Attribute) else ""
        if name in WRITING_FUNCTIONS.get(owner, ()):
            found.add(f"{owner}.{name}")
        elif name == "open":
            of_path = isinstance(call.func, ast.Attribute) and owner != "gzip"  # or of an archive or an image
            modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
            modes += call.args[:1] if of_path else call.args[1:2]
            mode = getattr(modes[0], "value", "r" if of_path else "w") if modes else "r"
            if isinstance(mode, str) and set(mode) <= set("rwaxbt+") and set(mode) & set("wax+"):
                found.add("open")
        elif name in WRITING_METHODS and (isinstance(call.func, ast.Attribute) or name not in ("write_text",)):
            found.add(name)
    return found


FRESH = "in a folder that `new_folder` or `tempfile` has just made: nobody's links are in it"
TRANSFORMERS = "part of `save_pretrained`, which writes as that of transformers does"
RUN = "in the folder of a run, in which `only_run_in` has found no link out of it"
CACHE = "a file of the cache that the user's libraries share, replaced by one with the name of this process"
ATOMIC = "into a file that `atomic_file` has opened"
# Files of the package that write by other means than `output_files`: the calls, and why that is right.
OTHER_WRITERS = {
    "hf_captioners/features/cache.py": ({"touch"}, FRESH),  # `SharedCache.touch`: when a store was last used
    "hf_captioners/features/feature_store_writer.py": ({"save_file"}, ATOMIC),
    "hf_captioners/hub/convert/converting.py": ({"save_pretrained"}, FRESH),
    "hf_captioners/hub/pushing.py": ({"write_text", "save_pretrained", "shutil.copyfile"}, FRESH),
    "hf_captioners/hub/trimming.py": ({"save_pretrained"}, FRESH),
    "hf_captioners/image_text_processor.py": ({"save_pretrained"}, TRANSFORMERS),
    "hf_captioners/metrics/document_frequency.py": ({"savez_compressed"}, ATOMIC),
    "hf_captioners/metrics/paraphrases.py": ({"write_text", "np.save", "os.replace"}, FRESH),
    "hf_captioners/metrics/spice.py": ({"write_text"}, FRESH),
    "hf_captioners/onnx/exporting.py": ({"shutil.copyfile"}, FRESH),
    "hf_captioners/onnx/graphs.py": ({"write_bytes"}, FRESH),
    "hf_captioners/pipelines/instructed_checks.py": ({"write_text", "os.replace"}, CACHE),
    "hf_captioners/onnx/shared_weights.py": ({"shutil.copyfile", "write_bytes", "write_text"}, FRESH),
    "hf_captioners/pipelines/image_captioning.py": ({"write_text", "save_pretrained", "os.replace"}, TRANSFORMERS),
    "hf_captioners/training/attribute_detector.py": ({"save_pretrained"}, RUN),
    "hf_captioners/training/hub_trainer.py": ({"os.link", "shutil.copyfile"}, FRESH),
    "hf_captioners/training/scst/start.py": ({"os.replace"}, RUN),
    "modeling/modeling_captioning.py": ({"save_pretrained"}, TRANSFORMERS),
    "processing/processing_captioning.py": ({"save_pretrained"}, TRANSFORMERS),
}


def test_every_other_way_of_writing_is_listed():
    """A new one belongs into `output_files`; one that cannot be there is added here with its reason."""
    found = {}
    for folder in ("hf_captioners", "modeling", "processing"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != ROOT / "hf_captioners" / "output_files.py" and (
                calls := writing_calls(path.read_text(encoding="utf-8"))
            ):
                found[path.relative_to(ROOT).as_posix()] = calls
    assert found == {name: calls for name, (calls, _) in OTHER_WRITERS.items()}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("open(p)", set()),
        ("open(p, 'rb')", set()),
        ("open(p, 'ab+')", {"open"}),
        ("open(p, mode)", {"open"}),
        ("p.open('w')", {"open"}),
        ("p.open()", set()),
        ("gzip.open(p, 'wt')", {"open"}),
        ("p.write_text(t)", {"write_text"}),
        ("write_text(p, t)", set()),
        ("os.replace(a, b)", {"os.replace"}),
        ("text.replace('a', 'b')", set()),
        ("FileLock(p)", {"FileLock"}),
        ("np.savez_compressed(p, a=a)", {"savez_compressed"}),
    ],
)
def test_ways_of_writing_are_found(source, found):
    assert writing_calls(source) == found
