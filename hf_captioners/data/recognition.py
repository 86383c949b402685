"""Recognition of the format of a folder or table of captioned images, and of its reader.

Every command and `load_captions("caption_folder", ...)` read through `recognised`, so they accept the same forms:

| path | reader |
|---|---|
| a table, such as `photos/captions.csv` | `caption_folder` of its folder |
| a folder with a table of a usual name, or with text files beside images | `caption_folder` |
| `annotations/captions_train2017.json` and `train2017/`, or `dataset_coco.json` | `coco` |
| a tar shard, Parquet or Arrow file; a folder of these; what `save_to_disk` wrote | `containers` |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hf_captioners.metrics.caption_tables import TABLE_KINDS

from .containers import CONTAINER_KINDS, containers_in, is_saved
from .folder_tables import USUAL_TABLES
from .images import is_image_name, visible_files

FOLDER, COCO, CONTAINERS = "caption_folder", "coco", "containers"
# Options that only `caption_folder` has: with one of them, a folder is read so.
OF_TABLES = frozenset(("metadata_file", "encoding", "file_column", "image_dir"))
OFFICIAL = re.compile(r"captions_(train|val)(?P<year>2014|2017)\.json(\.gz)?")
KARPATHY = ("dataset_coco.json", "dataset_coco.json.gz")


class DataSource(NamedTuple):
    """A data set by its source: the reader and the options.

    Attributes:
        name: name of the data set, see `load_captions`.
        data_dir: its folder.
        options: its options.
    """

    name: str
    data_dir: Path | None
    options: dict[str, Any]


def recognised(name: str, data_dir: str | Path | None, options: Mapping[str, Any]) -> DataSource:
    """Return the reader for a data set; for `caption_folder`, detect the format of the folder or table.

    Args:
        name: name of the data set. A name other than `caption_folder` stays as it is.
        data_dir: its folder; of `caption_folder` also a table, a tar shard, a Parquet or an Arrow file.
        options: options that were given.

    Raises:
        ValueError: the file is of no form that is read, or the folder has official files of COCO of several years.
    """
    if name != FOLDER or data_dir is None:
        return DataSource(name, None if data_dir is None else Path(data_dir), dict(options))
    path = Path(data_dir).expanduser()
    if path.is_file():
        return _of_file(path, options)
    if not path.is_dir() or OF_TABLES & set(options) or _has_usual_table(path):
        return DataSource(FOLDER, path, dict(options))
    if is_saved(path):
        return DataSource(CONTAINERS, path, dict(options))
    if (of_coco := _options_of_coco(path, options)) is not None:
        return DataSource(COCO, path, of_coco | dict(options))
    is_of_containers = not _has_images_or_tables(path) and bool(containers_in(path))
    return DataSource(CONTAINERS if is_of_containers else FOLDER, path, dict(options))


def _of_file(path: Path, options: Mapping[str, Any]) -> DataSource:
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind in CONTAINER_KINDS and not OF_TABLES & set(options):
        return DataSource(CONTAINERS, path.parent, {"files": [path.name], **options})
    if kind in TABLE_KINDS:
        return DataSource(FOLDER, path.parent, {"metadata_file": path.name, **options})
    advice = " Save it as .xlsx or as CSV UTF-8." if kind in (".xls", ".ods", ".numbers") else ""
    raise ValueError(
        f"{path} is a file, expected a folder of images with captions, a table that ends in {', '.join(TABLE_KINDS)}, "
        f"or {', '.join(CONTAINER_KINDS)}.{advice}"
    )


def _has_usual_table(folder: Path) -> bool:
    return any((folder / name).exists() for name in USUAL_TABLES)


def _options_of_coco(folder: Path, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return reader options for a folder with COCO's files; None for other folders."""
    places = [place for place in (folder, folder / "annotations") if place.is_dir()]
    names = [path.name for place in places for path in place.iterdir() if path.is_file()]
    if set(names) & set(KARPATHY) or "split_lists" in options:
        return {} if set(names) & set(KARPATHY) or any(map(OFFICIAL.fullmatch, names)) else None
    years = sorted({int(match["year"]) for match in map(OFFICIAL.fullmatch, names) if match})
    if len(years) > 1 and "year" not in options:
        raise ValueError(f"{folder} has captions of COCO of {years[0]} and {years[1]}: choose with `year={years[1]}`.")
    return {"official": True, "year": years[0]} if years else None


def _has_images_or_tables(folder: Path) -> bool:
    usual = set(USUAL_TABLES)
    return any(is_image_name(path.name) or path.name in usual for path in visible_files(folder))
