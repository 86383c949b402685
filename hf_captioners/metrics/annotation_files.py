"""Annotation files: opened with size limits, read as JSON, or line by line with detection of the encoding."""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import logging
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from hf_captioners.output_files import open_plain

from .text_encoding import (
    UTF_8,
    encoding_of_mark,
    encoding_without_mark,
    guessed_encoding,
    is_wide,
    require_encoding,
    sample_beyond_ascii,
)

logger = logging.getLogger(__name__)

MALFORMED_ROW, MISSING_IMAGE = "malformed row", "missing image"
# Limits of decompressed files: of their size, and of its ratio to the compressed size.
GZIP_FLOOR, GZIP_RATIO = 64 * 2**20, 32
MAX_FILE_BYTES = 4 * 2**30  # of a file that is read as a whole
READ_BYTES = 2**20  # at a time: one large read takes its memory at once
MAX_LINE_BYTES = 64 * 2**20
ADVICE = "If letters are wrong, name its encoding: `encoding='...'`."


class RowReport(Protocol):
    """Receiver of the rows that cannot be read, such as `hf_captioners.data.DataReport`."""

    def remark(self, file: str | Path, message: str) -> None:
        """Record an assumption about a file, so that a person can check it."""
        ...

    def add(self, kind: str, file: str | Path, line: int | None, message: str) -> None:
        """Record one bad row: `MALFORMED_ROW` or `MISSING_IMAGE`, its file, its line from 1, and the reason."""
        ...


class FirstFault:
    """`RowReport` that raises at the first bad row."""

    def remark(self, file: str | Path, message: str) -> None:
        """Log an assumption about a file."""
        logger.warning("%s: %s", file, message.replace(ADVICE, "If letters are wrong, save it as UTF-8."))

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
        content = read_annotation(path)
        name, length = encoding_of_mark(content) or (UTF_8, 0)
        return json.loads(content[length:].decode(name))
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


def text_lines(path: Path, report: RowReport, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield line number and line of a text file; lines end with LF or CRLF only.

    `str.splitlines` would also cut at U+0085 or U+2028, which captions from web pages contain.

    Args:
        path: the file, also gzipped.
        report: receives the lines that cannot be read, and a remark on a guessed encoding.
        encoding: its encoding. None: what its byte order mark states, or UTF-8; where a line is not UTF-8 and no line
            is UTF-8 beyond ASCII, what `guessed_encoding` returns.

    Yields:
        Line number from 1, and the line with its end.

    Raises:
        ValueError: there is no such encoding.
    """
    encoding = None if encoding is None else require_encoding(encoding)
    start = _beginning(path)
    marked = encoding_of_mark(start)
    if encoding is None and marked is not None:
        encoding = marked[0]
    elif encoding is None and (encoding := encoding_without_mark(start)) is not None:
        report.remark(path, f"it has no byte order mark and was read as {encoding}. {ADVICE}")
    if encoding is not None and is_wide(encoding):
        yield from _wide_lines(path, report, encoding)
    else:
        yield from _LineReader(path, report, encoding).lines()


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file; of a damaged compressed one nothing, as reading its lines reports it."""
    with open_annotation(path) as stream, suppress(EOFError, gzip.BadGzipFile, zlib.error):
        return stream.read(16)
    return b""


def has_wide_characters(path: Path) -> bool:
    """Return whether a file is UTF-16 or UTF-32 by its beginning."""
    marked = encoding_of_mark(start := _beginning(path))
    return encoding_without_mark(start) is not None if marked is None else is_wide(marked[0])


def _wide_lines(path: Path, report: RowReport, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line in an encoding of several bytes per character, up to the first fault."""
    with open_annotation(path) as stream, io.TextIOWrapper(stream, encoding, newline="\n") as lines:
        for number in itertools.count(1):
            try:
                line = lines.readline(MAX_LINE_BYTES + 1)
                if len(line) > MAX_LINE_BYTES:
                    raise UnicodeError(f"the line has more than {MAX_LINE_BYTES:,} characters")
            except (UnicodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
                message = f"the file cannot be read as {encoding} from here on ({error})"
                report.add(MALFORMED_ROW, path, number, message)
                return
            if not line:
                return
            yield number, line.removeprefix("\ufeff") if number == 1 else line


class _LineReader:
    """Reader of the lines of a text file, which finds the encoding as it reads.

    Args:
        path: the file.
        report: see `text_lines`.
        encoding: the encoding. None: UTF-8, or what a trial finds.
    """

    def __init__(self, path: Path, report: RowReport, encoding: str | None) -> None:
        self.path, self.report, self.encoding = path, report, encoding or UTF_8
        self.may_try = encoding is None  # until a line is UTF-8 beyond ASCII

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield number and text of each line that can be read."""
        with open_annotation(self.path) as stream:
            for number in itertools.count(1):
                try:
                    line = stream.readline(MAX_LINE_BYTES + 1)
                except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                    message = f"the file cannot be decompressed from here on ({error})"
                    self.report.add(MALFORMED_ROW, self.path, number, message)
                    return
                if not line:
                    return
                if len(line) > MAX_LINE_BYTES:
                    message = f"the line has more than {MAX_LINE_BYTES:,} bytes"
                    self.report.add(MALFORMED_ROW, self.path, number, message)
                    return
                if number == 1 and self.encoding == UTF_8:
                    line = line.removeprefix(codecs.BOM_UTF8)
                text = self._decoded(line, number)
                if text is not None:
                    yield number, text

    def _decoded(self, line: bytes, number: int) -> str | None:
        """Return the text of a line; None if it cannot be read."""
        try:
            text = line.decode(self.encoding)
        except UnicodeError as error:
            if self.may_try and (guessed := self._guess(line)) is not None:
                return guessed
            advice = (
                "" if self.encoding != UTF_8 else ". Save the file as UTF-8, or name its encoding: `encoding='...'`"
            )
            message = f"this line is not {self.encoding.upper()} ({error}): {line[:60]!r}{advice}"
            self.report.add(MALFORMED_ROW, self.path, number, message)
            return None
        self.may_try = self.may_try and line.isascii()
        return text

    def _guess(self, line: bytes) -> str | None:
        """Guess the encoding of a file with a line that is not UTF-8; return the text of this line, or None."""
        self.may_try, guess = False, None
        with open_annotation(self.path) as stream, suppress(EOFError, gzip.BadGzipFile, zlib.error):
            guess = guessed_encoding(iter(lambda: stream.readline(MAX_LINE_BYTES), b""))
        if guess is None:
            return None
        self.encoding = guess
        text = line.decode(guess, "replace")
        sample = sample_beyond_ascii(text)
        self.report.remark(self.path, f"it is not UTF-8 and was read as {guess}, for example {sample!r}. {ADVICE}")
        return text
