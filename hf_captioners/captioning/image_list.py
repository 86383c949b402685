"""The list of images of a captioning job, and its division into shards for several machines."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hf_captioners.data.containers import (
    CONTAINER_KINDS,
    HUB_PREFIX,
    containers_in,
    hub_address,
    is_container,
    is_image_inside,
    local_path,
    names_in,
)
from hf_captioners.data.folder_tables import TABLE_STEMS
from hf_captioners.data.images import is_image_name, list_images, readable_suffixes, visible_files
from hf_captioners.image_names import FolderNames
from hf_captioners.output_files import MAX_TABLE_BYTES, read_text_inside, unquoted_name

from .caption_files import is_working_file

LIST_KINDS = (".txt", ".lst")
# Between the views of one study in a line of a list, and in the name of that study. Names of files may have it too.
VIEW_SEPARATOR = "\t"


def read_endings() -> str:
    """Return the file endings of the image formats that the installed packages can read."""
    return " ".join(readable_suffixes())


def views_of(name: str) -> list[str]:
    """Return the paths of a study's views, or the single path of an image.

    A tab separates views, unless a file or an image inside a container has the whole name.
    """
    if VIEW_SEPARATOR not in name or os.path.isfile(name) or is_image_inside(name):
        return [name]
    return name.split(VIEW_SEPARATOR)


def find_images(inputs: Sequence[str]) -> list[str]:
    """Find all images in files, folders, lists and containers, in order and without repetition.

    Args:
        inputs: image files, folders (with those in them), and lists (`.txt`, `.lst`) of paths, one per line,
            relative to the list. Several paths in a line, separated by tabs, are the views of one study. A list may
            have names of any bytes; one with a line break is written as `quoted_name` does. Also tar shards, Parquet
            files, data sets on disk and of the Hub, see `containers`, and folders of these that have no image files.

    Raises:
        FileNotFoundError: an input is missing.
        ValueError: a folder or list has no images, a container is damaged, or an input is none of these.
        OSError: a data set of the Hub cannot be downloaded.
    """
    paths: dict[str, None] = {}
    for text in inputs:
        images = _images_on_hub(text) if text.startswith("hf:") else _images_of(Path(text))
        paths.update(dict.fromkeys(images))
    return list(paths)


def _images_on_hub(name: str) -> list[str]:
    """Return the names `hf://...` of images on the Hub, which are the same on every machine."""
    address, path = hub_address(name)
    folder = Path(local_path(name))
    prefix = f"{address}/{path}" if path else address
    if not folder.exists():
        raise FileNotFoundError(f"{address} has no images, tar shards or Parquet files {path}.")
    return [prefix + image[len(str(folder)) :].replace(os.sep, "/") for image in _images_of(folder)]


def _images_of(path: Path) -> list[str]:
    if is_container(path):
        return names_in(path)
    if path.is_dir():
        images = [str(image) for image in list_images(path)]
        images = images or [name for container in containers_in(path) for name in names_in(container)]
    elif not path.exists():
        raise FileNotFoundError(f"There is no image, folder or list {path}.")
    elif path.suffix.lower() in LIST_KINDS:
        text = read_text_inside(path, limit=MAX_TABLE_BYTES, follow_links=True, errors="surrogateescape")
        lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        names = FolderNames(path.parent)
        images = [_listed(names, line) for line in lines]
    elif is_image_name(path.name):
        return [str(path)]
    else:
        raise ValueError(
            f"{path} is no image by its name, expected an image ({read_endings()}), a folder, a .txt list of paths, "
            "a .tar shard or a .parquet file."
        )
    if not images:
        raise ValueError(
            f"{path} has no images. The endings {read_endings()} are read, and {' '.join(CONTAINER_KINDS)}."
        )
    return images


def ignored_files(inputs: Sequence[str]) -> dict[str, list[str]]:
    """Find the files in folders that are neither images nor texts of images.

    Args:
        inputs: see `find_images`.

    Returns:
        Paths by ending, such as `.mp4`. Hidden files, tables of captions, partial files of captioning jobs, and files
        that have the name of an image but for the ending are no part of it.
    """
    paths: dict[str, list[str]] = {}
    for folder in (Path(text) for text in inputs if Path(text).is_dir()):
        stems = {image.with_suffix("") for image in list_images(folder)}
        if not stems:  # its containers are read
            continue
        for path in visible_files(folder):
            is_text = path.with_suffix("") in stems or path.stem in TABLE_STEMS or path.suffix.lower() in LIST_KINDS
            if not (is_image_name(path.name) or is_text or is_working_file(path)):
                paths.setdefault(path.suffix.lower(), []).append(str(path))
    return paths


def _listed(names: FolderNames, line: str) -> str:
    """Return the path of the image, or the name of the study, in one line of a list file.

    Args:
        names: of the folder of the list.
        line: the line.
    """
    if line.startswith(HUB_PREFIX):
        return line.strip()
    if os.path.isfile(names.folder / line):
        return str(names.folder / line)
    if (name := names.find(line)) is not None:
        return str(names.folder / name)
    line = line.strip()
    if unquoted_name(line) != line:
        return str(names.folder / unquoted_name(line))
    views = line.split(VIEW_SEPARATOR)
    return VIEW_SEPARATOR.join(str(names.folder / (names.find(view) or view)) for view in views)


def shard_of(images: Sequence[str], shard: str | None) -> list[str]:
    """Return the images of shard `i/n`, i from 1 to n: every n-th image.

    Raises:
        ValueError: the shard is not of this form.
    """
    if shard is None:
        return list(images)
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"`shard` is {shard!r}, expected i/n with i from 1 to n, for instance 1/4.")
    return list(images[int(match[1]) - 1 :: int(match[2])])
