"""Readers of tables of captions: `.txt`, `.csv`, `.tsv`, `.jsonl`, `.json` and `.parquet`, with line numbers."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

MALFORMED_ROW, MISSING_IMAGE = "malformed row", "missing image"
TABLE_KINDS = (".jsonl", ".csv", ".tsv", ".parquet", ".json", ".txt")
# Lines of Flickr's token files: name#k, then a TAB or spaces, then the caption.
NUMBERED = re.compile(r"^(?P<name>.+?)#\d+(?: *\t| +)(?P<caption>.*)$")
Numbered = tuple[int, dict[str, Any]]


class RowReport(Protocol):
    """Receiver of the rows that cannot be read, such as `hf_captioners.data.DataReport`."""

    def add(self, kind: str, file: str | Path, line: int | None, message: str) -> None:
        """Record one bad row: `MALFORMED_ROW` or `MISSING_IMAGE`, its file, its line from 1, and the reason."""
        ...


class FirstFault:
    """`RowReport` that raises at the first bad row."""

    def add(self, kind: str, file: str | Path, line: int | None, message: str) -> None:
        """Raise `ValueError` with file and line."""
        raise ValueError(f"{file}, line {line}: {message}.")


def open_annotation(path: Path) -> IO[bytes]:
    """Open an annotation file for reading bytes; decompress it if its name ends in `.gz`."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def read_json(path: Path) -> Any:
    """Read a JSON file (`.gz` too).

    Raises:
        ValueError: the file is not JSON; the message states where.
    """
    with open_annotation(path) as stream:
        content = stream.read()
    try:
        return json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error


def text_lines(path: Path, report: RowReport) -> Iterator[tuple[int, str]]:
    """Read a text file line by line, as UTF-8 with or without a byte order mark; lines end with LF or CRLF only.

    `str.splitlines` would also cut at U+0085 or U+2028, which captions from web pages contain.

    Yields:
        Line number from 1, and the line with its end.

    Raises:
        ValueError: the file is UTF-16.
    """
    with open_annotation(path) as stream:
        for number, line in enumerate(stream, 1):
            if number == 1:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise ValueError(f"{path} is in UTF-16; save it as UTF-8.")
                line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                report.add(MALFORMED_ROW, path, number, f"this line is not UTF-8 ({error}): {line[:60]!r}")


def table_rows(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Read the rows of a table in the format that its name states.

    Args:
        path: `.jsonl`, `.csv`, `.tsv`, `.parquet`, `.json`, or `.txt` with lines of `name TAB caption`,
            `name#k TAB caption` or `name,caption`, with or without a header.
        report: receives the rows that cannot be read.

    Yields:
        Line number from 1 (record number for parquet), and the row as a mapping.

    Raises:
        ValueError: the format is unknown.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix == ".jsonl":
        return json_lines(path, report)
    if suffix == ".csv":
        return separated_rows(path, report, ",")
    if suffix == ".tsv":
        return separated_rows(path, report, "\t")
    if suffix == ".txt":
        return caption_lines(path, report)
    if suffix == ".parquet":
        return parquet_rows(path)
    if suffix == ".json":
        return json_rows(path, report)
    raise ValueError(f"{path} is not a readable table; expected a name that ends in {', '.join(TABLE_KINDS)}.")


def json_lines(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Read JSON objects, one per line; blank lines are skipped."""
    for number, line in text_lines(path, report):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            report.add(MALFORMED_ROW, path, number, f"not JSON ({error}): {line.strip()[:80]!r}")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            report.add(MALFORMED_ROW, path, number, f"expected an object {{...}}, found {line.strip()[:80]!r}")


def json_rows(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Read a JSON list of objects, or captions in COCO's format (`images` and `annotations`).

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
    captions: dict[Any, list[Any]] = {image.get("id"): [] for image in content["images"]}
    for number, entry in enumerate(content["annotations"], 1):
        if entry.get("image_id") in captions:
            captions[entry["image_id"]].append(entry.get("caption"))
        else:
            message = f"annotation {number} belongs to image {entry.get('image_id')!r}, which `images` lacks"
            report.add(MISSING_IMAGE, path, number, message)
    for number, image in enumerate(content["images"], 1):
        yield number, {**image, "image_id": image.get("id"), "captions": captions[image.get("id")]}


def separated_rows(path: Path, report: RowReport, separator: str) -> Iterator[Numbered]:
    """Read CSV or TSV with a header.

    CSV fields may be in double quotes and then hold commas and line feeds; TSV has no quoting. The number of a row is
    that of its first line.
    """
    header: list[str] = []
    for number, fields in _separated_fields(path, report, separator):
        if not header:
            header = [name.strip() for name in fields]
        elif len(fields) == len(header):
            yield number, dict(zip(header, fields, strict=True))
        else:
            advice = ". Put captions with commas in double quotes." if separator == "," else ""
            report.add(
                MALFORMED_ROW,
                path,
                number,
                f"{len(fields)} fields where the header has {len(header)}: {separator.join(fields)[:80]!r}{advice}",
            )


def _separated_fields(path: Path, report: RowReport, separator: str) -> Iterator[tuple[int, list[str]]]:
    taken: list[int] = []  # lines of the current row so far

    def lines() -> Iterator[str]:
        for number, line in text_lines(path, report):
            taken.append(number)
            yield line

    quoting = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    rows = csv.reader(lines(), delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]
    while True:
        taken.clear()
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            message = f"{error}: are double quotes in a field doubled and closed?"
            report.add(MALFORMED_ROW, path, taken[0], message)
            continue
        if fields:
            yield taken[0], fields


def caption_lines(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Read lines of a file name and a caption: `name#k TAB caption`, `name TAB caption` or `name,caption`.

    A first line `image,caption` (any of the usual names) is a header. Everything after the first comma is the
    caption, which may be in double quotes.
    """
    for number, line in text_lines(path, report):
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


def split_caption_line(line: str) -> tuple[str, str | None]:
    """Split a line into file name and caption; the caption is None where there is no separator."""
    if numbered := NUMBERED.match(line):
        return numbered["name"], numbered["caption"]
    if "\t" in line:
        name, caption = line.split("\t", 1)
        return name, caption
    if "," in line:
        name, caption = line.split(",", 1)
        if len(caption) > 1 and caption[0] == caption[-1] == '"':
            caption = caption[1:-1].replace('""', '"')
        return name, caption
    return line, None


def parquet_rows(path: Path) -> Iterator[Numbered]:
    """Read the records of a Parquet file."""
    import pyarrow.parquet

    number = 0
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            number += 1
            yield number, row
