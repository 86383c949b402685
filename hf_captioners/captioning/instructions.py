"""Instruction templates, filled for each image with its file name, its folder and columns of its row."""

import string
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from hf_captioners.data.containers import local_path
from hf_captioners.data.folder_tables import find_tables
from hf_captioners.data.report import DataReport
from hf_captioners.names import did_you_mean

FILE_FIELDS = ("file_name", "folder")


class InstructionTemplate:
    """Instruction with fields `{name}` that are filled with values of each image; `{{` and `}}` are braces.

    Values are put in once: braces in a value are text.

    Args:
        text: the instruction, for example `"Describe {file_name}, which is tagged {tags}."`; `"{question}"` is the
            instruction of a column.

    Raises:
        ValueError: a brace is not closed, or a field is no plain name.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"`instruction` is {text!r}: {error}. Write {{{{ and }}}} for braces.") from error
        self.parts = [(literal, field) for literal, field, _, _ in parts]
        for _, field, form, conversion in parts:
            if field is not None and (form or conversion or not field.isidentifier()):
                raise ValueError(
                    f"`instruction` is {text!r}: {{{field}}} is no field, expected {{file_name}}, {{folder}} or the "
                    "name of a column. Write {{ and }} for braces."
                )

    @property
    def fields(self) -> list[str]:
        """Names of the fields, in order of occurrence."""
        return [field for _, field in self.parts if field is not None]

    @property
    def columns(self) -> list[str]:
        """Names of the fields whose values come from columns, not from the file path."""
        return [field for field in self.fields if field not in FILE_FIELDS]

    def require_columns(self, columns: Sequence[str]) -> None:
        """Check that the data has a column for each field.

        Raises:
            ValueError: one is missing. The message has the nearest name.
        """
        for field in self.columns:
            if field not in columns:
                raise ValueError(
                    f"`instruction` has the field {{{field}}}, and there are {', '.join([*FILE_FIELDS, *columns])}."
                    f"{did_you_mean(field, [*FILE_FIELDS, *columns])}"
                )

    def expand(self, source: Any, row: Mapping[str, Any], marks: Collection[str] = ()) -> str:
        """Fill the fields with the values of an image and return its instruction.

        Args:
            source: the image, of which a path gives `file_name` and `folder`.
            row: values of columns, which go before those of the path.
            marks: texts that a value must not have, such as special tokens.

        Raises:
            ValueError: the image has no value for a field, or the value has one of the marks.
        """
        values = {**file_fields(source), **{name: value for name, value in row.items() if value is not None}}
        if missing := [field for field in self.fields if field not in values]:
            raise ValueError(f"there is no value for the field {{{missing[0]}}} of the instruction")
        texts = {field: text_of(values[field]) for field in self.fields}
        for field, text in texts.items():
            if mark := next((mark for mark in marks if mark in text), None):
                raise ValueError(f"the value of the field {{{field}}} has {mark!r}, a special token of the captioner")
        return "".join(literal + texts.get(field or "", "") for literal, field in self.parts)


def text_of(value: Any) -> str:
    """Return a value of a field as text; the items of a list are joined by commas."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def file_fields(source: Any) -> dict[str, str]:
    """Return the fields `file_name` and `folder` of an image's path; no fields for an image without a path."""
    path = source.get("path") if isinstance(source, Mapping) else source
    path = path[0] if isinstance(path, (list, tuple)) and path else path  # of several views, the first one
    if not isinstance(path, (str, PurePath)):
        return {}
    place = PurePath(str(path).split("\t")[0])
    return {"file_name": place.name, "folder": place.parent.name}


def rows_of_tables(template: InstructionTemplate, images: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read the columns that an instruction uses from the tables in the images' folders.

    Args:
        template: the instruction.
        images: names of images, see `find_images`.

    Returns:
        For each image that a table has, the values of the columns.

    Raises:
        ValueError: no table has such a column, or a table cannot be read.
    """
    if not template.columns:
        return {}
    paths = {local_path(image): image for image in images}
    found: dict[str, dict[str, Any]] = {}
    columns: dict[str, None] = {}
    for folder in sorted({PurePath(path).parent for path in paths}):
        for table in tables_of(folder):
            for row in table:
                columns |= dict.fromkeys(row)
                image = paths.get(str(folder / str(row.get("file_name"))))
                if image is not None:
                    found[image] = {name: row[name] for name in template.columns if name in row}
    template.require_columns(list(columns))
    return found


def tables_of(folder: PurePath) -> list[list[dict[str, Any]]]:
    """Return the rows of the table of a folder; no rows if there is no table."""
    try:
        tables = [table for table in find_tables(Path(folder), None) if table.path.is_file()]
    except FileNotFoundError:
        return []
    return [[row for _, row in table.rows(DataReport())] for table in tables if table.folder == Path(folder)]
