"""Parquet shards that hold the images themselves, to be carried elsewhere and streamed.

`Dataset.to_parquet` would write the paths of images, which mean nothing on another machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet
from datasets import Dataset
from datasets.table import embed_table_storage

ROWS_A_GROUP = 100  # what is read at once by whoever streams


def write_parquet_shards(dataset: Dataset, folder: str | Path, split: str, rows_per_shard: int = 5000) -> list[Path]:
    """Write a split as `<split>-00000-of-00012.parquet` and so on; shards that are there are not written again.

    Args:
        dataset: rows with images.
        folder: where the shards go; made if missing.
        split: name of the split, which begins the names of the files.
        rows_per_shard: images a file.

    Returns:
        The files in order. `load_captions("by_columns", path="parquet", data_dir=folder, image_column="image",
        caption_columns=["captions"], streaming=True)` reads them.

    Raises:
        ValueError: `rows_per_shard` is less than 1, or the data set is empty.
    """
    if rows_per_shard < 1 or not len(dataset):
        raise ValueError(f"{len(dataset)} rows cannot be written with {rows_per_shard} in a shard.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    total = -(-len(dataset) // rows_per_shard)
    paths = [folder / f"{split}-{number:05d}-of-{total:05d}.parquet" for number in range(total)]
    for number, path in enumerate(paths):
        if not path.exists():
            rows = range(number * rows_per_shard, min((number + 1) * rows_per_shard, len(dataset)))
            _write(dataset.select(rows), path)
    return paths


def _write(rows: Dataset, path: Path) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    schema = rows.features.arrow_schema
    with pyarrow.parquet.ParquetWriter(unfinished, schema) as writer:
        for table in rows.with_format("arrow").iter(ROWS_A_GROUP):
            writer.write_table(embed_table_storage(table.cast(schema)))
    os.replace(unfinished, path)
