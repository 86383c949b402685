"""Caption tables in a folder of images, and the split of each table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_captioners.image_names import FolderNames
from hf_captioners.metrics.annotation_files import ADVICE
from hf_captioners.metrics.caption_tables import TABLE_KINDS, table_rows
from hf_captioners.metrics.separated_tables import Numbered
from hf_captioners.metrics.text_encoding import decoded, sample_beyond_ascii
from hf_captioners.names import did_you_mean
from hf_captioners.output_files import MAX_TEXT_BYTES, read_bytes_inside, unquoted_name

from .converted_tables import unconverted
from .images import list_images
from .report import DataReport, ProblemKind

REJECTED = "rejected"  # a column: true in rows of images that are not used, see `hf-captioners review`
IMAGE_FOLDERS = ("", "images", "Images")  # of the images, relative to the folder of the table
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
}
SPLIT_ORDER = ("train", "validation", "test")
TABLE_STEMS = ("metadata", "captions", "annotations")
TABLE_OF_REVIEW = "metadata.jsonl"  # the first of the usual tables
SHEETS = (".csv", ".tsv", ".xlsx", ".jsonl")  # endings of other tables that are named where there is no usual one
USUAL_TABLES = [f"{stem}{kind}" for stem in TABLE_STEMS for kind in TABLE_KINDS]


@dataclass(frozen=True)
class FolderTable:
    """A table of captions, or a folder in which each image has a text file.

    Attributes:
        path: the table; a folder where every `a.jpg` has its captions in `a.txt`, one per line.
        split: the split named by the folder; None if rows name it.
        prefix: path of the table's folder inside its split, which makes names unique.
        encoding: of the texts; None: found, see `text_lines`.
    """

    path: Path
    split: str | None
    prefix: str = ""
    encoding: str | None = None

    @property
    def folder(self) -> Path:
        """The folder to which the file names are relative."""
        return self.path if self.path.is_dir() else self.path.parent

    def files(self) -> list[Path]:
        """Return the files with captions."""
        # Two images, such as a.jpg and a.png, may share a text file.
        return list({text: None for _, text in _sidecars(self.path)}) if self.path.is_dir() else [self.path]

    def rows(self, report: DataReport) -> Iterator[Numbered]:
        """Read the rows, with their line numbers."""
        return self._sidecar_rows(report) if self.path.is_dir() else table_rows(self.path, report, self.encoding)

    def _sidecar_rows(self, report: DataReport) -> Iterator[Numbered]:
        guessed: dict[str, Path] = {}
        for number, (image, text) in enumerate(_sidecars(self.path), 1):
            try:
                content = read_bytes_inside(text, limit=MAX_TEXT_BYTES, follow_links=True)  # the reader checked links
                whole, guess = decoded(content) if self.encoding is None else (content.decode(self.encoding), None)
                captions = [line for line in re.split("\r\n|\r|\n", whole) if line.strip()]
            except (OSError, UnicodeDecodeError) as error:
                name = self.encoding or "UTF-8"
                report.add(ProblemKind.MALFORMED_ROW, text, None, f"it cannot be read as {name} ({error})")
                continue
            if guess is not None and guess not in guessed:
                guessed[guess] = text
                sample = sample_beyond_ascii(whole)
                report.remark(text, f"it is not UTF-8 and was read as {guess}, for example {sample!r}. {ADVICE}")
            yield number, {"file_name": image.relative_to(self.path).as_posix(), "captions": captions}


def find_tables(root: Path, metadata_file: str | None, report: DataReport | None = None) -> list[FolderTable]:
    """Find the caption tables of a folder: one in the folder itself, or one per split or nested folder.

    Args:
        root: the folder.
        metadata_file: the name of the tables; None: `metadata`, `captions` or `annotations` with any known ending.
        report: receives faults of single folders, if it goes on after them.

    Raises:
        FileNotFoundError: the folder is empty, or there are images but no table.
        ValueError: a folder has several tables, or two folders belong to one split.
    """
    report = DataReport() if report is None else report
    with report.whole(root):
        if table := _table_in(root, metadata_file):
            return [FolderTable(table, None)]
    below = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    folders = {path: SPLIT_NAMES.get(path.name.lower()) for path in below}
    splits = [split for split in folders.values() if split]
    with report.whole(root):
        if len(set(splits)) < len(splits):
            raise ValueError(f"{root} has two folders for one split: {', '.join(path.name for path in folders)}.")
    tables = [
        FolderTable(table, split, _inside(table.parent, folder if split else root))
        for folder, split in folders.items()
        for table in _nested_tables(folder, metadata_file, report)
    ]
    if not tables and metadata_file is not None:
        files = {path.name for place in (root, *below) for path in place.iterdir() if path.is_file()}
        raise FileNotFoundError(
            f"There is no table {metadata_file!r} in {root}.{did_you_mean(metadata_file, sorted(files))}"
        )
    if not tables:
        tables = [FolderTable(folder, split) for folder, split in folders.items() if split and _sidecars(folder)]
        tables = tables or ([FolderTable(root, None)] if _sidecars(root) else [])
    bare = [path for path, split in folders.items() if split and split not in {table.split for table in tables}]
    for place in bare or ([] if tables or (report.goes_on and report.problems) else [root]):
        with report.whole(place):
            sheets = [path.name for path in sorted(place.iterdir()) if path.suffix.lower() in SHEETS]
            advice = "".join(f" If {name} is the table: `metadata_file={name!r}`." for name in sheets[:1])
            raise FileNotFoundError(
                f"{place} has {len(list_images(place)):,} images and no "
                f"{metadata_file or 'metadata.jsonl, metadata.csv or captions.txt'}.{advice} Add images, and one line "
                'per image to metadata.jsonl: {"file_name": "a.jpg", "captions": ["A dog runs."]}.'
            )
    return sorted(tables, key=lambda table: SPLIT_ORDER.index(table.split or "train"))


def _nested_tables(folder: Path, metadata_file: str | None, report: DataReport) -> Iterator[Path]:
    """Yield the tables in and below a folder; folders below a table are not searched."""
    for parent, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        with report.whole(parent):
            if table := _table_in(Path(parent), metadata_file):
                folders.clear()
                yield table


def _table_in(folder: Path, metadata_file: str | None) -> Path | None:
    names = [metadata_file] if metadata_file else USUAL_TABLES
    tables = [folder / name for name in names if _is_there(folder / name)]
    if len(tables) > 1 and tables[0].name == TABLE_OF_REVIEW:
        tables = [tables[0], *unconverted(tables[1:], folder)]
    if len(tables) > 1:
        raise ValueError(
            f"{folder} has several tables: {', '.join(path.name for path in tables)}. "
            f"Choose one: `metadata_file={tables[0].name!r}`."
        )
    return tables[0] if tables else None


def _sidecars(folder: Path) -> list[tuple[Path, Path]]:
    """Return the images that have a text file of the same stem beside them, with the file."""
    pairs = [(image, image.with_suffix(".txt")) for image in list_images(folder)]
    return [(image, text) for image, text in pairs if _is_there(text)]


def _is_there(path: Path) -> bool:
    """Return whether a file of this name exists, of any kind, named pipes and devices included."""
    return path.exists() and not path.is_dir()


def _inside(folder: Path, root: Path) -> str:
    relative = folder.relative_to(root).as_posix()
    return "" if relative == "." else f"{relative}/"


def find_image(places: Sequence[FolderNames], written: str) -> tuple[str, Path]:
    """Return the name and the path, possibly missing, of the image that a table names.

    Args:
        places: the folders in which it may be, in their order.
        written: the name in the table.
    """
    for names in places:
        if (name_of_file := names.find(written)) is not None:
            return name_of_file, names.folder / name_of_file
    name = unquoted_name(written.strip())
    return name, places[0].folder / name
