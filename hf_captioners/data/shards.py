"""Parquet shards that contain the images, for copying to another machine and streaming."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import Dataset
from datasets.table import embed_table_storage

from hf_captioners.output_files import atomic_file

ROWS_PER_GROUP = 100  # rows that are read at once when streaming


def write_parquet_shards(dataset: Dataset, folder: str | Path, split: str, rows_per_shard: int = 5000) -> list[Path]:
    """Write a split as Parquet shards `<split>-00000-of-00012.parquet` and so on.

    `Dataset.to_parquet` alone writes the paths of images, which do not exist on a different machine. A shard appears
    under its name when it is complete; a later call with the same arguments writes the missing shards only.

    Args:
        dataset: rows with images.
        folder: the folder of the shards; made if missing.
        split: name of the split, with which the file names begin.
        rows_per_shard: rows per file.

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
    with TemporaryDirectory() as scratch, atomic_file(path, "wb") as file:
        embedded = rows.with_format("arrow").map(
            embed_table_storage,
            batched=True,
            batch_size=ROWS_PER_GROUP,
            cache_file_name=str(Path(scratch, "embedded.arrow")),  # on disk: a shard may exceed the memory
        )
        embedded.to_parquet(file, batch_size=ROWS_PER_GROUP)
