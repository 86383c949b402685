"""`caption_folder`: your own images, as a folder with images and a table of captions.

    images/metadata.jsonl            {"file_name": "a.jpg", "captions": ["...", "..."]}
    images/a.jpg

or with a folder for each split (`train`, `validation` or `val`, `valid`, `dev`, and `test`), each with its own table,
or with nested folders that have one table each, or with one table in the parent folder.

Tables: `metadata`, `captions` or `annotations` with the ending `.jsonl`, `.csv` (with commas, semicolons, tabs or
bars), `.tsv`, `.xlsx`, `.parquet`, `.json` (COCO's format, or a list of objects) or `.txt` (`name#k TAB caption`,
`name TAB caption`, `name,caption`). A table has a list of captions per row, or one caption per row and several rows
per image, or several caption columns. Rows of a `.jsonl` table with `"rejected": true` are left out. Without any
table, the captions of `a.jpg` are the lines of `a.txt`.

Names of images may be paths of Windows. An absolute path of another place means the image in the folder that has the
longest end of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Any, ClassVar

import pyarrow
from datasets import Features
from datasets.features.features import generate_from_arrow_type

from hf_captioners.image_names import FolderNames, is_absolute, plain_form
from hf_captioners.metrics import table_columns
from hf_captioners.metrics.separated_tables import Numbered
from hf_captioners.metrics.text_encoding import require_encoding
from hf_captioners.names import did_you_mean, listed
from hf_captioners.output_files import MAX_NAME_BYTES

from .folder_tables import (
    IMAGE_FOLDERS,
    REJECTED,
    SPLIT_NAMES,
    SPLIT_ORDER,
    FolderTable,
    find_image,
    find_tables,
)
from .images import list_images
from .reader import Annotations, CaptionReader, SourceCard
from .report import DataReport, ProblemKind, first_lines
from .schema import CAPTIONS, IMAGE, IMAGE_ID, IMAGES, SPLIT, CaptionRow, storable

NOT_EXTRA = frozenset((IMAGE_ID, IMAGE, IMAGES, CAPTIONS, "file_name"))
COLUMN_ADVICE = "Name the columns: `file_column='...'`, `caption_columns=['...']`."
REJECTED_NOTE = "rejected row"
FIRST_ROWS = 1000  # in which named columns are looked for; rows of JSON may have different columns


@dataclass(kw_only=True)
class CaptionFolder(CaptionReader):
    """Reader of a folder of images with captions.

    Attributes:
        metadata_file: name of the table inside each folder; None finds `metadata.*` or `captions.*`.
        encoding: of the table, or of the text files beside images, such as `cp1252`; None finds it.
        file_column: the column with file names, relative to the table's folder; None finds a usual name.
        caption_columns: the columns with captions, each a string or a list of strings; None finds a usual name.
        image_dir: the folder of the images, relative to the table's; None tries the table's own and `images` there.
        check_images: decode every image once to find unreadable ones.
    """

    name: ClassVar[str] = "caption_folder"
    card: ClassVar[SourceCard] = SourceCard("Images and captions of a folder.")

    metadata_file: str | None = None
    encoding: str | None = None
    file_column: str | None = None
    caption_columns: Sequence[str] | None = None
    image_dir: str | None = None
    check_images: bool = True

    def __post_init__(self) -> None:
        """Check the encoding."""
        super().__post_init__()
        if self.encoding is not None:
            self.encoding = require_encoding(self.encoding)

    def tables(self, report: DataReport | None = None) -> list[FolderTable]:
        """Return the caption tables of the folder, see `find_tables`."""
        tables = find_tables(self.folder, self.metadata_file, report)
        return [replace(table, encoding=self.encoding) for table in tables]

    def annotation_files(self) -> list[Path]:
        """Return the files with captions."""
        return [file for table in self.tables() for file in table.files()]

    def image_places(self) -> Iterable[Path]:
        """Return the data set's folder, and `image_dir` if set."""
        yield self.folder
        if self.image_dir is not None:
            yield from {table.folder / self.image_dir: None for table in self.tables()}

    def read(self, report: DataReport) -> Annotations:
        """Read the tables, collect the captions of each image, and sort the images by split."""
        splits: dict[str, list[CaptionRow]] = {}
        for table in self.tables(report):
            images_in_tables: set[Path] = set()
            for row in self._images_of(table, report, images_in_tables):
                splits.setdefault(table.split or _split_of(row), []).append(row)
            self._report_unnamed(table, images_in_tables, report)
        if not splits and not report.goes_on:
            rejected = f" {report.notes[REJECTED_NOTE]:,} are rejected." if report.notes[REJECTED_NOTE] else ""
            raise ValueError(f"No row of {self.folder} can be used.{rejected}\n{first_lines(report.problems, 10)}")
        _report_shared(splits, report)
        ordered = {split: splits[split] for split in sorted(splits, key=_split_rank)}
        return Annotations(ordered, extra_features([row for rows in ordered.values() for row in rows], report))

    def _images_of(self, table: FolderTable, report: DataReport, named: set[Path]) -> list[CaptionRow]:
        """Return one row per image of a table, in order of first occurrence."""
        images: dict[Path, CaptionRow] = {}
        ids: dict[str, CaptionRow] = {}
        places = [FolderNames(self._base(table.folder) / place) for place in self._places()]
        moved = _MovedImages(table.path, places)
        for line, record in self._rows_of(table, report):
            if record.get(REJECTED) is True:
                report.notes[REJECTED_NOTE] += 1
                named.update(_image_of(record, self.file_column, places))
                continue
            try:
                file_column, caption_columns = self._columns(record)
            except ValueError as error:
                report.add(ProblemKind.MALFORMED_ROW, table.path, line, str(error))
                continue
            written = str(record[file_column] or "")
            try:
                found = moved.find(written)
            except ValueError as error:
                report.add(ProblemKind.MALFORMED_ROW, table.path, line, str(error))
                continue
            split = record.get(table_columns.named_column(tuple(record), SPLIT) or SPLIT)
            name_fault = None if found else self._name_fault(written.strip(), file_column, table)
            if fault := name_fault or _split_fault(split):
                report.add(ProblemKind.MALFORMED_ROW, table.path, line, fault)
                continue
            name, path = found or find_image(places, written)
            if not path.is_file() and (near := next(filter(None, (names.near(written) for names in places)), None)):
                message = f"there is no file {path}. Did you mean {near!r}? Upper and lower case differ"
                report.add(ProblemKind.MISSING_IMAGE, table.path, line, message)
                continue
            named.add(path)
            captions = _captions_of(record, caption_columns, table.path, line, report)
            row = self._row(
                name, path, captions, record | {SPLIT: split}, {file_column, *caption_columns}, table, line
            )
            earlier = images.get(path) or ids.get(row.image_id)
            if earlier is None:
                images[path] = ids[row.image_id] = row
            elif earlier is images.get(path) and _one_a_row(record, caption_columns):
                earlier.captions += captions
            else:
                what = f"the image {name!r}" if path in images else f"the image_id {row.image_id!r}"
                report.add(ProblemKind.DUPLICATE, table.path, line, f"{what} is in line {earlier.line} already")
        moved.remark(report)
        return [row for row in images.values() if row.captions]

    def _rows_of(self, table: FolderTable, report: DataReport) -> Iterator[Numbered]:
        wrong: str | None = None
        with report.whole(table.path):
            rows = table.rows(report)
            first = list(islice(rows, FIRST_ROWS))
            wrong = self._missing_column([record for _, record in first])
            if wrong is None:
                yield from chain(first, rows)
        if wrong is not None:
            raise ValueError(f"{table.path} {wrong}")

    def _missing_column(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """Return what is wrong with the column names if columns are missing in all rows; None if none is missing."""
        columns = dict.fromkeys(name for record in records for name in record)
        if columns and all(self._lacks_columns(record) for record in records):
            return f"has no columns of usual names for images and captions; it has {listed(columns)}. {COLUMN_ADVICE}"
        for name in (self.file_column, *_as_list(self.caption_columns)):
            if columns and name is not None and name not in columns:
                return f"has no column {name!r}; it has {listed(columns)}.{did_you_mean(name, columns)}"
        return None

    def _row(
        self,
        name: str,
        path: Path,
        captions: list[str],
        record: dict[str, Any],
        used: set[str],
        table: FolderTable,
        line: int,
    ) -> CaptionRow:
        image_id = record.get(IMAGE_ID)
        extra = {key: value for key, value in record.items() if key not in used and key not in NOT_EXTRA}
        extra = {"file_name": name, SPLIT: record.get(SPLIT), **extra}
        extra = {key: storable(value) for key, value in extra.items()}
        image_id = f"{table.prefix}{name}" if image_id is None else str(image_id)
        return CaptionRow(image_id, str(path), captions, str(table.path), line, extra)

    def _name_fault(self, name: str, column: str, table: FolderTable) -> str | None:
        """Return why an image name is invalid: no name, or a path out of the folder; None for a valid name."""
        if not name:
            return f"the column {column!r} is empty"
        parts = PurePath(name).parts
        if "\0" in name or not parts or max(len(os.fsencode(part)) for part in parts) > MAX_NAME_BYTES:
            return f"the column {column!r} is {name[:80]!r}, which is no name of a file"
        if not self._inside(self._base(table.folder) / name, table.folder):
            return (
                f"the column {column!r} is {name[:80]!r}, a file outside of {self.folder}. Move the images into the "
                "folder, or name their own folder: `image_dir='...'`"
            )
        return None

    def _columns(self, record: dict[str, Any]) -> tuple[str, list[str]]:
        """Choose the image and caption columns of a row; JSON rows may have different columns."""
        file = self.file_column or table_columns.file_column(tuple(record))
        captions = list(_as_list(self.caption_columns) or table_columns.caption_columns(tuple(record)))
        missing = [name for name in (file, *captions) if name is not None and name not in record]
        if missing or file is None or not captions:
            fault = f"no column {', '.join(map(repr, missing))}" if missing else "no column of file names and captions"
            raise ValueError(f"the row has {fault}; it has {', '.join(map(repr, record))}. {COLUMN_ADVICE}")
        return file, captions

    def _lacks_columns(self, record: Mapping[str, Any]) -> bool:
        """Return whether a column that the user has not named is missing under its usual names."""
        columns = tuple(record)
        lacks_file = self.file_column is None and table_columns.file_column(columns) is None
        return lacks_file or (not self.caption_columns and not table_columns.caption_columns(columns))

    def _base(self, folder: Path) -> Path:
        """Return the folder to which the names in a table are relative."""
        return folder if self.image_dir is None else folder / self.image_dir

    def _places(self) -> Sequence[str]:
        return IMAGE_FOLDERS if self.image_dir is None else ("",)

    def _inside(self, path: Path, folder: Path) -> bool:
        """Return whether a path lies in the data set's folder or in `image_dir`; links are not followed."""
        places = [self.folder] if self.image_dir is None else [self.folder, folder / self.image_dir]
        absolute = os.path.abspath(path)
        return any(absolute.startswith(os.path.join(os.path.abspath(place), "")) for place in places)

    def _report_unnamed(self, table: FolderTable, named: set[Path], report: DataReport) -> None:
        for image in list_images(self._base(table.folder)):
            if image not in named:
                missing = "no text file beside it" if table.path.is_dir() else f"{table.path.name} does not name it"
                report.add(ProblemKind.IMAGE_WITHOUT_CAPTION, image, None, missing)


def _image_of(record: Mapping[str, Any], column: str | None, places: Sequence[FolderNames]) -> Iterator[Path]:
    """Yield the path of the image that a row names, if any."""
    name = column or table_columns.file_column(tuple(record))
    if name is not None and isinstance(record.get(name), str):
        yield find_image(places, record[name])[1]


class _MovedImages:
    """Finds images in a folder by absolute paths of another machine or folder.

    Args:
        table: the table.
        places: the folders in which images may be.
    """

    def __init__(self, table: Path, places: Sequence[FolderNames]) -> None:
        self.table, self.places = table, places
        self.written: dict[Path, str] = {}

    def find(self, written: str) -> tuple[str, Path] | None:
        """Return name and path of the image in the folder that matches an absolute path of another place.

        Raises:
            ValueError: another absolute path means the same image.
        """
        if not is_absolute(written) or os.path.exists(written):
            return None
        for names in self.places:
            if names.find(written) is None and (name := names.find_end(written)) is not None:
                path = names.folder / name
                first = self.written.setdefault(path, written)
                if plain_form(first.replace("\\", "/")) != plain_form(written.replace("\\", "/")):
                    raise ValueError(f"{written!r} and {first!r} would both be the file {path}")
                return name, path
        return None

    def remark(self, report: DataReport) -> None:
        """Add to the report how many images were found by absolute paths of another place."""
        if self.written:
            path, first = next(iter(self.written.items()))
            report.remark(
                self.table,
                f"{len(self.written):,} image(s) have absolute paths of another place, such as {first!r}; the images "
                f"with the same ends were read, such as {path}.",
            )


def extra_features(rows: Sequence[CaptionRow], report: DataReport) -> Features:
    """Infer the feature types of the source's additional columns from all rows.

    Raises:
        ValueError: a column has values of several types, and the report does not go on; the message names the first
            row of each type.
    """
    features = Features()
    for name in dict.fromkeys(name for row in rows for name in row.extra if name != SPLIT):
        with report.whole(rows[0].file, ProblemKind.MIXED_TYPES):
            features[name] = _feature_of(name, rows)
    return features


def _feature_of(name: str, rows: Sequence[CaptionRow]) -> Any:
    try:
        kind = pyarrow.array([row.extra.get(name) for row in rows]).type
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        first: dict[type, CaptionRow] = {}
        for row in rows:
            if row.extra.get(name) is not None:
                first.setdefault(type(row.extra[name]), row)
        types = ", ".join(f"{kind.__name__} in {row.file}:{row.line}" for kind, row in first.items())
        raise ValueError(
            f"The column {name!r} mixes types: {types}. Use one type, or leave the column out."
        ) from error
    return generate_from_arrow_type(pyarrow.string() if pyarrow.types.is_null(kind) else kind)


def _captions_of(
    record: dict[str, Any], columns: Sequence[str], table: Path, line: int, report: DataReport
) -> list[str]:
    """Return the captions of a row; report empty captions and values that are not text."""
    parsed: list[Any] = []
    filled = [column for column in columns if record[column] not in (None, "")] or columns[:1]
    for column in filled:
        value = record[column]
        if column == CAPTIONS and isinstance(value, str) and value.startswith("["):
            value = _list_in_text(value)
        parsed += value if isinstance(value, list) else [value]
    captions = [text for text in parsed if isinstance(text, str) and text.strip() and storable(text) == text]
    if len(captions) < len(parsed) or not parsed:
        bad: Any = next((caption for caption in parsed if caption not in captions), [])
        report.add(ProblemKind.MISSING_CAPTION, table, line, f"expected text in {', '.join(columns)}, found {bad!r}")
    return captions


def _as_list(names: Sequence[str] | None) -> Sequence[str]:
    return [names] if isinstance(names, str) else names or ()


def _list_in_text(text: str) -> Any:
    """Parse a CSV field that contains a JSON list; other text is returned as a single caption."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _one_a_row(record: dict[str, Any], columns: Sequence[str]) -> bool:
    return len(columns) == 1 and isinstance(record[columns[0]], str)


def _split_of(row: CaptionRow) -> str:
    """Return the split named by a row or by its first folder; unknown names in a `split` column are kept."""
    split = row.extra.get(SPLIT)
    if split is not None:
        return SPLIT_NAMES.get(str(split).lower(), str(split))
    return SPLIT_NAMES.get(Path(row.extra["file_name"]).parts[0].lower(), "train")


def _split_fault(split: Any) -> str | None:
    if split is None or re.fullmatch(r"\w+(\.\w+)*", str(split)):
        return None
    return f"the split is {str(split)[:60]!r}; expected letters, digits and `_`"


def _split_rank(split: str) -> tuple[int, str]:
    return (SPLIT_ORDER.index(split) if split in SPLIT_ORDER else len(SPLIT_ORDER), split)


def _report_shared(splits: dict[str, list[CaptionRow]], report: DataReport) -> None:
    """Report images with the same id in two splits, because they make evaluation too optimistic."""
    first: dict[str, tuple[str, CaptionRow]] = {}
    for split, rows in splits.items():
        for row in rows:
            first_split, first_row = first.setdefault(row.image_id, (split, row))
            if first_split != split:
                message = f"{row.image_id!r} is in {split} and in {first_split} ({first_row.file}:{first_row.line})"
                report.add(ProblemKind.IN_TWO_SPLITS, row.file, row.line, message, dropped=False)
