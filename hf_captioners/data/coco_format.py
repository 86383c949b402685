"""Annotation files in COCO's format: a list of images, and a list of annotations that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_captioners.metrics.annotation_files import read_json
from hf_captioners.metrics.caption_tables import row_fault

from .report import DataReport, ProblemKind
from .schema import CaptionRow


def read_coco_format(
    path: Path,
    folder: str,
    find_image: Callable[[str, str], str | None],
    captioned: bool,
    report: DataReport,
    columns: Sequence[str] = (),
    why_left_out: Callable[[dict[str, Any]], str | None] | None = None,
) -> Iterator[CaptionRow]:
    """Read an annotation file in COCO's format.

    Args:
        path: JSON with `images` and, if `captioned`, `annotations`.
        folder: name of the images' folder, such as `val2014`.
        find_image: returns the path of an image, given folder and file name.
        captioned: whether captions are expected.
        report: receives annotations without an image, images without a caption, repeated and malformed entries; in
            its notes the number of annotations that were left out, and of images that have no other ones.
        columns: fields of an image that are kept, besides `file_name` and `caption_ids`.
        why_left_out: returns why a protocol leaves an annotation out, or None if it does not.

    Yields:
        One row per image in the order of `images`; captions by ascending annotation id, which is Karpathy's order.

    Raises:
        ValueError: the file has a different structure.
    """
    content = read_json(path)
    parts = ("images", "annotations") if captioned else ("images",)
    if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in parts):
        raise ValueError(f'{path} is not in COCO\'s format: expected {{"images": [...], "annotations": [...]}}.')
    captions, emptied = _captions_by_image(content, path, report, why_left_out) if captioned else ({}, set())
    seen: set[int] = set()
    for number, image in enumerate(content["images"], 1):
        try:
            image_id, name = int(image["id"]), str(image["file_name"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            report.add(ProblemKind.MALFORMED_ROW, path, number, f"entry {number} of `images` lacks {error}")
            continue
        if fault := row_fault(image):
            report.add(ProblemKind.MALFORMED_ROW, path, number, f"entry {number} of `images`: {fault}")
            continue
        pairs = sorted(captions.get(image_id, []))
        if image_id in seen:
            report.add(ProblemKind.DUPLICATE, path, number, f"the image id {image_id} occurs twice in `images`")
        elif captioned and not pairs and image_id in emptied:
            report.notes["image without other captions"] += 1
        elif captioned and not pairs:
            report.add(ProblemKind.MISSING_CAPTION, path, number, f"image {image_id} has no annotation")
        else:
            extra = {
                "file_name": f"{folder}/{name}",
                "caption_ids": [caption_id for caption_id, _ in pairs],
                **{column: image.get(column) for column in columns},
            }
            texts = [text for _, text in pairs]
            yield CaptionRow(str(image_id), find_image(folder, name), texts, str(path), number, extra)
        seen.add(image_id)


def _captions_by_image(
    content: dict[str, Any],
    path: Path,
    report: DataReport,
    why_left_out: Callable[[dict[str, Any]], str | None] | None,
) -> tuple[dict[int, list[tuple[int, str]]], set[int]]:
    """Return the ids and captions of each image, and the images with annotations that a protocol leaves out."""
    ids = [image.get("id") for image in content["images"] if isinstance(image, dict)]
    known = {image_id for image_id in ids if isinstance(image_id, (int, str))}
    captions: dict[int, list[tuple[int, str]]] = {}
    emptied: set[int] = set()
    seen: set[int] = set()
    for number, entry in enumerate(content["annotations"], 1):
        try:
            image_id, caption_id, caption = entry["image_id"], int(entry["id"]), entry["caption"]
            hash(image_id)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            report.add(ProblemKind.MALFORMED_ROW, path, number, f"entry {number} of `annotations` lacks {error}")
            continue
        if fault := row_fault(entry):
            report.add(ProblemKind.MALFORMED_ROW, path, number, f"entry {number} of `annotations`: {fault}")
        elif image_id not in known:
            message = f"annotation {caption_id} belongs to image {image_id}, which `images` lacks"
            report.add(ProblemKind.MISSING_IMAGE, path, number, message)
        elif caption_id in seen:
            report.add(ProblemKind.DUPLICATE, path, number, f"the annotation id {caption_id} occurs twice")
        elif why_left_out is not None and (reason := why_left_out(entry)) is not None:
            report.notes[reason] += 1
            emptied.add(image_id)
        elif not isinstance(caption, str) or not caption.strip():
            report.add(ProblemKind.MISSING_CAPTION, path, number, f"annotation {caption_id} is {caption!r}")
        else:
            captions.setdefault(image_id, []).append((caption_id, caption))
        seen.add(caption_id)
    return captions, emptied
