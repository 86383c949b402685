"""Parquet shards carry their images."""

import pytest

from hf_captioners.data.shards import write_parquet_shards


def test_shards_are_read_where_the_images_are_not(load, tmp_path, image):
    names = [f"{number}.{'png' if number % 2 else 'jpg'}" for number in range(7)]
    for name in names:
        image(tmp_path / "own" / name)
    (tmp_path / "own" / "captions.txt").write_text("".join(f"{name}\tImage {name}\n" for name in names))
    dataset = load("caption_folder", tmp_path / "own", "train")
    pixels = [row["image"].tobytes() for row in dataset]
    paths = write_parquet_shards(dataset, tmp_path / "shards", "train", rows_per_shard=3)
    assert [path.name for path in paths] == [f"train-{number:05d}-of-00003.parquet" for number in range(3)]
    times = [path.stat().st_mtime_ns for path in paths]
    paths[1].unlink()
    write_parquet_shards(dataset, tmp_path / "shards", "train", rows_per_shard=3)
    assert [path.stat().st_mtime_ns == then for path, then in zip(paths, times, strict=True)] == [True, False, True]
    for name in names:
        (tmp_path / "own" / name).unlink()
    options = {"path": "parquet", "data_dir": tmp_path / "shards", "image_column": "image", "id_column": "image_id"}
    for streaming in (False, True):
        read = load("by_columns", split="train", streaming=streaming, caption_columns=["captions"], **options)
        rows = list(read)
        assert [row["image"].tobytes() for row in rows] == pixels
        assert [row["captions"] for row in rows] == [[f"Image {name}"] for name in names]
        assert [row["image_id"] for row in rows] == names and rows[0]["file_name"] == names[0]
    with pytest.raises(ValueError, match="7 rows cannot be written with 0 in a shard"):
        write_parquet_shards(dataset, tmp_path / "shards", "train", rows_per_shard=0)
