"""Tables whose fields are separated by commas, semicolons, tabs or bars, with or without a header."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from .annotation_files import MALFORMED_ROW, RowReport, has_wide_characters, text_lines
from .table_columns import header_of_rows, is_image_field, is_usual_header

Numbered = tuple[int, dict[str, Any]]
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
STATED = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # the first line of some tables for spreadsheets
FIRST_LINES = 100  # which show the separator and, where there is no header, the columns
HEADER_ADVICE = "Add a first line with the names of the columns, such as file_name and caption."


@dataclass(frozen=True)
class Dialect:
    """Form of a table: separator, quoting, header and columns.

    Attributes:
        separator: between fields.
        is_quoted: whether fields may be in double quotes.
        skipped: lines before the header.
        columns: names of the columns of a table without a header; None: the first row has them.
    """

    separator: str
    is_quoted: bool
    skipped: int = 0
    columns: tuple[str, ...] | None = None


def separated_rows(
    path: Path, report: RowReport, separator: str | None = None, encoding: str | None = None
) -> Iterator[Numbered]:
    """Yield line number and fields of each row of a CSV or TSV file.

    CSV fields may be in double quotes and then hold separators and line feeds; `.tsv` has no quoting, unless it has
    wide characters, as spreadsheets write them. The number of a row is that of its first line. After a row that cannot
    be read, reading goes on with its second line, so that a quote that is not closed costs one line.

    Args:
        path: the file.
        report: receives the rows that cannot be read, and a remark on columns that have no names.
        separator: between fields, in a table with a header. None: it is found, and so are the columns of a table
            without a header.
        encoding: see `text_lines`.

    Raises:
        ValueError: two columns have one name; or there is no header, and the columns are not plain.
    """
    lines = _Lines(text_lines(path, report, encoding))
    if separator is None:
        dialect = find_dialect(path, lines.peek(FIRST_LINES))
        if dialect.columns is not None:
            columns = ", ".join(f"{place} as {name}" for place, name in enumerate(dialect.columns, 1))
            report.remark(path, f"it has no header; its columns were read so: {columns}. {HEADER_ADVICE}")
    else:
        dialect = Dialect(separator, separator != "\t")
    lines.drop(dialect.skipped)
    header = list(dialect.columns or ())
    for number, fields in _separated_fields(path, report, dialect, lines):
        if not header:
            header = require_names([name.strip() for name in fields], path, number)
        elif len(fields) == len(header):
            if any(fields):
                yield number, named_fields(header, fields)
        else:
            quotes = f". Put captions with {SEPARATORS.get(dialect.separator, 'separators')} in double quotes."
            report.add(
                MALFORMED_ROW,
                path,
                number,
                f"{len(fields)} fields where the header has {len(header)}: "
                f"{dialect.separator.join(fields)[:80]!r}{quotes if dialect.is_quoted else ''}",
            )
            lines.give_back()


def require_names(names: Sequence[str], path: Path, number: int) -> list[str]:
    """Return the column names as a list; raise an error if two columns have the same name.

    Raises:
        ValueError: two columns have one name.
    """
    if twice := [name for place, name in enumerate(names) if name and name in names[:place]]:
        raise ValueError(f"{path}:{number} has the column {twice[0]!r} twice. Rename or remove one of them.")
    return list(names)


def named_fields(header: Sequence[str], fields: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a row by the names of their columns; columns without a name are left out."""
    return {name: field for name, field in zip(header, fields, strict=True) if name}


def find_dialect(path: Path, lines: Sequence[str]) -> Dialect:
    """Detect the form of a table: separator, header and columns.

    Args:
        path: the table; `.tsv` has tabs unless its first lines show another separator, others commas.
        lines: its first lines.

    Raises:
        ValueError: there is no header, and the columns are not plain.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    stated = STATED.fullmatch(lines[0]) if lines else None
    skipped = 0 if stated is None else 1
    preferred = "\t" if suffix == ".tsv" else ","
    separator = stated[1] if stated is not None else _likely_separator(lines, preferred)
    is_quoted = separator != "\t" or suffix == ".csv" or has_wide_characters(path)
    rows = _sample(lines[skipped:], separator, is_quoted)
    columns = None
    if rows and len(rows[0]) > 1 and any(map(is_image_field, rows[0])):
        header = header_of_rows(rows)
        if header is None:
            fields = ", ".join(repr(field[:40]) for field in rows[0][:5])
            raise ValueError(f"{path} has no header, and its columns cannot be told apart: {fields}. {HEADER_ADVICE}")
        columns = tuple(header)
    return Dialect(separator, is_quoted, skipped, columns)


def has_separated_header(line: str) -> bool:
    """Return True if a line has usual column names between tabs or semicolons."""
    return any(is_usual_header(line.rstrip("\r\n").split(separator)) for separator in ("\t", ";"))


def _likely_separator(lines: Sequence[str], preferred: str) -> str:
    """Return the separator that gives a usual header, or else rows of equal width."""
    best, best_rank = preferred, (False, 0.0, 0)
    for separator in (preferred, *(candidate for candidate in SEPARATORS if candidate != preferred)):
        rows = _sample(lines, separator, True)
        if not rows or len(rows[0]) < 2:
            continue
        width = len(rows[0])
        share = sum(len(row) == width for row in rows) / len(rows)
        if separator == preferred and (is_usual_header(rows[0]) or share > 0.9):
            return separator
        rank = (is_usual_header(rows[0]), share, width)
        if rank > best_rank:
            best, best_rank = separator, rank
    return best


def _quoting(is_quoted: bool) -> Literal[0, 3]:
    return csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE


def _sample(lines: Sequence[str], separator: str, is_quoted: bool) -> list[list[str]]:
    """Return the first rows of a table; the last one may be cut."""
    rows: list[list[str]] = []
    try:
        for row in csv.reader(iter(lines), delimiter=separator, quoting=_quoting(is_quoted)):
            rows += [row] if any(row) else []
    except csv.Error:  # a field is too long; the rows before it are enough
        pass
    return rows[:-1] if len(lines) == FIRST_LINES else rows


class _Lines:
    """Iterator over numbered lines that can put back the lines of a malformed row after its first line."""

    def __init__(self, source: Iterator[tuple[int, str]]) -> None:
        self.source = source
        self.returned: deque[tuple[int, str]] = deque()
        self.taken: list[tuple[int, str]] = []  # lines of the current row so far

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.taken.append(self.returned.popleft() if self.returned else next(self.source))
        return self.taken[-1][1]

    def peek(self, count: int) -> list[str]:
        """Return the next lines without consuming them."""
        self.returned.extend(islice(self.source, count))
        return [line for _, line in self.returned]

    def drop(self, count: int) -> None:
        """Skip the next lines."""
        for _ in range(count):
            self.returned.popleft()

    def give_back(self) -> None:
        self.returned.extendleft(reversed(self.taken[1:]))


def _separated_fields(
    path: Path, report: RowReport, dialect: Dialect, lines: _Lines
) -> Iterator[tuple[int, list[str]]]:
    quoting = _quoting(dialect.is_quoted)
    while True:
        lines.taken.clear()
        try:
            # A reader per row, so that a row that cannot be read leaves nothing in it.
            fields = next(csv.reader(lines, delimiter=dialect.separator, quoting=quoting, strict=True))  # type: ignore[arg-type]
        except StopIteration:
            return
        except csv.Error as error:
            message = f"{error}: are double quotes in a field doubled and closed?"
            report.add(MALFORMED_ROW, path, lines.taken[0][0], message)
            lines.give_back()
            continue
        if fields:
            yield lines.taken[0][0], fields
