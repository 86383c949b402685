"""Conversion of captions in other formats to a `metadata.jsonl` for the review page.

`datasets` and its readers are imported only where something is converted.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hf_captioners.data.converted_tables import record_converted
from hf_captioners.data.folder_tables import find_tables
from hf_captioners.data.recognition import CONTAINERS, FOLDER, DataSource, recognised
from hf_captioners.data.report import DataReport, ProblemKind
from hf_captioners.data.schema import CAPTIONS, SPLIT, CaptionRow
from hf_captioners.output_files import atomic_file, new_folder, write_text

from .table import TABLE

if TYPE_CHECKING:
    from hf_captioners.data.reader import Annotations
    from hf_captioners.data.stored_images import Containers, StoredImage

ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2"}  # others: the name of the format


def convert(path: str | Path, options: dict[str, Any]) -> tuple[Path, str | None]:
    """Write a folder's captions from another table, or from COCO files, into its `metadata.jsonl`.

    The other table stays as it is, and is not read any more until it changes.

    Args:
        path: the folder, or a table in it.
        options: options of the data set, such as `encoding`.

    Returns:
        The folder, and a line that says what was written. None: nothing was, as there is nothing to convert.

    Raises:
        ValueError: images are inside other files; nothing can be read; or an image is not in the folder.
        FileExistsError: there is a table `metadata.jsonl` beside the one that was named.
    """
    source = recognised(FOLDER, path, options)
    folder = Path(path) if source.data_dir is None else source.data_dir
    if source.name == CONTAINERS:
        raise ValueError(
            f"{path} has its images inside other files, and captions are kept in {TABLE} beside image files: name a "
            "new folder for them, `unpack=FOLDER`."
        )
    table = source.options.get("metadata_file")
    if table == TABLE or (table is None and (folder / TABLE).exists()):
        return folder, None
    tables = _tables_of(source)
    if not tables or any(file.name == TABLE for file in tables):
        return folder, None
    if (folder / TABLE).exists():
        raise FileExistsError(f"{folder} has {table} and {TABLE}, in which captions are kept: move one of them away.")
    return folder, _copy(source, folder, tables)


def _tables_of(source: DataSource) -> list[Path]:
    """Return the caption tables of a data set; none for text files beside images, which the page reads directly."""
    if source.name != FOLDER:
        return list(_reader_of(source).annotation_files())
    if source.data_dir is None or not source.data_dir.is_dir():
        return []
    try:
        tables = find_tables(source.data_dir, source.options.get("metadata_file"))
    except FileNotFoundError:  # images without captions
        return []
    return [table.path for table in tables if not table.path.is_dir()]


def _reader_of(source: DataSource) -> Any:
    from hf_captioners.data.loading import make_reader

    return make_reader(source.name, source.data_dir, source.options)


def _copy(source: DataSource, folder: Path, tables: list[Path]) -> str:
    """Write the rows of tables into `metadata.jsonl`; return a message about the conversion."""
    reader, report = _reader_of(source), DataReport()
    for file in tables:
        reader.require_link_inside(file)
    annotations = reader.read(report)
    rows = [_table_row(row, split, folder, len(annotations.splits)) for split, row in _rows(annotations)]
    write_text(folder / TABLE, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), folder)
    record_converted([file for file in tables if file.parent == folder], folder)
    lines = [f"{', '.join(map(str, tables))}: the captions of {len(rows):,} images were copied into {folder / TABLE}."]
    uncaptioned = ProblemKind.IMAGE_WITHOUT_CAPTION
    lost = [problem for problem in report.problems if problem.dropped and problem.kind != uncaptioned]
    lines += [f"{len(lost):,} row(s) were left out, such as {lost[0]}"] if lost else []
    return "\n".join([*lines, *report.remarks])


def _rows(annotations: "Annotations") -> Iterator[tuple[str, CaptionRow]]:
    for split, rows in annotations.splits.items():
        for row in rows:
            yield split, row


def _table_row(row: CaptionRow, split: str, folder: Path, splits: int) -> dict[str, Any]:
    path = Path(row.image)
    if not path.is_relative_to(folder):
        raise ValueError(f"The image {path} is not in {folder}: review the folder of the images.")
    stated = {SPLIT: split} if splits > 1 or row.extra.get(SPLIT) is not None else {}
    return {"file_name": path.relative_to(folder).as_posix(), CAPTIONS: row.captions, **stated}


def unpack(path: str | Path, folder: str | Path, options: dict[str, Any]) -> str:
    """Extract images and captions from tar shards, Parquet or Arrow files or a saved data set into a new folder.

    Args:
        path: the container, or a folder of these.
        folder: the folder to write; it appears when it is complete.
        options: options of the data set, such as `caption_columns`.

    Returns:
        A line that says what was written.

    Raises:
        ValueError: the path is none of these, or has no image with captions that can be read.
        FileExistsError: the folder is not empty.
    """
    source = recognised(FOLDER, path, options)
    if source.name != CONTAINERS:
        raise ValueError(f"{path} has no images inside other files: review it without `unpack`.")
    reader: Containers = _reader_of(source)
    report, lines = DataReport(), list[str]()
    annotations = reader.read(report)
    with new_folder(folder) as target:
        for split, rows in annotations.splits.items():
            for image in getattr(rows, "images", ()):
                try:
                    name = _write_image(target, image, reader)
                except (OSError, ValueError) as error:
                    report.add(ProblemKind.UNREADABLE_IMAGE, image.container, image.line, str(error))
                    continue
                row = {"file_name": name, CAPTIONS: image.captions, SPLIT: split}
                lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        if not lines:
            raise ValueError(f"{path} has no image with captions that can be read.")
        write_text(target / TABLE, "".join(lines), target)
    lost = f" {len(report.problems):,} row(s) were left out, such as {report.problems[0]}" if report.problems else ""
    return f"{folder}: {len(lines):,} images of {path} with their captions.{lost}"


def _write_image(target: Path, image: "StoredImage", reader: "Containers") -> str:
    """Write an image into a folder named after its container; return the image's name."""
    from hf_captioners.data.containers import open_container
    from hf_captioners.processing.image_reading import open_image

    content = open_container(image.container, reader.image_column).content(image.place)
    content = Path(content).read_bytes() if isinstance(content, str) else content
    with open_image(io.BytesIO(content)) as opened:
        ending = ENDINGS.get(str(opened.format), f".{str(opened.format).lower()}")
    inside = image.container.relative_to(reader.folder).with_suffix("")
    name = PurePosixPath(*(part for part in (*inside.parts, *PurePosixPath(image.place).parts) if part != ".."))
    name = name if name.suffix else name.with_suffix(ending)
    if (target / name).exists():
        raise ValueError(f"another image has the name {name} already")
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target / name, "wb", target) as file:
        file.write(content)
    return name.as_posix()
