"""Captions and other columns of images in tar shards, Parquet and Arrow files and saved data sets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow

from hf_captioners.metrics import table_columns
from hf_captioners.metrics.text_encoding import decoded
from hf_captioners.names import listed

from .arrow_containers import ArrowImages, ParquetImages, SavedDataSet
from .containers import TEXT_ENDINGS, TarShard

ROWS_AT_ONCE = 1000
COLUMN_ADVICE = "Name the columns of captions: `caption_columns=['...']`."
TableContainer = ParquetImages | ArrowImages | SavedDataSet


@dataclass
class ContainerRow:
    """Captions and columns of an image in a container file.

    Attributes:
        place: place of the image in the container.
        captions: the values that should be captions.
        columns: values of the other columns that are numbers, texts or truth values.
    """

    place: str
    captions: list[Any]
    columns: dict[str, Any] = field(default_factory=dict)


def tar_rows(shard: TarShard, columns: Sequence[str] | None) -> Iterator[ContainerRow]:
    """Yield the rows of a tar shard, whose captions are in files named like the images.

    Args:
        shard: the shard.
        columns: endings of files with a caption per line, or keys of the `.json` files. None: the lines of `.txt` or
            `.caption`, or else a usual key of `.json`.
    """
    for place in shard.places():
        texts = shard.texts_of(place)
        content: Any = None
        captions: list[Any] = []
        for ending in TEXT_ENDINGS:
            is_selected = columns is None or ending in columns
            if ending in texts and ending != "json" and is_selected and not captions:
                captions = [line for line in decoded(texts[ending])[0].splitlines() if line.strip()]
        if "json" in texts and not captions:
            try:
                content = json.loads(texts["json"])
            except (ValueError, RecursionError):
                content = None
        if isinstance(content, dict):
            keys = columns or table_columns.caption_columns(tuple(content))
            captions = [content[key] for key in keys if key in content]
        yield ContainerRow(place, captions)


def table_rows(container: TableContainer, columns: Sequence[str] | None) -> Iterator[ContainerRow]:
    """Yield the rows of a Parquet file, Arrow file or saved data set.

    Args:
        container: the container.
        columns: the columns of captions. None: those of usual names, or the only column of texts.

    Raises:
        ValueError: there are no such columns.
    """
    schema = schema_of(container)
    captions = require_caption_columns(container.path, schema, columns)
    further = [field.name for field in schema if field.name not in captions and is_plain(field.type)]
    if isinstance(container, ParquetImages):
        container.require_sizes([*captions, *further])
    number = 0
    try:
        for batch in _batches(container, [*captions, *further]):
            for record in batch:
                values = [record.pop(name) for name in captions]
                yield ContainerRow(str(number), values, record)
                number += 1
    except (pyarrow.ArrowException, OSError, SystemError) as error:
        raise ValueError(
            f"Rows of {container.path} cannot be read after {number:,}: {error}. Copy it again."
        ) from error


def schema_of(container: TableContainer) -> pyarrow.Schema:
    """Return the column types of a container without the image column."""
    if isinstance(container, ParquetImages):
        schema = container.file.schema_arrow
    elif isinstance(container, ArrowImages):
        schema = container.table.schema
    else:
        schema = container.all.features.arrow_schema
    return pyarrow.schema([field for field in schema if field.name != container.column])


def _batches(container: TableContainer, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
    if isinstance(container, ParquetImages):
        for batch in container.file.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False):
            yield batch.to_pylist()
    elif isinstance(container, ArrowImages):
        for batch in container.table.select(columns).to_batches(ROWS_AT_ONCE):
            yield batch.to_pylist()
    else:
        for table in container.all.select_columns(columns).iter(ROWS_AT_ONCE):
            yield table.to_pylist()


def require_caption_columns(path: Path, schema: pyarrow.Schema, columns: Sequence[str] | None) -> list[str]:
    """Return the caption columns, see `table_rows`."""
    if columns:
        if missing := [name for name in columns if name not in schema.names]:
            raise ValueError(f"{path} has no column {missing[0]!r}; it has {listed(schema.names)}.")
        return list(columns)
    texts = [field.name for field in schema if _holds_texts(field.type)]
    usual = [name for name in table_columns.caption_columns(tuple(texts)) if name in texts]
    free = [name for name in texts if name not in (table_columns.file_column(tuple(texts)), "split", "image_id")]
    if not usual and len(free) != 1:
        raise ValueError(
            f"{path} has the columns {listed(schema.names)} beside its images, none of which has a usual name for "
            f"captions. {COLUMN_ADVICE}"
        )
    return usual or free


def _holds_texts(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _holds_texts(kind.value_type)
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def is_plain(kind: pyarrow.DataType) -> bool:
    """Return whether an Arrow type is text, number or bool."""
    checks = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_boolean)
    return any(check(kind) for check in (*checks, pyarrow.types.is_integer, pyarrow.types.is_floating))
