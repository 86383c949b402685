"""Images inside tar shards, Parquet files and data sets: the same captions as of the same files in a folder."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import datasets
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from hf_captioners.captioning.image_list import find_images
from hf_captioners.cli import main
from hf_captioners.data.arrow_containers import ParquetImages
from hf_captioners.data.containers import TarShard, hub_address, located, names_in, split_name
from hf_captioners.data.shards import write_parquet_shards


@pytest.fixture(scope="module")
def folder(images, once_a_run):
    """Ten images, of which the fourth is cut off."""

    def fill(target):
        for path in images.glob("*.png"):
            shutil.copy(path, target)
        cut = target / "scene_003.png"
        cut.write_bytes(cut.read_bytes()[:200])

    return once_a_run("images_for_containers", fill)


@pytest.fixture(scope="module")
def containers(folder, once_a_run):
    """The same images in a tar shard with their captions, in Parquet, and in data sets on disk."""

    def fill(target):
        paths = sorted(folder.iterdir())
        (target / "tar").mkdir()
        with tarfile.open(target / "tar" / "0.tar", "w") as tar:
            for path in paths:
                tar.add(path, path.name)
                tar.addfile(tarfile.TarInfo(f"{path.stem}.txt"))
        rows = datasets.Dataset.from_dict({"number": range(10), "image": [str(path) for path in paths]})
        rows = rows.cast_column("image", datasets.Image(decode=False))
        write_parquet_shards(rows, target / "parquet", "train", rows_per_shard=7)
        encoded = [path.read_bytes() for path in paths]
        table = pyarrow.table({"name": ["x"] * 10, "jpg": encoded})
        pyarrow.parquet.write_table(table, target / "bytes.parquet", row_group_size=3)
        places = str(target / "bytes.arrow")
        with pyarrow.OSFile(places, "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        rows.save_to_disk(str(target / "saved"))
        halves = {"train": rows.select(range(5)), "test": rows.select(range(5, 10))}
        datasets.DatasetDict(halves).save_to_disk(str(target / "splits"))

    return once_a_run("containers", fill)


@pytest.fixture(scope="module")
def expected(folder, captioner, tmp_path_factory):
    return captions_of(folder, captioner, tmp_path_factory.mktemp("expected") / "captions.jsonl")


def captions_of(source, captioner, output, *more):
    status = main(
        [
            "caption",
            str(source),
            "--model",
            captioner,
            "--num_beams",
            "1",
            "--batch_size",
            "4",
            "--output",
            str(output),
        ]
        + ["--device", "cpu", *more]
    )
    assert status == 1  # an image is cut off
    return [json.loads(line) for line in output.read_text().splitlines()] if output.suffix == ".jsonl" else None


KINDS = {
    "tar": "0.tar/scene_000.png",
    "parquet": "train-00000-of-00002.parquet/0",
    "bytes.parquet": "0",
    "bytes.arrow": "0",
    "saved": "0",
    "splits": "train/0",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_container_has_the_captions_of_the_folder(kind, containers, captioner, expected, tmp_path, capsys):
    found = captions_of(containers / kind, captioner, tmp_path / "captions.jsonl", "--workers", "2")
    if kind == "splits":  # in the order of the names of the splits
        found = [*found[5:], *found[:5]]
        assert found[0]["image"] == f"{containers / kind}/train/0"
    assert [record["caption"] for record in found] == [record["caption"] for record in expected]
    assert [record["score"] for record in found] == pytest.approx([record["score"] for record in expected], abs=1e-4)
    names = find_images([str(containers / kind)])
    assert len(names) == 10 and f"{containers / kind}/{KINDS[kind]}" in names
    (cut,) = set(names) - {record["image"] for record in found}
    error = capsys.readouterr().err
    assert f"not captioned: The image {cut} cannot be read: " in error and "left out" not in error


def test_shards_resumed_jobs_and_parts(containers, folder, captioner, expected, tmp_path, capsys):
    """Parts of a Parquet folder are the whole job; an interrupted one is resumed."""
    lists = tmp_path / "list.txt"
    names = find_images([str(containers / "tar")])
    lists.write_text("\n".join(names))
    output = tmp_path / "parts"
    for shard in ("1/2", "2/2"):
        captions_of_part = ["caption", str(lists), "--model", captioner, "--num_beams", "1", "--shard", shard]
        assert main([*captions_of_part, "--output", str(output), "--batch_size", "4"]) == (shard == "2/2")
    parts = sorted(path.name for path in output.iterdir() if not path.name.startswith("."))
    assert parts == ["part-00001-of-00002.parquet", "part-00002-of-00002.parquet"]
    rows = datasets.load_dataset("parquet", data_dir=str(output), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.column_names == ["image", "caption", "score"]
    found = dict(zip(rows["image"], rows["caption"], strict=True))
    captions = {Path(record["image"]).name: record["caption"] for record in expected}
    assert {Path(name).name: caption for name, caption in found.items()} == captions
    assert main([*captions_of_part, "--output", str(output)]) == 2
    assert "part-00002-of-00002.parquet exists" in capsys.readouterr().err


def test_several_captions_in_parquet(folder, captioner, tmp_path):
    output = tmp_path / "captions.parquet"
    captions_of(folder, captioner, output, "--generate", "num_return_sequences=2", "do_sample=true")
    (first, *_), schema = pyarrow.parquet.read_table(output).to_pylist(), pyarrow.parquet.read_schema(output)
    assert schema.names == ["image", "caption", "score", "captions", "scores"]
    assert first["captions"][0] == first["caption"] and len(first["scores"]) == 2


def test_what_is_wrong_with_a_container_is_told(containers, folder, captioner, tmp_path, capsys):
    shard = (containers / "tar" / "0.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(shard[: len(shard) // 3])
    (tmp_path / "text.tar").write_text("no tar" * 200)
    (tmp_path / "text.parquet").write_text("no table")
    with tarfile.open(tmp_path / "packed.tar", "w:gz") as tar:
        tar.add(folder, "folder")
    with tarfile.open(tmp_path / "none.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    pyarrow.parquet.write_table(pyarrow.table({"url": ["a"]}), tmp_path / "urls.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"a": [b"a"], "b": [b"b"]}), tmp_path / "two.parquet")
    for size in (-512, -1024, 2**62):
        with tarfile.open(tmp_path / f"size{size}.tar", "w") as tar:
            member = tarfile.TarInfo("a.png")
            tar.addfile(member)
            tar.addfile(tarfile.TarInfo("b.png"))
        member.size = size
        content = (tmp_path / f"size{size}.tar").read_bytes()
        (tmp_path / f"size{size}.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + content[512:])
    kind = pyarrow.struct([("bytes", pyarrow.int64()), ("path", pyarrow.string())])
    numbers = pyarrow.table({"image": pyarrow.array([{"bytes": 7, "path": "a.png"}], kind)})
    pyarrow.parquet.write_table(numbers, tmp_path / "numbers.parquet")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state.json").write_text("{}")
    for name, said in (
        ("cut.tar", "cannot be read as a tar file"),
        ("text.tar", "cannot be read as a tar file"),
        ("packed.tar", "tar file without compression"),
        ("none.tar", "has no images"),
        ("size-512.tar", "tar"),
        ("size-1024.tar", "tar"),
        ("size4611686018427387904.tar", "cannot be read as a tar file"),
        ("text.parquet", "cannot be read as a Parquet file"),
        ("urls.parquet", "has the columns ['url'], expected one of images"),
        ("two.parquet", "a and b are such columns"),
        ("damaged", "cannot be read as a saved data set"),
    ):
        assert main(["caption", str(tmp_path / name), "--model", captioner]) == 2, name
        error = capsys.readouterr().err
        assert said in error and name in error and error.count("\n") == 1, error
    with pytest.raises(
        ValueError, match=r"The row 0 of .*numbers\.parquet has 7 as its image, expected bytes or a path"
    ):
        located(f"{tmp_path}/numbers.parquet/0")
    tar = containers / "tar" / "0.tar"
    for name, said in (
        (f"{tar}/other.png", "has no image other.png"),
        (f"{containers}/bytes.parquet/10", "has no row 10, it has 10, counted from 0"),
        (f"{containers}/saved/x", "has no row x"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            located(name)
    assert main(["caption", str(tar), "--sidecar", "--model", captioner]) == 2
    assert "`--sidecar` writes files beside images" in capsys.readouterr().err
    assert split_name(str(folder / "scene_000.png")) is None and split_name(str(folder / "none.png")) is None


def test_a_row_without_an_image_is_one_unreadable_image(folder, captioner, tmp_path, capsys):
    """Paths in a table begin at its folder."""
    shutil.copy(folder / "scene_000.png", tmp_path / "a.png")
    cells = [{"bytes": None, "path": "a.png"}, None, {"bytes": None, "path": "missing.png"}]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table({"image": pyarrow.array(cells, kind)})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    assert main(["caption", str(tmp_path / "table.parquet"), "--model", captioner, "--num_beams", "1"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{tmp_path}/table.parquet/0\t")
    assert "The row 1 of" in printed.err and "missing.png" in printed.err


def test_a_folder_of_images_is_not_searched_for_containers(containers, folder, tmp_path, capsys, captioner):
    shutil.copy(folder / "scene_000.png", tmp_path / "a.png")
    shutil.copy(containers / "tar" / "0.tar", tmp_path)
    assert find_images([str(tmp_path)]) == [str(tmp_path / "a.png")]
    assert main(["caption", str(tmp_path), "--model", captioner, "--num_beams", "1"]) == 0
    assert "left out: 1 file(s) that end with .tar" in capsys.readouterr().err


def test_names_of_data_sets_of_the_hub():
    for name, expected in (
        ("hf://datasets/me/it", ("hf://datasets/me/it", "")),
        ("hf://datasets/me/it/", ("hf://datasets/me/it", "")),
        ("hf://datasets/me/it@v1/data/0.tar/a.png", ("hf://datasets/me/it@v1", "data/0.tar/a.png")),
    ):
        assert hub_address(name) == expected
    for name in ("hf://datasets/it", "hf://me/it", "hf:me"):
        with pytest.raises(ValueError, match="expected hf://datasets/OWNER/NAME"):
            find_images([name])


def test_names_are_read_without_reading_images(containers, folder, monkeypatch):
    monkeypatch.setattr(TarShard, "content", None)
    shard = containers / "tar" / "0.tar"
    assert names_in(shard) == [f"{shard}/{path.name}" for path in sorted(folder.iterdir())]


def test_parquet_bomb(images, tmp_path):
    """A file of some kilobytes that decompresses to more than 64 MiB is refused before any of its rows is read."""
    bomb, whole = tmp_path / "bomb.parquet", tmp_path / "whole.parquet"
    image = (images / "scene_000.png").read_bytes()
    pyarrow.parquet.write_table(pyarrow.table({"image": [image, bytes(2**27)]}), bomb, compression="zstd")
    pyarrow.parquet.write_table(pyarrow.table({"image": [image, bytes(2**22)]}), whole, compression="zstd")
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"bomb\.parquet has .* row group 0 decompresses to 134,\d+,\d+, expected"):
        names_in(bomb)
    assert ParquetImages(whole).content("0") == image


def test_rows_of_parquet_in_any_order(tmp_path):
    """Rows are read one after another, and again from the start of a row group for one that was passed."""
    path = tmp_path / "rows.parquet"
    contents = [bytes([number]) for number in range(10)]
    pyarrow.parquet.write_table(pyarrow.table({"image": contents}), path, row_group_size=4)
    images_of_rows = ParquetImages(path)
    for row in (0, 3, 1, 9, 8, 2, 2, 5):
        assert images_of_rows.content(str(row)) == contents[row]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_saved_data_set(images, tmp_path, compression):
    """A compressed Arrow file is decompressed when it is opened; `datasets` writes none."""
    saved = tmp_path / "saved"
    image = (images / "scene_000.png").read_bytes()
    datasets.Dataset.from_dict({"image": [image]}).save_to_disk(str(saved))
    (arrow,) = saved.glob("*.arrow")
    table = pyarrow.table({"image": [image, bytes(2**27)]})
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_stream(str(arrow), table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match=rf"saved cannot be read .*{arrow.name} is compressed"):
        names_in(saved)
