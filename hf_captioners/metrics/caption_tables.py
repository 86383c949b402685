"""Readers of tables of captions: `.txt`, `.csv`, `.tsv`, `.jsonl`, `.json` and `.parquet`, with line numbers."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from hf_captioners.output_files import open_plain, require_plain

MALFORMED_ROW, MISSING_IMAGE = "malformed row", "missing image"
TABLE_KINDS = (".jsonl", ".csv", ".tsv", ".parquet", ".json", ".txt")
# Limits of decompressed files: of their size, and of its ratio to the compressed size.
GZIP_FLOOR, GZIP_RATIO = 64 * 2**20, 32
MAX_FILE_BYTES = 4 * 2**30  # of a file that is read as a whole
READ_BYTES = 2**20  # at a time: one large read takes its memory at once
MAX_LINE_BYTES = 64 * 2**20
MAX_LEVELS = 20  # of lists and objects in a row
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
        """Raise a `ValueError` that names the file, the line and the fault."""
        raise ValueError(f"{file}, line {line}: {message}.")


class LimitedGzip(io.RawIOBase):
    """The content of a gzip file up to a limit of bytes, so that a small file cannot fill the memory.

    Args:
        path: the file.
        limit: the most bytes. None: 64 MiB, or 32 times the compressed size if that is more.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.file = gzip.open(open_plain(path), "rb")  # noqa: SIM115
        self.left = limit or max(GZIP_FLOOR, GZIP_RATIO * path.stat().st_size)
        self.limit = self.left

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress bytes into `buffer` and return their number.

        Raises:
            EOFError, gzip.BadGzipFile, zlib.error: the file is damaged.
            gzip.BadGzipFile: it has more bytes than the limit.
        """
        count = self.file.readinto(buffer)
        self.left -= count
        if self.left < 0:
            raise gzip.BadGzipFile(
                f"it has more than {self.limit:,} bytes when decompressed; if the file is right, decompress it with "
                "`gunzip`"
            )
        return count

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        super().close()


def open_annotation(path: Path) -> IO[bytes]:
    """Open an annotation file for reading bytes; decompress it, up to a limit, if its name ends in `.gz`."""
    return io.BufferedReader(LimitedGzip(path), 2**16) if path.suffix == ".gz" else open_plain(path)


def read_json(path: Path) -> Any:
    """Read a JSON file, also a gzipped one, and return its content.

    Raises:
        ValueError: the file is not JSON; the message states where.
    """
    try:
        return json.loads(read_annotation(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error


def read_annotation(path: Path) -> bytes:
    """Return the bytes of an annotation file, decompressed if its name ends in `.gz`.

    Raises:
        ValueError: the compressed file is damaged, or there are too many bytes.
        UnsafeFileError: it is no plain file.
    """
    with open_annotation(path) as stream:
        try:
            parts, size = [], 0
            while size <= MAX_FILE_BYTES and (
                part := stream.read(READ_BYTES)
            ):  # one large read takes its memory at once
                parts.append(part)
                size += len(part)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} cannot be decompressed: {error}. Copy or download it again.") from error
    if size > MAX_FILE_BYTES:
        raise ValueError(f"{path} has more than {MAX_FILE_BYTES:,} bytes, too many to be read as a whole.")
    return b"".join(parts)


def row_fault(row: Any, byte_names: bool = False) -> str | None:
    """Return why a row cannot be stored in a data set; None if it can.

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


def text_lines(path: Path, report: RowReport) -> Iterator[tuple[int, str]]:
    """Yield line number and line of a UTF-8 file with or without a byte order mark; lines end with LF or CRLF only.

    `str.splitlines` would also cut at U+0085 or U+2028, which captions from web pages contain.

    Yields:
        Line number from 1, and the line with its end.

    Raises:
        ValueError: the file is UTF-16.
    """
    number = 0
    with open_annotation(path) as stream:
        while True:
            number += 1
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                report.add(MALFORMED_ROW, path, number, f"the file cannot be decompressed from here on ({error})")
                return
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                report.add(MALFORMED_ROW, path, number, f"the line has more than {MAX_LINE_BYTES:,} bytes")
                return
            if number == 1:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise ValueError(f"{path} is in UTF-16; save it as UTF-8.")
                line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                report.add(MALFORMED_ROW, path, number, f"this line is not UTF-8 ({error}): {line[:60]!r}")


def table_rows(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Yield line number and content of each row of a caption table, in the format that its file ending states.

    Args:
        path: `.jsonl`, `.csv`, `.tsv`, `.parquet`, `.json`, or `.txt` with lines of `name TAB caption`,
            `name#k TAB caption` or `name,caption`, with or without a header.
        report: receives the rows that cannot be read.

    Yields:
        Line number from 1 (record number for parquet), and the row as a mapping.

    Raises:
        ValueError: the format is unknown, or the file as a whole is damaged.
    """
    require_plain(path, os.stat(path).st_mode)  # pyarrow opens files itself
    for number, row in _rows_of(path, report):
        if fault := row_fault(row, byte_names=True):
            report.add(MALFORMED_ROW, path, number, fault)
        else:
            yield number, row


def _rows_of(path: Path, report: RowReport) -> Iterator[Numbered]:
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
    """Yield line number and object of each line of a JSON Lines file; blank lines are skipped."""
    for number, line in text_lines(path, report):
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


def separated_rows(path: Path, report: RowReport, separator: str) -> Iterator[Numbered]:
    """Yield line number and fields of each row of a CSV or TSV file with a header.

    CSV fields may be in double quotes and then hold commas and line feeds; TSV has no quoting. The number of a row is
    that of its first line. After a row that cannot be read, reading goes on with its second line, so that a quote that
    is not closed costs one line.

    Raises:
        ValueError: two columns have one name.
    """
    header: list[str] = []
    lines = _Lines(text_lines(path, report))
    for number, fields in _separated_fields(path, report, separator, lines):
        if not header:
            header = [name.strip() for name in fields]
            if twice := [name for name in header if name and header.count(name) > 1]:
                raise ValueError(f"{path}:{number} has the column {twice[0]!r} twice. Rename or remove one of them.")
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
            lines.give_back()


class _Lines:
    """Iterator over numbered lines that can give back the lines of a malformed row after its first line."""

    def __init__(self, source: Iterator[tuple[int, str]]) -> None:
        self.source = source
        self.returned: deque[tuple[int, str]] = deque()
        self.taken: list[tuple[int, str]] = []  # lines of the current row so far

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.taken.append(self.returned.popleft() if self.returned else next(self.source))
        return self.taken[-1][1]

    def give_back(self) -> None:
        self.returned.extendleft(reversed(self.taken[1:]))


def _separated_fields(path: Path, report: RowReport, separator: str, lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    quoting = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    while True:
        lines.taken.clear()
        try:
            # A reader per row, so that a row that cannot be read leaves nothing in it.
            fields = next(csv.reader(lines, delimiter=separator, quoting=quoting, strict=True))  # type: ignore[arg-type]
        except StopIteration:
            return
        except csv.Error as error:
            message = f"{error}: are double quotes in a field doubled and closed?"
            report.add(MALFORMED_ROW, path, lines.taken[0][0], message)
            lines.give_back()
            continue
        if fields:
            yield lines.taken[0][0], fields


def caption_lines(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Yield file name and caption of lines `name#k TAB caption`, `name TAB caption` or `name,caption`.

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
    """Split a line into file name and caption; the caption is None if the line has no separator."""
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
