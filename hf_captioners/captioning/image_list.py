"""The images of a captioning job, and the part of them that one machine captions."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hf_captioners.data.images import is_image_name, list_images
from hf_captioners.output_files import unquoted_name

LIST_KINDS = (".txt", ".lst")
# Between the views of one study in a line of a list, and in the name of that study. Names of files may have it too.
VIEW_SEPARATOR = "\t"


def views_of(name: str) -> list[str]:
    """Return the paths of the views of a study, or the one path of an image.

    A tab separates views, unless a file has the whole name.
    """
    return [name] if VIEW_SEPARATOR not in name or os.path.isfile(name) else name.split(VIEW_SEPARATOR)


def find_images(inputs: Sequence[str]) -> list[str]:
    """Find the paths of all images of some inputs, in order and each once.

    Args:
        inputs: image files, folders (with those in them), and lists (`.txt`, `.lst`) of paths, one per line,
            relative to the list. Several paths in a line, separated by tabs, are the views of one study. A list may
            have names of any bytes; one with a line break is written as `quoted_name` does.

    Raises:
        FileNotFoundError: an input is missing.
        ValueError: a folder or list has no images, or an input is none of these.
    """
    found: dict[str, None] = {}
    for text in inputs:
        found.update(dict.fromkeys(_images_of(Path(text))))
    return list(found)


def _images_of(path: Path) -> list[str]:
    if path.is_dir():
        images = [str(image) for image in list_images(path)]
    elif not path.exists():
        raise FileNotFoundError(f"There is no image, folder or list {path}.")
    elif path.suffix.lower() in LIST_KINDS:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
        lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        images = [_listed(path.parent, line) for line in lines]
    elif is_image_name(path.name):
        return [str(path)]
    else:
        raise ValueError(f"{path} is no image by its name, expected an image, a folder, or a .txt list of paths.")
    if not images:
        raise ValueError(f"{path} has no images.")
    return images


def _listed(folder: Path, line: str) -> str:
    """Return the name of the image or study of one line."""
    if unquoted_name(line.strip()) != line.strip():
        return str(folder / unquoted_name(line.strip()))
    if os.path.isfile(folder / line):
        return str(folder / line)
    line = line.strip()
    return VIEW_SEPARATOR.join(str(folder / view) for view in line.split(VIEW_SEPARATOR))


def shard_of(images: Sequence[str], shard: str | None) -> list[str]:
    """Return part `i/n` of a job, i from 1 to n: every n-th image. All parts together are the whole job.

    Raises:
        ValueError: the shard is not of this form.
    """
    if shard is None:
        return list(images)
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"`--shard` is {shard!r}, expected i/n with i from 1 to n, for instance 1/4.")
    return list(images[int(match[1]) - 1 :: int(match[2])])
