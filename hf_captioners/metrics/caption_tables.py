"""Readers of caption tables (`.txt`, `.csv`, `.tsv`, `.jsonl`, `.json`, `.parquet`, `.xlsx`), with line numbers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_captioners.output_files import require_plain

from .annotation_files import MALFORMED_ROW, MISSING_IMAGE, RowReport, read_json, text_lines
from .separated_tables import Numbered, has_separated_header, separated_rows
from .spreadsheets import spreadsheet_rows
from .table_columns import is_image_field

TABLE_KINDS = (".jsonl", ".csv", ".tsv", ".parquet", ".json", ".txt", ".xlsx")
MAX_LEVELS = 20  # of lists and objects in a row
# Lines of Flickr's token files: name#k, then a TAB or spaces, then the caption.
NUMBERED = re.compile(r"^(?P<name>.+?)#\d+(?: *\t| +)(?P<caption>.*)$")


def row_fault(row: Any, byte_names: bool = False) -> str | None:
    """Return the reason why a row cannot be stored in a data set; None if it can.

    Texts must be Unicode without lone surrogates, whole numbers must fit into 64 bits, and lists and objects may be
    nested 20 levels deep.

    Args:
        row: an object of JSON or a row of CSV.
        byte_names: whether the fields may have the surrogates of `os.fsdecode`, for names of files that are not UTF-8.
    """
    waiting: list[tuple[Any, int]] = [(row, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            try:
                value.encode("utf-8", "surrogateescape" if byte_names and depth == 1 else "strict")
            except UnicodeEncodeError:
                return f"the text {value[:60]!r} has a lone surrogate, which is no character"
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"a whole number of {value.bit_length()} bits does not fit into 64"
        elif isinstance(value, (Mapping, list, tuple)):
            if depth >= MAX_LEVELS:
                return f"it is nested more than {MAX_LEVELS} levels deep"
            if isinstance(value, Mapping):
                waiting += [(key, depth + 2) for key in value]
                value = value.values()
            waiting += [(entry, depth + 1) for entry in value]
    return None


def table_rows(path: Path, report: RowReport, encoding: str | None = None) -> Iterator[Numbered]:
    """Yield line number and content of each row of a caption table, in the format that its file ending states.

    Args:
        path: `.jsonl`, `.csv`, `.tsv`, `.parquet`, `.json`, `.xlsx`, or `.txt` with lines of `name TAB caption`,
            `name#k TAB caption` or `name,caption`, with or without a header.
        report: receives the rows that cannot be read, and remarks on what was assumed.
        encoding: of a text; see `text_lines`.

    Yields:
        Line number from 1 (record number for parquet), and the row as a mapping.

    Raises:
        ValueError: the format or the encoding is unknown, or the file as a whole is damaged.
        ImportError: the format needs a package that is not installed.
    """
    require_plain(path, os.stat(path).st_mode)  # pyarrow and openpyxl open files themselves
    for number, row in _rows_of(path, report, encoding):
        if fault := row_fault(row, byte_names=True):
            report.add(MALFORMED_ROW, path, number, fault)
        else:
            yield number, row


def _rows_of(path: Path, report: RowReport, encoding: str | None) -> Iterator[Numbered]:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix == ".jsonl":
        return json_lines(path, report, encoding)
    if suffix in (".csv", ".tsv"):
        return separated_rows(path, report, encoding=encoding)
    if suffix == ".txt":
        return caption_lines(path, report, encoding)
    if suffix == ".parquet":
        return parquet_rows(path)
    if suffix == ".json":
        return json_rows(path, report)
    if suffix == ".xlsx":
        return spreadsheet_rows(path, report)
    older = " Save it as .xlsx or as CSV UTF-8." if suffix in (".xls", ".ods", ".numbers") else ""
    raise ValueError(f"{path} is not a readable table; expected a name that ends in {', '.join(TABLE_KINDS)}.{older}")


def json_lines(path: Path, report: RowReport, encoding: str | None = None) -> Iterator[Numbered]:
    """Yield line number and object of each line of a JSON Lines file; blank lines are skipped."""
    for number, line in text_lines(path, report, encoding):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            report.add(MALFORMED_ROW, path, number, f"not JSON ({error}): {line.strip()[:80]!r}")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            report.add(MALFORMED_ROW, path, number, f"expected an object {{...}}, found {line.strip()[:80]!r}")


def json_rows(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Yield number and object of each entry of a JSON list, or each caption of COCO's `images` and `annotations`.

    Raises:
        ValueError: the file has a different structure.
    """
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("images"), list) and "annotations" in content:
        yield from _coco_rows(content, path, report)
        return
    if not isinstance(content, list):
        raise ValueError(
            f'{path} has an unknown structure; expected a list, or {{"images": [...], "annotations": [...]}}.'
        )
    for number, row in enumerate(content, 1):
        if isinstance(row, dict):
            yield number, row
        else:
            report.add(MALFORMED_ROW, path, number, f"expected an object {{...}}, found {str(row)[:80]}")


def _coco_rows(content: dict[str, Any], path: Path, report: RowReport) -> Iterator[Numbered]:
    annotations = content["annotations"]
    if not isinstance(annotations, list):
        raise ValueError(f"{path} has {annotations!r:.60} as `annotations`, expected a list.")
    images: list[tuple[int, dict[str, Any]]] = []
    for number, image in enumerate(content["images"], 1):
        if isinstance(image, dict) and isinstance(image.get("id"), (int, str)):
            images.append((number, image))
        else:
            message = f"entry {number} of `images` is {image!r:.80}; expected an object with an `id`"
            report.add(MALFORMED_ROW, path, number, message)
    captions: dict[Any, list[Any]] = {image["id"]: [] for _, image in images}
    for number, entry in enumerate(annotations, 1):
        image_id = entry.get("image_id") if isinstance(entry, dict) else None
        if not isinstance(image_id, (int, str)):
            message = f"entry {number} of `annotations` is {entry!r:.80}; expected an object with an `image_id`"
            report.add(MALFORMED_ROW, path, number, message)
        elif image_id in captions:
            captions[image_id].append(entry.get("caption"))
        else:
            message = f"annotation {number} belongs to image {image_id!r}, which `images` lacks"
            report.add(MISSING_IMAGE, path, number, message)
    for number, image in images:
        yield number, {**image, "image_id": image["id"], "captions": captions[image["id"]]}


def caption_lines(path: Path, report: RowReport, encoding: str | None = None) -> Iterator[Numbered]:
    """Yield file name and caption of lines `name#k TAB caption`, `name TAB caption`, `name,caption`, `name;caption`.

    A first line `image,caption` (any of the usual names) is a header. Everything after the first comma or semicolon is
    the caption, which may be in double quotes. A file whose first line has usual names between tabs or semicolons is a
    table with these columns, see `separated_rows`.
    """
    first = next(text_lines(path, _Unheard(), encoding), (1, ""))[1]
    if has_separated_header(first):
        yield from separated_rows(path, report, encoding=encoding)
        return
    for number, line in text_lines(path, report, encoding):
        line = line.rstrip("\r\n")
        if not line.strip():
            continue
        name, caption = split_caption_line(line)
        if caption is None:
            report.add(
                MALFORMED_ROW,
                path,
                number,
                f"expected `name TAB caption` or `name,caption`: {line[:80]!r}",
            )
        elif number > 1 or caption.strip().lower() not in ("caption", "captions", "text", "comment"):
            yield number, {"file_name": name.strip(), "caption": caption}


class _Unheard:
    """`RowReport` that ignores all problems, for a first pass over a file that is read twice."""

    def add(self, kind: str, file: str | Path, line: int | None, message: str) -> None:
        """Ignore a bad row."""

    def remark(self, file: str | Path, message: str) -> None:
        """Ignore an assumption about a file."""


def split_caption_line(line: str) -> tuple[str, str | None]:
    """Split a line into file name and caption; the caption is None if the line has no separator."""
    if numbered := NUMBERED.match(line):
        return numbered["name"], numbered["caption"]
    if "\t" in line:
        name, caption = line.split("\t", 1)
        return name, caption
    # A semicolon only after the name of an image: captions and names have commas more often.
    separator = ";" if is_image_field(line.split(";", 1)[0]) else ","
    if separator in line:
        name, caption = line.split(separator, 1)
        if len(caption) > 1 and caption[0] == caption[-1] == '"':
            caption = caption[1:-1].replace('""', '"')
        return name, caption
    return line, None


def parquet_rows(path: Path) -> Iterator[Numbered]:
    """Yield number and columns of each row of a Parquet file.

    Raises:
        ValueError: the file is damaged.
    """
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as Parquet after {number:,} rows: {error}") from error
