"""Plan of a job that writes text files: images to caption, and text files that may be replaced."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_captioners.data.folder_tables import IMAGE_FOLDERS, REJECTED, find_image
from hf_captioners.data.generated_captions import generated_digests, text_digest
from hf_captioners.image_names import FolderNames
from hf_captioners.metrics.table_columns import CAPTION_COLUMNS, FILE_COLUMNS
from hf_captioners.output_files import MAX_TABLE_BYTES, read_bytes_inside, require_safe_target

from .sidecars import (
    MODES,
    OVERWRITE,
    OVERWRITE_GENERATED,
    REFUSE,
    SKIP,
    existing_sidecars,
    sidecar_of,
    typed_folder_of,
)

KEPT_TABLE = "metadata.jsonl"  # of `hf-captioners review`
ALL_MODES = (OVERWRITE, "append", "prepend")  # in which images with kept captions are captioned, too


@dataclass
class SidecarPlan:
    """Images to caption, and skipped images with the reasons.

    Attributes:
        images: images to caption.
        kept: images whose captions a person kept or rejected in a table.
        existing: images with a text file that stays as it is.
        changed: text files of `images` that a person wrote or changed, which are replaced.
        replaceable: digests of all texts that are replaced, by file.
    """

    images: list[str]
    kept: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    changed: list[Path] = field(default_factory=list)
    replaceable: dict[Path, str] = field(default_factory=dict)


def plan_sidecars(images: Sequence[str], ending: str, mode: str, folders: Sequence[Path]) -> SidecarPlan:
    """Decide for each image whether it is captioned, by its existing text file.

    Images whose captions a person kept or rejected are done, unless `mode` adds to text files or replaces all of them.

    Args:
        images: images that can have a text file, see `check_sidecars`.
        ending: ending of the text files.
        mode: see `SidecarFiles`.
        folders: the folders that a person typed, see `typed_folder_of`.

    Raises:
        FileExistsError: images have a text file, and `mode` does not say what is done with it.
        UnsafeFileError: a text file that is to be changed is a symbolic link or no plain file, or a table or record
            leads out of the typed folder.
    """
    reviewed = set() if mode in ALL_MODES else reviewed_images(images, folders)
    new = [image for image in images if image not in reviewed]
    plan = SidecarPlan(new, [image for image in images if image in reviewed])
    existing = existing_sidecars(plan.images, ending)
    if mode == REFUSE and existing:
        raise FileExistsError(_refusal(existing, ending, folders))
    if mode == SKIP:
        plan.existing = existing
    elif mode in (OVERWRITE, OVERWRITE_GENERATED):
        plan.replaceable = dict(_texts_of(existing, ending))
        generated = set(_generated(plan.replaceable, folders))
        if mode == OVERWRITE:
            plan.changed = [
                path for path in (sidecar_of(image, ending) for image in existing) if path not in generated
            ]
        else:
            plan.existing = [image for image in existing if sidecar_of(image, ending) not in generated]
            plan.replaceable = {path: plan.replaceable[path] for path in generated}
    left_out = set(plan.existing)
    plan.images = [image for image in plan.images if image not in left_out]
    for image in existing if mode != SKIP else ():
        if image not in left_out:
            require_safe_target(sidecar_of(image, ending))
    return plan


def _refusal(existing: Sequence[str], ending: str, folders: Sequence[Path]) -> str:
    paths = dict(_texts_of(existing, ending))
    count = len(set(_generated(paths, folders)))
    options = ", ".join(f"--{name}" for name in MODES[:-1])
    return (
        f"{len(existing):,} image(s) have a text file, such as {sidecar_of(existing[0], ending)}; a captioner wrote "
        f"{count:,} of them and nobody changed these. Pass {options} or --{OVERWRITE}."
    )


def _texts_of(images: Iterable[str], ending: str) -> Iterator[tuple[Path, str]]:
    """Yield the readable text files with the digests of their texts."""
    for path in (sidecar_of(image, ending) for image in images):
        with suppress(OSError, UnicodeDecodeError):  # links and other files that are never replaced
            yield path, text_digest(read_bytes_inside(path).decode("utf-8-sig"))


def _generated(digests: Mapping[Path, str], folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the text files whose text a captioner wrote and nobody changed."""
    records: dict[Path, dict[str, set[str]]] = {}
    for path, digest in digests.items():
        folder = path.parent
        if folder not in records:
            records[folder] = generated_digests(folder, typed_folder_of(path, folders))
        if digest in records[folder].get(path.name, ()):
            yield path


def reviewed_images(images: Iterable[str], folders: Sequence[Path]) -> set[str]:
    """Return the images with kept captions or a rejection in a `metadata.jsonl` of the review page.

    Args:
        images: paths of images. The tables of their folders are read, up to the typed ones.
        folders: the folders that a person typed, see `typed_folder_of`.

    Raises:
        UnsafeFileError: a table is a symbolic link out of the typed folder, or no plain file.
    """
    paths = {Path(image): image for image in images}
    places: dict[Path, Path] = {}
    for path in paths:
        typed = typed_folder_of(path, folders)
        for folder in path.parents:
            places[folder] = typed
            if folder == typed:
                break
    reviewed = (path for folder, typed in places.items() for path in _rows_of(folder, typed))
    return {paths[path] for path in reviewed if path in paths}


def _rows_of(folder: Path, typed: Path) -> Iterator[Path]:
    """Yield the images with kept or rejected captions in a folder's `metadata.jsonl`; other lines are ignored."""
    table = folder / KEPT_TABLE
    if not table.exists():
        return
    names = [FolderNames(folder / place) for place in IMAGE_FOLDERS]
    for line in read_bytes_inside(table, typed, MAX_TABLE_BYTES).splitlines():
        record: Any = None
        with suppress(ValueError, RecursionError):
            record = json.loads(line.decode("utf-8-sig", "surrogateescape"))
        if isinstance(record, dict) and (record.get(REJECTED) is True or _has_caption(record)):
            name = next((record[column] for column in FILE_COLUMNS if isinstance(record.get(column), str)), "")
            yield find_image(names, name)[1]


def _has_caption(record: Mapping[str, Any]) -> bool:
    captions: Any = next((record[column] for column in CAPTION_COLUMNS if column in record), [])
    texts = captions if isinstance(captions, list) else [captions]
    return any(isinstance(text, str) and text.strip() for text in texts)
