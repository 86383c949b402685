"""Tables of spreadsheet programs (`.xlsx`), read by openpyxl."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from .annotation_files import MALFORMED_ROW, RowReport
from .separated_tables import HEADER_ADVICE, Numbered, named_fields, require_names
from .table_columns import header_of_rows, is_image_field

FIRST_ROWS = 100  # which show the columns where there is no header
# Limits of the sheets when decompressed, so that a small file cannot fill the memory; sheets compress well.
EXPANDED_FLOOR, EXPANDED_RATIO = 256 * 2**20, 64
MAX_COLUMNS = 1000


def spreadsheet_rows(path: Path, report: RowReport) -> Iterator[Numbered]:
    """Yield row number and cells of each row of the first sheet that is not empty.

    Formulas have the values that the spreadsheet program stored; dates and times become text; rows without any value
    are skipped.

    Args:
        path: the file.
        report: receives the rows that cannot be read, and remarks on other sheets and on columns without names.

    Raises:
        ImportError: openpyxl is not installed.
        ValueError: the file is damaged, expands too much, or has no values; two columns have one name; or there is no
            header, and the columns are not plain.
    """
    try:
        import openpyxl
    except ImportError:
        raise ImportError(
            f"Reading {path} needs openpyxl: pip install 'hf-captioners[excel]'. Or save it as CSV UTF-8."
        ) from None
    _require_size(path)
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Exception as error:  # damaged files raise errors of many types
        raise _damaged(path, error) from error
    try:
        yield from _rows_of_sheet(path, report, *_first_sheet(path, report, book))
    finally:
        book.close()


def _require_size(path: Path) -> None:
    """Check the stated sizes of the parts of a file; `zipfile` reads no more than these.

    Raises:
        ValueError: it is no such file, or the sizes are too large.
    """
    try:
        with zipfile.ZipFile(path) as parts:
            expanded = sum(part.file_size for part in parts.infolist())
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    limit = max(EXPANDED_FLOOR, EXPANDED_RATIO * path.stat().st_size)
    if expanded > limit:
        raise ValueError(
            f"{path} decompresses to {expanded:,} bytes, expected {limit:,} at most. If the file is right, save it as "
            "CSV UTF-8."
        )


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be read as a spreadsheet: {error}. Save it again, as .xlsx or as CSV UTF-8.")


def _first_sheet(path: Path, report: RowReport, book: Any) -> tuple[Sequence[list[Any]], Iterator[list[Any]]]:
    """Return the first sheet with values: its first rows, and an iterator of the others."""
    for sheet in book.worksheets:
        rows = _rows(path, sheet)
        first = list(islice(rows, FIRST_ROWS))
        if any(map(any, first)):
            if len(book.worksheets) > 1:
                report.remark(path, f"it has {len(book.worksheets)} sheets, of which {sheet.title!r} was read.")
            return first, rows
    raise ValueError(f"{path} has no values in its sheets.")


def _rows(path: Path, sheet: Any) -> Iterator[list[Any]]:
    """Yield the values of each row of a sheet, without empty cells at its end."""
    try:
        for cells in sheet.iter_rows(values_only=True, max_col=MAX_COLUMNS):
            row = [_value(cell) for cell in cells]
            while row and row[-1] is None:
                row.pop()
            yield row
    except Exception as error:  # damaged files raise errors of many types
        raise _damaged(path, error) from error


def _value(cell: Any) -> Any:
    if isinstance(cell, (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)):
        return str(cell)
    return None if isinstance(cell, str) and not cell.strip() else cell


def _rows_of_sheet(
    path: Path, report: RowReport, first: Sequence[list[Any]], others: Iterator[list[Any]]
) -> Iterator[Numbered]:
    texts = [["" if value is None else str(value) for value in row] for row in first if row]
    header: list[str] = []
    if any(map(is_image_field, texts[0])):
        width = max(map(len, texts))
        names = header_of_rows([[*row, *[""] * (width - len(row))] for row in texts])
        if names is None:
            raise ValueError(f"{path} has no header, and its columns cannot be told apart. {HEADER_ADVICE}")
        header = names
        columns = ", ".join(f"{place} as {name}" for place, name in enumerate(header, 1))
        report.remark(path, f"it has no header; its columns were read so: {columns}. {HEADER_ADVICE}")
    for number, row in enumerate(chain(first, others), 1):
        if not row:
            continue
        if not header:
            header = require_names(["" if name is None else str(name).strip() for name in row], path, number)
        elif len(row) > len(header):
            report.add(MALFORMED_ROW, path, number, f"{len(row)} cells where the header has {len(header)}")
        else:
            yield number, named_fields(header, [*row, *[None] * (len(header) - len(row))])
