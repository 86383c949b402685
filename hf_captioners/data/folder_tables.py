"""Tables of a folder of images, and the split of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_captioners.image_names import FolderNames
from hf_captioners.metrics.caption_tables import TABLE_KINDS, Numbered, table_rows
from hf_captioners.names import did_you_mean
from hf_captioners.output_files import read_text_inside, unquoted_name

from .images import list_images
from .report import DataReport, ProblemKind

# Usual names of columns, in the order in which they are looked for.
FILE_COLUMNS = ("file_name", "filename", "file", "image", "image_name", "img", "path", "image_path")
CAPTION_COLUMNS = ("captions", "caption", "text", "comment", "description", "sentence")
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


@dataclass(frozen=True)
class FolderTable:
    """A table of captions, or a folder whose images have a text file each.

    Attributes:
        path: the table; a folder where every `a.jpg` has its captions in `a.txt`, one per line.
        split: the split named by the folder; None if rows name it.
        prefix: path of the table's folder inside its split, which makes names unique.
    """

    path: Path
    split: str | None
    prefix: str = ""

    @property
    def folder(self) -> Path:
        """The folder that file names are relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    def files(self) -> list[Path]:
        """Return the files with captions."""
        # Two images, such as a.jpg and a.png, may share a text file.
        return list({text: None for _, text in _sidecars(self.path)}) if self.path.is_dir() else [self.path]

    def rows(self, report: DataReport) -> Iterator[Numbered]:
        """Read the rows with their line numbers."""
        return self._sidecar_rows(report) if self.path.is_dir() else table_rows(self.path, report)

    def _sidecar_rows(self, report: DataReport) -> Iterator[Numbered]:
        for number, (image, text) in enumerate(_sidecars(self.path), 1):
            try:
                lines = read_text_inside(text, follow_links=True).split("\n")  # the reader has checked links
                captions = [line for line in lines if line.strip()]
            except (OSError, UnicodeDecodeError) as error:
                report.add(ProblemKind.MALFORMED_ROW, text, None, f"it cannot be read as UTF-8 ({error})")
                continue
            yield number, {"file_name": image.relative_to(self.path).as_posix(), "captions": captions}


def find_tables(root: Path, metadata_file: str | None, report: DataReport | None = None) -> list[FolderTable]:
    """Find the tables of a folder: one in the folder itself, or one per split folder or nested folder.

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
            raise FileNotFoundError(
                f"{place} has {len(list_images(place)):,} images and no "
                f"{metadata_file or 'metadata.jsonl, metadata.csv or captions.txt'}. Add images, and one line per "
                'image to metadata.jsonl: {"file_name": "a.jpg", "captions": ["A dog runs."]}.'
            )
    return sorted(tables, key=lambda table: SPLIT_ORDER.index(table.split or "train"))


def _nested_tables(folder: Path, metadata_file: str | None, report: DataReport) -> Iterator[Path]:
    """Yield the tables in and under a folder; folders below a table are not searched."""
    for parent, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        with report.whole(parent):
            if table := _table_in(Path(parent), metadata_file):
                folders.clear()
                yield table


def _table_in(folder: Path, metadata_file: str | None) -> Path | None:
    names = [metadata_file] if metadata_file else [f"{stem}{kind}" for stem in TABLE_STEMS for kind in TABLE_KINDS]
    found = [folder / name for name in names if _is_there(folder / name)]
    if len(found) > 1:
        raise ValueError(
            f"{folder} has several tables: {', '.join(path.name for path in found)}. "
            f"Choose one: metadata_file={found[0].name!r}."
        )
    return found[0] if found else None


def _sidecars(folder: Path) -> list[tuple[Path, Path]]:
    """Return the images that have a text file of the same name next to them, with that file."""
    pairs = [(image, image.with_suffix(".txt")) for image in list_images(folder)]
    return [(image, text) for image, text in pairs if _is_there(text)]


def _is_there(path: Path) -> bool:
    """Return whether a file has this name; of any kind, so that a named pipe or a device is not passed over."""
    return path.exists() and not path.is_dir()


def _inside(folder: Path, root: Path) -> str:
    relative = folder.relative_to(root).as_posix()
    return "" if relative == "." else f"{relative}/"


def find_image(places: Sequence[FolderNames], written: str) -> tuple[str, Path]:
    """Return the name of the image that a table means, and its path, which may not exist.

    Args:
        places: the folders in which it may be, in their order.
        written: the name in the table.
    """
    for names in places:
        if (found := names.find(written)) is not None:
            return found, names.folder / found
    name = unquoted_name(written.strip())
    return name, places[0].folder / name
