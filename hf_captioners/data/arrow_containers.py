"""Parquet files, Arrow files and saved data sets with a column of images."""

import bisect
import io
import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from hf_captioners.names import did_you_mean

from .images import SAVED_FILE

IMAGE_COLUMN = "image"
EXPANDED_FLOOR = 64 * 2**20  # bytes that the images of a row group may decompress to, whatever the size of the file
EXPANDED_RATIO = 32  # or this many times the bytes of the file
ARROW_MAGIC = b"ARROW1"  # begins a file that has its batches' places at its end; a stream begins otherwise
BATCHES, DICTIONARIES = 3, 2  # types of messages of Arrow


class ParquetImages:
    """A Parquet file with a column of images; see `image_column`.

    Args:
        path: the file.

    Raises:
        ValueError: it is no Parquet file, or has no such column.
    """

    def __init__(self, path: Path, column: str | None = None) -> None:
        self.path = path
        try:
            self.file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as a Parquet file: {error}. Copy it again.") from error
        self.column = image_column(self.file.schema_arrow, path, column)
        sizes = [self.file.metadata.row_group(group).num_rows for group in range(self.file.num_row_groups)]
        self.ends = list(accumulate(sizes))
        self.require_sizes([self.column])
        self.batches: Iterator[Any] = iter(())  # of the row group that is read: images are read in order
        self.batch: Any = None
        self.first = -1  # number of the first row of the batch

    def require_sizes(self, columns: Sequence[str]) -> None:
        """Refuse row groups with columns that decompress to far more bytes than the file has.

        Raises:
            ValueError: there is one, or what the file states of these columns is damaged.
        """
        size, metadata, schema = self.path.stat().st_size, self.file.metadata, self.file.schema
        leaves = {number: schema.column(number).path for number in range(len(schema))}
        leaves = {number: leaf for number, leaf in leaves.items() if any(_is_of(column, leaf) for column in columns)}
        try:
            require_sound_footer(self.path, self.file, leaves.values())
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{self.path} cannot be read as a Parquet file: {error}. Copy it again.") from error
        maximum = max(EXPANDED_FLOOR, EXPANDED_RATIO * size)
        for group in range(self.file.num_row_groups):
            expanded = sum(metadata.row_group(group).column(number).total_uncompressed_size for number in leaves)
            if expanded > maximum:
                raise ValueError(
                    f"{self.path} has {size:,} bytes, and its row group {group} decompresses to {expanded:,}, "
                    f"expected {maximum:,} at most. If the file is right, write it again with smaller row groups."
                )

    def places(self) -> Iterator[str]:
        """Yield the row numbers."""
        yield from map(str, range(self.file.metadata.num_rows))

    def content(self, place: str) -> bytes | str:
        """Return the bytes or path of the image in a row."""
        row = row_number(place, self.file.metadata.num_rows, self.path)
        try:
            self._read_to(row)
            value = self.batch.column(0)[row - self.first].as_py()
        except (pyarrow.ArrowException, OSError, StopIteration, IndexError) as error:
            self.batch = None
            reason = str(error) or "there are fewer rows than it states"
            raise ValueError(f"Rows of {self.path} cannot be read: {reason}. Copy it again.") from error
        return image_of_value(value, self.path, place)

    def _read_to(self, row: int) -> None:
        """Read forward to a row, one row per batch since rows may be large; restart the row group to go back."""
        group = bisect.bisect_right(self.ends, row)
        start = self.ends[group - 1] if group else 0
        if self.batch is None or not start <= self.first <= row:
            self.batches = self.file.iter_batches(1, [group], [self.column], use_threads=False)
            self.batch, self.first = next(self.batches), start
        while row >= self.first + len(self.batch):
            self.first += len(self.batch)
            self.batch = next(self.batches)


class FooterRead(Exception):
    """Raised by `NoPages` after a sound Parquet footer was read, at the first read of data pages."""


class NoPages(io.FileIO):
    """File object that raises `FooterRead` at any attempt to read data pages."""

    def read(self, size: int | None = -1) -> bytes:
        """Raise `FooterRead`."""
        raise FooterRead


def require_sound_footer(path: Path, file: pyarrow.parquet.ParquetFile, columns: Iterable[str]) -> None:
    """Check the column chunks that a Parquet footer describes, without reading pages.

    `RowGroupMetaData.column` of pyarrow ends the process where this is damaged; its readers raise an error.

    Args:
        path: the file.
        file: the same file, opened.
        columns: paths of columns without parts, such as `image.bytes`.

    Raises:
        ArrowException, OSError, ValueError: a statement is damaged.
    """
    with NoPages(path) as source:
        reader = pyarrow.parquet.ParquetFile(source, metadata=file.metadata, pre_buffer=False)
        for column in columns:
            for group in range(file.num_row_groups):
                with suppress(FooterRead):
                    next(reader.iter_batches(1, [group], [column], use_threads=False), None)


def _is_of(column: str, path: str) -> bool:
    """Return whether a Parquet path is a top-level column or a nested part of the column."""
    return path == column or path.startswith(f"{column}.")


class SavedDataSet:
    """A data set that `datasets` saved to disk, with a column of images; see `image_column`.

    Args:
        path: its folder.

    Raises:
        ValueError: it has no such column, or is damaged.
    """

    def __init__(self, path: Path, column: str | None = None) -> None:
        from datasets import load_from_disk

        self.path = path
        try:
            require_no_compression(path)
            rows = load_from_disk(str(path))
        except Exception as error:  # files that are damaged raise errors of many types
            raise ValueError(f"{path} cannot be read as a saved data set: {error}. Save it again.") from error
        self.column = image_column(rows.features.arrow_schema, path, column)
        self.all = rows.with_format("arrow")
        self.rows = self.all.select_columns([self.column])

    def places(self) -> Iterator[str]:
        """Yield the row numbers."""
        yield from map(str, range(len(self.rows)))

    def content(self, place: str) -> bytes | str:
        """Return the bytes or path of the image in a row."""
        row = row_number(place, len(self.rows), self.path)
        return image_of_value(self.rows[row].column(0)[0].as_py(), self.path, place)


class ArrowImages:
    """An Arrow file with a column of images, as a stream or in the form of Feather; see `image_column`.

    Args:
        path: the file.
        column: the column of images. None: it is found.

    Raises:
        ValueError: it is no Arrow file, is damaged or compressed, or has no such column.
    """

    def __init__(self, path: Path, column: str | None = None) -> None:
        self.path = path
        try:
            require_plain_batches(path)
            file = pyarrow.memory_map(str(path))
            is_stream = not _has_magic(path)
            self.table = (pyarrow.ipc.open_stream(file) if is_stream else pyarrow.ipc.open_file(file)).read_all()
        except (pyarrow.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
            raise ValueError(f"{path} cannot be read as an Arrow file: {error}. Write it again.") from error
        self.column = image_column(self.table.schema, path, column)

    def places(self) -> Iterator[str]:
        """Yield the row numbers."""
        yield from map(str, range(len(self.table)))

    def content(self, place: str) -> bytes | str:
        """Return the bytes or path of the image in a row."""
        row = row_number(place, len(self.table), self.path)
        return image_of_value(self.table[self.column][row].as_py(), self.path, place)


def _has_magic(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(ARROW_MAGIC)) == ARROW_MAGIC


def require_no_compression(path: Path) -> None:
    """Check that the Arrow files of a data set are uncompressed, so that they can be memory-mapped.

    Raises:
        ValueError: a record batch is compressed, which `datasets` never writes.
        OSError: a file cannot be read.
        ArrowException: a file is damaged.
    """
    state = json.loads((path / SAVED_FILE).read_bytes())
    for name in (entry["filename"] for entry in state["_data_files"]):
        require_plain_batches(path / name)


def require_plain_batches(path: Path) -> None:
    """Check that the batches of an Arrow file are uncompressed and that their buffers lie inside the file.

    Raises:
        ValueError: a record batch is compressed.
        OSError: the file cannot be read.
        ArrowException: it is damaged.
    """
    with pyarrow.memory_map(str(path)) as file:
        if _has_magic(path):
            file.seek(8)  # after the magic bytes and their padding, the messages are those of a stream
        for message in pyarrow.ipc.MessageReader.open_stream(file):
            if is_compressed(message.metadata.to_pybytes()):
                raise ValueError(f"{path.name} is compressed; `datasets` writes Arrow files without compression")
        file.seek(0)
        batches = pyarrow.ipc.open_file(file) if _has_magic(path) else pyarrow.ipc.open_stream(file)
        batches.read_all().validate(full=True)  # a value that begins outside of the file would end the process


def is_compressed(metadata: bytes) -> bool:
    """Return whether an Arrow message (a FlatBuffers table) has a compressed record batch."""

    def field(table: int, number: int) -> int:
        """Return the offset of a field in a FlatBuffers table; 0 if the field is absent."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        at = 4 + 2 * number
        if at >= struct.unpack_from("<H", metadata, fields)[0]:
            return 0
        offset = struct.unpack_from("<H", metadata, fields + at)[0]
        return table + offset if offset else 0

    def target(place: int) -> int:
        return place + struct.unpack_from("<I", metadata, place)[0]

    message = target(0)
    kind, header = field(message, 1), field(message, 2)
    if not kind or not header or metadata[kind] not in (BATCHES, DICTIONARIES):
        return False
    batch = target(header)
    if metadata[kind] == DICTIONARIES:
        batch = target(field(batch, 1))
    return field(batch, 3) > 0


def image_column(schema: pyarrow.Schema, path: Path, column: str | None = None) -> str:
    """Return the name of the image column: `image`, or the only column of bytes or `{"bytes", "path"}`.

    Args:
        schema: columns of the file.
        path: the file, for messages.
        column: the column that a person named.

    Raises:
        ValueError: there is none, or several; or the named one is none.
    """
    candidates = [field.name for field in schema if _holds_images(field.type)]
    if column is not None and column not in candidates:
        raise ValueError(
            f"{path} has no column {column!r} of images (`image_column`); it has {', '.join(schema.names)}."
            f"{did_you_mean(column, candidates)}"
        )
    if column is not None:
        return column
    if IMAGE_COLUMN in candidates:
        return IMAGE_COLUMN
    if len(candidates) == 1:
        return candidates[0]
    raise ValueError(
        f"{path} has the columns {schema.names}, expected one of images (bytes, or a struct of bytes and path) named "
        f"`{IMAGE_COLUMN}`" + (f", and {' and '.join(candidates)} are such columns." if candidates else ".")
    )


def _holds_images(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)


def row_number(place: str, rows: int, path: Path) -> int:
    """Parse a row number and check that the file has this row.

    Raises:
        FileNotFoundError: there is no such row.
    """
    if not (place.isdecimal() and int(place) < rows):
        raise FileNotFoundError(f"{path} has no row {place}, it has {rows:,}, counted from 0.")
    return int(place)


def image_of_value(value: Any, path: Path, place: str) -> bytes | str:
    """Return the bytes or path in a cell of an image column; relative paths start at the table's folder.

    Raises:
        ValueError: it has neither, or a value of another type.
    """
    if isinstance(value, dict):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if value is None:
        raise ValueError(f"The row {place} of {path} has no image.")
    if not isinstance(value, (bytes, str)):
        raise ValueError(f"The row {place} of {path} has {value!r:.60} as its image, expected bytes or a path.")
    return os.path.join(path.parent, value) if isinstance(value, str) else value
