"""`textcaps`: photographs with text, and captions that read it (Sidorov et al., ECCV 2020).

Files read from `data_dir` or its folder `annotations` (each also as `.gz`):

- `TextCaps_0.1_train.json`, `TextCaps_0.1_val.json`: one entry for each caption.
- `TextCaps_0.1_test.json`: the test images, whose captions are not public.

Images are searched in `train_images/` (training and validation) and `test_images/`, or beside these, of `image_dir`,
of `data_dir` or of its `images/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from datasets import Features, List, Value

from hf_captioners.metrics.annotation_files import read_json
from hf_captioners.metrics.caption_tables import row_fault

from .reader import SourceCard
from .report import DataReport, ProblemKind
from .schema import CaptionRow
from .split_files import SplitFile, SplitFilesReader


@dataclass(kw_only=True)
class TextCaps(SplitFilesReader):
    """Reader of TextCaps.

    Attributes:
        max_captions: keep at most this many references per image; None keeps all five.
        row_per_caption: one row per caption.
        image_dir: folder of the images, or of the folders with them; None searches in `data_dir` and its `images/`.
        with_images: False loads captions only (`image` is None).
    """

    name: ClassVar[str] = "textcaps"
    card: ClassVar[SourceCard] = SourceCard(
        "Photographs of Open Images with text, and five captions each that read it.",
        "Sidorov et al. TextCaps: a Dataset for Image Captioning with Reading Comprehension. ECCV 2020.",
        "captions: CC BY 4.0; images: CC BY 2.0, as those of Open Images",
        "https://textvqa.org/textcaps/",
    )
    split_files: ClassVar[Mapping[str, SplitFile]] = {
        "train": SplitFile("TextCaps_0.1_train.json", "train_images"),
        "validation": SplitFile("TextCaps_0.1_val.json", "train_images"),
        "test": SplitFile("TextCaps_0.1_test.json", "test_images", captioned=False),
    }
    features: ClassVar[Features] = Features(
        {
            "file_name": Value("string"),
            "caption_ids": List(Value("int64")),
            "image_classes": List(Value("string")),
            "height": Value("int64"),
            "width": Value("int64"),
        }
    )

    def rows(self, path: Path, source: SplitFile, report: DataReport) -> Iterator[CaptionRow]:
        """Read the captions of a split and merge them into one row an image.

        Raises:
            ValueError: the file has a different structure.
        """
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("data"), list):
            raise ValueError(f'{path} is not in the format of TextCaps: expected {{"data": [{{"image_id", ...}}]}}.')
        rows: dict[str, CaptionRow] = {}
        for number, entry in enumerate(content["data"], 1):
            if (fault := _entry_fault(entry, source.captioned)) is not None:
                report.add(fault[0], path, number, f"entry {number} of `data`{fault[1]}")
                continue
            image_id = entry["image_id"]
            if image_id not in rows:
                rows[image_id] = self._row(entry, path, number, source)
            elif not source.captioned:
                report.add(ProblemKind.DUPLICATE, path, number, f"the image {image_id} occurs twice")
                continue
            row = rows[image_id]
            if source.captioned and entry["caption_id"] in row.extra["caption_ids"]:
                message = f"image {image_id} has the caption {entry['caption_id']} twice"
                report.add(ProblemKind.DUPLICATE, path, number, message)
            elif source.captioned:
                row.captions.append(entry["caption_str"])
                row.extra["caption_ids"].append(entry["caption_id"])
        yield from rows.values()

    def _row(self, entry: dict[str, Any], path: Path, number: int, source: SplitFile) -> CaptionRow:
        name = f"{entry['image_id']}.jpg"
        extra: dict[str, Any] = {
            "file_name": f"{source.images}/{name}",
            "caption_ids": [],
            "image_classes": entry.get("image_classes"),
            "height": entry.get("image_height"),
            "width": entry.get("image_width"),
        }
        return CaptionRow(entry["image_id"], self.find_image(source.images, name), [], str(path), number, extra)


def _entry_fault(entry: Any, captioned: bool) -> tuple[ProblemKind, str] | None:
    """Return why an entry cannot be used: the kind of problem, and what follows after its number."""
    if fault := row_fault(entry):
        return ProblemKind.MALFORMED_ROW, f": {fault}"
    if not isinstance(entry, dict) or not isinstance(entry.get("image_id"), str):
        return ProblemKind.MALFORMED_ROW, " lacks 'image_id'"
    if not captioned:
        return None
    if type(entry.get("caption_id")) is not int:
        return ProblemKind.MALFORMED_ROW, f": the `caption_id` of {entry['image_id']} is {entry.get('caption_id')!r}"
    caption = entry.get("caption_str")
    if not isinstance(caption, str) or not caption.strip():
        return ProblemKind.MISSING_CAPTION, f": the `caption_str` of {entry['image_id']} is {caption!r}"
    return None
