"""The split files of Karpathy and Fei-Fei (`dataset_coco.json`, `dataset_flickr8k.json`, `dataset_flickr30k.json`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datasets import Features, List, Value

from hf_captioners.metrics.annotation_files import read_json
from hf_captioners.metrics.caption_tables import row_fault

from .report import DataReport, ProblemKind
from .schema import CaptionRow

# Files without `cocoid` have it in the names of the images.
COCO_NAME = re.compile(r"COCO_\w+_0*(\d+)\.jpg$")
KARPATHY_SPLITS = {"train": "train", "restval": "train", "val": "validation", "test": "test"}
KARPATHY_FEATURES = Features(
    {
        "file_name": Value("string"),
        "source_split": Value("string"),
        "caption_ids": List(Value("int64")),
        "tokens": List(List(Value("string"))),
    }
)


def read_karpathy(
    path: Path, find_image: Callable[[str, str], str | None], report: DataReport
) -> Iterator[CaptionRow]:
    """Read the images and captions of a split file.

    Args:
        path: the JSON file.
        find_image: returns the path of an image, given `filepath` (empty in Flickr's files) and `filename`.
        report: receives incomplete entries and repeated images.

    Yields:
        One row per image, with `source_split` as in the file (COCO's `restval` included), `caption_ids`
        (`sentid`), the `tokens` of each caption, and `cocoid` if the file has it. `image_id` is the `cocoid`, or
        the file name.

    Raises:
        ValueError: the file has a different structure.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise ValueError(
            f'{path} is not a split file: expected {{"images": [{{"filename", "split", "sentences"}}, ...]}}.'
        )
    names: dict[str, int] = {}
    for number, entry in enumerate(content["images"], 1):
        if fault := row_fault(entry):
            report.add(ProblemKind.MALFORMED_ROW, path, number, f"image {number} of the list: {fault}")
            continue
        try:
            row = _row(entry, path, number, find_image)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            report.add(ProblemKind.MALFORMED_ROW, path, number, f"image {number} of the list lacks {error}")
            continue
        if len(row.captions) < len(entry["sentences"]):
            report.add(ProblemKind.MISSING_CAPTION, path, number, f"{row.extra['file_name']} has an empty sentence")
        if not row.captions:
            report.add(ProblemKind.MISSING_CAPTION, path, number, f"{row.extra['file_name']} has no sentences")
        elif names.setdefault(row.image_id, number) != number:
            message = f"the image {row.image_id!r} is image {names[row.image_id]} of the list already"
            report.add(ProblemKind.DUPLICATE, path, number, message)
        else:
            yield row


def _row(entry: dict[str, Any], path: Path, number: int, find_image: Callable[[str, str], str | None]) -> CaptionRow:
    name, folder = entry["filename"], entry.get("filepath", "")
    sentences = [sentence for sentence in entry["sentences"] if sentence["raw"].strip()]
    for sentence in sentences:
        tokens = sentence.get("tokens", [])
        if type(sentence["sentid"]) is not int or not isinstance(tokens, list):
            raise TypeError(f"a sentence with a number and a list of tokens: {sentence!r:.80}")
        if not all(isinstance(token, str) for token in tokens) or not isinstance(entry["split"], str):
            raise TypeError(f"texts as tokens and `split`: {sentence!r:.80}")
    extra: dict[str, Any] = {
        "file_name": f"{folder}/{name}" if folder else name,
        "source_split": entry["split"],
        "caption_ids": [sentence["sentid"] for sentence in sentences],
        "tokens": [sentence.get("tokens", []) for sentence in sentences],
    }
    numbered = COCO_NAME.match(name)
    cocoid = entry.get("cocoid", numbered and numbered[1])
    if cocoid is not None:
        extra["cocoid"] = int(cocoid)
    image_id = name if cocoid is None else str(extra["cocoid"])
    captions = [sentence["raw"] for sentence in sentences]
    return CaptionRow(image_id, find_image(folder, name), captions, str(path), number, extra)
