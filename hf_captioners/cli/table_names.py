"""Checks of the names of tables and columns in a folder of captioned images, before anything heavy is imported."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hf_captioners.declared_classes import declared_constant, source_file
from hf_captioners.metrics.caption_tables import TABLE_KINDS, table_rows
from hf_captioners.names import did_you_mean, listed

FOLDER = "caption_folder"
ROWS = 100  # whose columns are read: rows of JSON may have different ones
LARGEST = 50 * 2**20  # bytes of a table that must be read as a whole


class _Ignored:
    """Receives the faults of rows, which the reader of the data set reports."""

    def add(self, kind: str, file: str | Path, line: int | None, message: str) -> None:
        """Do nothing."""


def check_columns(dataset: str, folder: str | Path | None, options: Mapping[str, Any]) -> None:
    """Check the options `metadata_file`, `file_column` and `caption_columns` of a folder of captioned images.

    Args:
        dataset: name of the data set; others than `caption_folder` are not checked.
        folder: the folder, which exists, or None.
        options: options of the data set.

    Raises:
        ValueError, FileNotFoundError: no table has this name, or a table has no such column; with the nearest name.
    """
    if dataset != FOLDER or folder is None:
        return
    columns = options.get("caption_columns") or []
    named = [options.get("file_column"), *([columns] if isinstance(columns, str) else columns)]
    if named == [None] and options.get("metadata_file") is None:
        return
    tables = _tables(Path(folder).expanduser(), options.get("metadata_file"))
    for table in tables[:10]:
        there = _columns_of(table)
        for column in named:
            if there and column is not None and str(column) not in there:
                raise ValueError(
                    f"`--data_options`: {table} has no column {str(column)!r}; it has {listed(there)}."
                    f"{did_you_mean(str(column), there)}"
                )


def _tables(folder: Path, name: str | None) -> Sequence[Path]:
    """Return the tables of a folder and of the folders in it."""
    places = [folder, *sorted(place for place in folder.iterdir() if place.is_dir())]
    if name is not None:
        found = [place / name for place in places if (place / name).is_file()]
        if not found and not any(folder.glob(f"*/**/{name}")):
            near = did_you_mean(name, (one.name for place in places for one in place.iterdir() if one.is_file()))
            raise FileNotFoundError(f"`--data_options`: there is no table {name!r} in {folder}.{near}")
        return found
    stems = declared_constant(source_file("data.folder_tables"), "TABLE_STEMS")
    tables = (place / f"{stem}{kind}" for place in places for stem in stems for kind in TABLE_KINDS)
    return [table for table in tables if table.is_file()]


def _columns_of(table: Path) -> list[str]:
    """Return the columns of the first rows of a table; none where the reader has to say what is wrong with it."""
    if table.suffix == ".parquet":
        import pyarrow.parquet

        try:
            return list(pyarrow.parquet.read_schema(table).names)
        except (pyarrow.ArrowException, OSError):
            return []
    if table.suffix == ".json" and table.stat().st_size > LARGEST:
        return []
    try:
        rows = [row for _, row in islice(table_rows(table, _Ignored()), ROWS)]
    except (ValueError, OSError):
        return []
    return list(dict.fromkeys(name for row in rows for name in row))
