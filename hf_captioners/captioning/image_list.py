"""The images of a captioning job, and the part of them that one machine captions."""

import re
from collections.abc import Sequence
from pathlib import Path

from hf_captioners.data.images import is_image_name, list_images

LIST_KINDS = (".txt", ".lst")
# Between the views of one study in a line of a list, and in the name of that study.
VIEW_SEPARATOR = "\t"


def find_images(inputs: Sequence[str]) -> list[str]:
    """Find the paths of all images of some inputs, in order and each once.

    Args:
        inputs: image files, folders (with those in them), and lists (`.txt`, `.lst`) of paths, one per line,
            relative to the list. Several paths in a line, separated by tabs, are the views of one study.

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
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        studies = [line.split(VIEW_SEPARATOR) for line in lines if line]
        images = [VIEW_SEPARATOR.join(str(path.parent / view) for view in study) for study in studies]
    elif is_image_name(path.name):
        return [str(path)]
    else:
        raise ValueError(f"{path} is no image by its name, expected an image, a folder, or a .txt list of paths.")
    if not images:
        raise ValueError(f"{path} has no images.")
    return images


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
