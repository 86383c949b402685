"""Columns of tables of captions: usual names, and the columns of a table without a header."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

# Usual names of columns, in the order in which they are looked for.
FILE_COLUMNS = ("file_name", "filename", "file", "image", "image_name", "img", "path", "image_path")
CAPTION_COLUMNS = ("captions", "caption", "text", "comment", "description", "sentence")
SPLIT_WORDS = ("train", "training", "val", "valid", "validation", "dev", "test")
IMAGE_NAME = re.compile(
    r".*\.(jpe?g|jpe|jfif|png|apng|webp|gif|bmp|tiff?|p[pgbn]m|jp2|avif|hei[cf]|jxl|tga)", re.IGNORECASE | re.DOTALL
)
NUMBER = re.compile(r"\s*-?\d+([.,]\d+)?\s*")
NUMBERED = re.compile(r"(?P<name>\D+?)[ _-]?\d+")


def is_image_field(text: str) -> bool:
    """Return True if a table field ends like the name of an image file."""
    return IMAGE_NAME.fullmatch(text.strip()) is not None


def plain_name(name: str) -> str:
    """Return the name of a column in lower case, with `_` in place of blanks and dashes."""
    return re.sub(r"[ _-]+", "_", name.strip()).casefold()


@lru_cache(1024)
def file_column(columns: tuple[str, ...]) -> str | None:
    """Return the file name column of a table, by its usual names in any case; None without one."""
    return _first(columns, FILE_COLUMNS)


@lru_cache(1024)
def caption_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of captions, by the usual names: one, or numbered ones such as `caption_1`, `caption_2`."""
    column = _first(columns, CAPTION_COLUMNS)
    if column is not None:
        return (column,)
    numbered = [(name, NUMBERED.fullmatch(plain_name(name))) for name in columns]
    for usual in CAPTION_COLUMNS:
        names = [name for name, match in numbered if match and match["name"] == usual]
        if names:
            return tuple(names)
    return ()


@lru_cache(1024)
def named_column(columns: tuple[str, ...], wanted: str) -> str | None:
    """Return the column with a given name, ignoring case; None without one."""
    return _first(columns, (wanted,))


def _first(columns: Sequence[str], usual: Iterable[str]) -> str | None:
    names = list(usual)
    exact = next((name for name in names if name in columns), None)
    if exact is not None:
        return exact
    plain: dict[str, str] = {}
    for name in columns:
        plain.setdefault(plain_name(name), name)
    return next((plain[name] for name in names if name in plain), None)


def is_usual_header(fields: Sequence[str]) -> bool:
    """Return True if a row's fields are column names, with usual ones for images and captions."""
    columns = tuple(field.strip() for field in fields)
    return file_column(columns) is not None and bool(caption_columns(columns))


def header_of_rows(rows: Sequence[Sequence[str]]) -> list[str] | None:
    """Return names for the columns of a table without a header.

    Args:
        rows: its first rows; a field of the first one is the name of an image.

    Returns:
        `file_name` for the one column of image names, `split`, `caption` or `caption_1`, `caption_2`, ..., and
        `column_4` for numbers and empty columns. None: the columns are not plain, because the rows have different
        numbers of fields, or not exactly one column has names of images, or none has texts.
    """
    width = len(rows[0])
    same = [row for row in rows if len(row) == width]
    if len(same) < max(1, 0.9 * len(rows)):
        return None
    columns = [[row[place].strip() for row in same] for place in range(width)]
    names = [f"column_{place}" for place in range(1, width + 1)]
    files = [place for place, column in enumerate(columns) if all(map(is_image_field, column))]
    if len(files) != 1:
        return None
    names[files[0]] = FILE_COLUMNS[0]
    texts = []
    for place, column in enumerate(columns):
        filled = [text for text in column if text]
        if place in files or not filled or all(map(NUMBER.fullmatch, filled)):
            continue
        if all(text.casefold() in SPLIT_WORDS for text in filled) and "split" not in names:
            names[place] = "split"
        else:
            texts.append(place)
    if not texts:
        return None
    for number, place in enumerate(texts, 1):
        names[place] = "caption" if len(texts) == 1 else f"caption_{number}"
    return names
