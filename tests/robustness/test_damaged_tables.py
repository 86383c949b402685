"""Tables with bad rows: each is reported with its file and line, and the other rows are read."""

import gzip
import json
import resource
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from hf_captioners.data import DataReport, load_captions
from hf_captioners.metrics.caption_files import read_captions

GOOD = [{"file_name": f"{name}.png", "caption": f"A {name} runs."} for name in ("dog", "cat", "cow")]


@pytest.fixture
def folder(tmp_path):
    """A folder of three images, beside an image that does not belong to it."""
    made = tmp_path / "images"
    made.mkdir()
    for path in (*(made / row["file_name"] for row in GOOD), tmp_path / "outside.png"):
        Image.new("RGB", (8, 8)).save(path)
    return made


def load(folder, name="caption_folder", **options):
    report = DataReport()
    rows = load_captions(name, data_dir=folder, split="train", report=report, cache_dir=folder / "cache", **options)
    return rows, report


def check(folder, line, message, kept=3, table="metadata.jsonl"):
    rows, report = load(folder)
    assert len(rows) == kept
    found = [problem for problem in report.problems if problem.line == line and message in problem.message]
    assert found and found[0].file == str(folder / table), report.problems
    assert report.kept["train"] == kept


BAD_ROWS = {
    "lone surrogate": (r'{"file_name": "dog.png", "caption": "A \ud800 dog."}', "lone surrogate"),
    "lone surrogate in a name": (r'{"file_name": "\ud800.png", "caption": "A dog."}', "lone surrogate"),
    "a byte that is not UTF-8": (r'{"file_name": "dog.png", "caption": "A \udcff dog."}', "expected text in caption"),
    "the folder itself": ('{"file_name": ".", "caption": "A dog."}', "no name of a file"),
    "deep": ("[" * 100_000, "not JSON"),
    "deep value": (
        '{"file_name": "dog.png", "caption": "x", "more": ' + "[" * 500 + "]" * 500 + "}",
        "20 levels deep",
    ),
    "huge number": (
        '{"file_name": "dog.png", "caption": "A dog.", "year": 1' + "0" * 29 + "}",
        "does not fit into 64",
    ),
    "number of many digits": ('{"file_name": "dog.png", "caption": "x", "year": 1' + "0" * 5000 + "}", "not JSON"),
    "no caption": ('{"file_name": "dog.png"}', "the row has no column"),
    "no name": ('{"caption": "A dog."}', "the row has no column"),
    "a list": ("[1]", "expected an object"),
    "absolute": ('{"file_name": "/etc/passwd", "caption": "A dog."}', "a file outside of"),
    "above": ('{"file_name": "../outside.png", "caption": "A dog."}', "a file outside of"),
    "above and back": ('{"file_name": "x/../../outside.png", "caption": "A dog."}', "a file outside of"),
    "long": (json.dumps({"file_name": "a" * 300 + ".png", "caption": "A dog."}), "no name of a file"),
    "zero byte": (r'{"file_name": "a\u0000.png", "caption": "A dog."}', "no name of a file"),
    "split": ('{"file_name": "dog.png", "caption": "A dog.", "split": "a/b"}', "the split is 'a/b'"),
}


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_rows_of_json_lines(folder, fault):
    bad, message = BAD_ROWS[fault]
    lines = [bad, *map(json.dumps, GOOD)]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    check(folder, 1, message)


def test_names_in_the_folder_may_go_up(folder):
    """A table in a nested folder names the images beside it, and `image_dir` may be anywhere."""
    (folder / "notes").mkdir()
    (folder / "notes" / "metadata.jsonl").write_text(json.dumps({**GOOD[0], "file_name": "../dog.png"}))
    assert load(folder)[0]["captions"] == [[GOOD[0]["caption"]]]
    (folder / "notes" / "metadata.jsonl").write_text(json.dumps({**GOOD[0], "file_name": "outside.png"}))
    assert load(folder, image_dir=str(folder.parent))[0]["captions"] == [[GOOD[0]["caption"]]]


def test_quotes_that_are_not_closed_cost_one_row(folder):
    rows = [f'{row["file_name"]},"{row["caption"]}"' for row in GOOD]
    for place in range(3):
        lines = [*rows[:place], 'cow.png,"A cow', *rows[place:]]
        (folder / "metadata.csv").write_text("\n".join(["file_name,caption", *lines]) + "\n")
        check(folder, place + 2, "", table="metadata.csv")
    (folder / "metadata.csv").write_text('file_name,caption\ndog.png,"A dog\nruns."\ncat.png,"A cat\n')
    found = load(folder)
    assert found[0]["captions"] == [["A dog\nruns."]] and found[1].problems[0].line == 4


def test_two_columns_of_one_name(folder):
    (folder / "metadata.csv").write_text("file_name,caption,caption\ndog.png,A dog.,A cat.\n")
    with pytest.raises(ValueError, match=r"metadata.csv:1 has the column 'caption' twice"):
        load(folder)


def coco(**changes):
    images = [{"id": number, "file_name": row["file_name"]} for number, row in enumerate(GOOD)]
    annotations = [{"id": number, "image_id": number, "caption": row["caption"]} for number, row in enumerate(GOOD)]
    content = {"images": images, "annotations": annotations}
    return {name: changes.get(name, lambda part: part)(part) for name, part in content.items()}


BAD_ENTRIES = {
    "a text for an image": ({"images": lambda part: ["a", *part]}, 1),
    "an image without an id": ({"images": lambda part: [{"file_name": "dog.png"}, *part]}, 1),
    "a list as id": ({"images": lambda part: [{"id": [1], "file_name": "dog.png"}, *part]}, 1),
    "an annotation of nothing": ({"annotations": lambda part: [None, *part]}, 1),
    "a list as image": ({"annotations": lambda part: [{"id": 9, "image_id": [1], "caption": "x"}, *part]}, 1),
    "a surrogate": ({"annotations": lambda part: [*part, {"id": 9, "image_id": 8, "caption": "\ud800"}]}, 4),
}


@pytest.mark.parametrize("name", ["caption_folder", "coco"])
@pytest.mark.parametrize("fault", BAD_ENTRIES)
def test_entries_of_coco_files(folder, fault, name):
    changes, line = BAD_ENTRIES[fault]
    table = folder / ("metadata.json" if name == "caption_folder" else "captions_train2014.json")
    table.write_text(json.dumps(coco(**changes)))
    rows, report = load(folder, name, **({} if name == "caption_folder" else {"official": True}))
    assert len(rows) == 3
    assert (str(table), line) in {(problem.file, problem.line) for problem in report.problems}


@pytest.mark.parametrize("name", ["caption_folder", "coco"])
@pytest.mark.parametrize("value", [None, "x", {"a": 1}, 3])
@pytest.mark.parametrize("part", ["images", "annotations"])
def test_coco_files_of_other_types(folder, name, value, part):
    table = folder / ("metadata.json" if name == "caption_folder" else "captions_train2014.json")
    table.write_text(json.dumps({**coco(), part: value}))
    with pytest.raises(ValueError, match=str(table)):
        load(folder, name, **({} if name == "caption_folder" else {"official": True}))


@pytest.mark.parametrize(
    "entry",
    [
        *("text", None, {}, {"filename": 3}),
        {"filename": "dog.png", "split": "train", "sentences": None},
        {"filename": "dog.png", "split": "train", "sentences": [{"raw": 7, "sentid": 1}]},
        {"filename": "dog.png", "split": "train", "sentences": [{"raw": "A dog.", "sentid": "x"}]},
        {"filename": "dog.png", "split": "train", "sentences": [{"raw": "A \ud800.", "sentid": 1}]},
        {"filename": "dog.png", "split": ["train"], "sentences": [{"raw": "A dog.", "sentid": 1}]},
        {"filename": "dog.png", "split": "train", "sentences": [{"raw": "A dog.", "sentid": 10**30}]},
        {"filename": "dog.png", "split": "train", "sentences": [{"raw": "x", "sentid": 1, "tokens": 5}]},
        {"filename": "dog.png", "split": "train", "cocoid": "x", "sentences": [{"raw": "A dog.", "sentid": 1}]},
    ],
)
def test_entries_of_split_files(folder, entry):
    good = [
        {"filename": row["file_name"], "split": "train", "sentences": [{"raw": row["caption"], "sentid": 1}]}
        for row in GOOD
    ]
    (folder / "dataset_coco.json").write_text(json.dumps({"images": [entry, *good]}))
    rows, report = load(folder, "coco")
    assert len(rows) == 3
    assert [(problem.file, problem.line) for problem in report.problems] == [(str(folder / "dataset_coco.json"), 1)]


LONG_NAME = "x" * 5000 + ".png"  # longer than file systems permit


def test_long_names_of_images_in_other_tables(folder):
    """A name that the file system refuses is a missing image, whose message is short."""
    sentences = [{"raw": "A dog.", "sentid": 1}]
    entries = [{"filename": name, "split": "train", "sentences": sentences} for name in ("dog.png", LONG_NAME)]
    studies = [{"id": name, "report": "Clear.", "image_path": [name]} for name in ("dog.png", LONG_NAME)]
    tables = {
        "coco": ("dataset_coco.json", {"images": entries}, {}),
        "flickr8k": ("dataset_flickr8k.json", {"images": entries}, {}),
        "iu_xray": ("annotation.json", {"train": studies}, {"allow_partial": True}),
    }
    for name, (table, content, options) in tables.items():
        (folder / table).write_text(json.dumps(content))
        rows, report = load(folder, name, **options)
        assert len(rows) == 1
        (problem,) = report.problems
        assert (problem.kind, problem.file, problem.line) == ("missing image", str(folder / table), 2)
        assert len(problem.message) < 1200 and "characters)" in problem.message


@pytest.mark.parametrize(
    "entry",
    [
        *("text", None, {}, {"id": 1, "report": "Clear."}),
        {"id": 1, "report": None, "image_path": ["dog.png"]},
        {"id": 1, "report": "Clear.", "image_path": 7},
        {"id": 1, "report": "Clear.", "image_path": [None]},
        {"id": 1, "report": "A \ud800.", "image_path": ["dog.png"]},
    ],
)
def test_entries_of_reports(folder, entry):
    good = [{"id": "1" * 5000, "report": "Clear.", "image_path": row["file_name"]} for row in GOOD[:1]]
    (folder / "annotation.json").write_text(json.dumps({"train": [entry, *good]}))
    rows, report = load(folder, "iu_xray", allow_partial=True)
    assert len(rows) == 1 and rows[0]["uid"] is None, "the number of a study fits into 64 bits"
    assert [(problem.file, problem.line) for problem in report.problems] == [(str(folder / "annotation.json"), 1)]


def test_parquet_files_that_are_cut_or_changed(folder):
    table = folder / "metadata.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GOOD), table)
    content = table.read_bytes()
    for damaged in (b"", content[:-10], content[:100], content[:40] + b"xxxxxxxx" + content[48:]):
        table.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{table} cannot be read as Parquet"):
            load(folder)


SMALL_FOOTERS = """
import sys
from pathlib import Path
from hf_captioners.data.arrow_containers import ParquetImages
path = Path(sys.argv[1])
content = path.read_bytes()
footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
refused = 0
for place in range(footer, len(content) - 8):
    for value in (0x15, 0x26, 0xFF):
        path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
        try:
            ParquetImages(path, "image").require_sizes(["image", "caption"])
        except ValueError as error:
            assert str(path) in str(error), error
            refused += 1
print(refused)
"""


def test_damaged_footers_do_not_end_the_process(tmp_path):
    """Metadata of pyarrow that Python asks for throws in C++, without a handler, where a chunk is damaged."""
    rows = [{"image": b"x", "caption": "A dog."}]
    schema = pyarrow.schema({"image": pyarrow.binary(), "caption": pyarrow.string()})  # no metadata of its own
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), tmp_path / "x.parquet")
    done = subprocess.run(
        [sys.executable, "-c", SMALL_FOOTERS, str(tmp_path / "x.parquet")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-1000:]
    assert int(done.stdout) > 100


def test_parquet_files_of_columns_that_are_cut_or_changed(folder):
    """`datasets` raises its own errors, which do not name the file."""
    rows = [{"image": (folder / row["file_name"]).read_bytes(), "alt": row["caption"]} for row in GOOD]
    options = {"path": "parquet", "image_column": "image", "caption_columns": ["alt"]}
    for name in ("train", "validation"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
    table = folder / "validation.parquet"
    content = table.read_bytes()
    for damaged in (content[:-10], content[:100], content[:40] + b"xxxxxxxx" + content[48:]):
        table.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{folder} cannot be loaded as 'parquet': {table} cannot be read"):
            load(folder, "by_columns", **options)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_json_files_that_are_damaged_as_a_whole(tmp_path, ending):
    path = tmp_path / f"captions{ending}"
    whole = json.dumps(GOOD).encode()
    pack = gzip.compress if ending.endswith("gz") else bytes
    for content in (pack(b"[" * 100_000), pack(whole[:-5]), pack(whole)[:-12]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=str(path)):
            read_captions(path)
    path.write_bytes(pack(json.dumps({"images": ["a"], "annotations": []}).encode()))
    with pytest.raises(ValueError, match="has `images` that are no list of objects"):
        read_captions(path)


@pytest.mark.parametrize("entry", [7, None, "x", [], True, {"names": 3, "more": 1}])
def test_entries_of_predictions_that_are_no_captions(tmp_path, entry):
    path = tmp_path / "captions.json"
    path.write_text(json.dumps([*GOOD, entry]))
    with pytest.raises(ValueError, match=f"{path}, entry 4"):
        read_captions(path)
    annotations = [{"image_id": 1, "caption": "A dog."}]
    for name in (3, None, ["dog.png"]):
        path.write_text(json.dumps({"images": [{"id": 1, "file_name": name}], "annotations": annotations}))
        assert read_captions(path) == ({"1": ["A dog."]}, {}), "an image without a name is known by its id"


@pytest.mark.parametrize("name", ["captions.json.gz", "captions.jsonl.gz", "captions.csv.gz", "captions.txt.gz"])
def test_compressed_tables_have_a_limit(tmp_path, name):
    """300 MB of 300 kB, in one line, are refused before they are in memory."""
    path = tmp_path / name
    with gzip.open(path, "wb", 1) as file:
        for _ in range(300):
            file.write(b" " * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=rf"{path}.*more than 67,108,864 bytes when decompressed.*gunzip"):
        read_captions(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 * 1024


def test_captions_beside_images_that_are_not_utf8(folder):
    for row in GOOD:
        (folder / row["file_name"]).with_suffix(".txt").write_text(row["caption"])
    (folder / "cow.txt").write_bytes(b"\xff\xfe\xff")
    rows, report = load(folder)
    assert len(rows) == 2 and report.problems[0].file == str(folder / "cow.txt")
