"""`vizwiz`: VizWiz-Captions, photographs taken by people who are blind (Gurari et al., ECCV 2020).

Files read from `data_dir` or its folder `annotations` (each also as `.gz`), in COCO's format:

- `train.json`, `val.json`: images with five captions each.
- `test.json`: the test images, whose captions are not public.

Images are searched in `train/`, `val/` and `test/`, or beside these, of `image_dir`, of `data_dir` or of its
`images/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from datasets import Features, List, Value

from .coco_format import read_coco_format
from .reader import SourceCard
from .report import DataReport
from .schema import CaptionRow
from .split_files import SplitFile, SplitFilesReader


@dataclass(kw_only=True)
class VizWiz(SplitFilesReader):
    """Reader of VizWiz-Captions.

    The data set's own code leaves out captions that were rejected as spam, and the prepared sentence "Quality issues
    are too severe to recognize visual content." of a person who could not describe the image. So does this reader; it
    counts them in the notes of the report, and the images that have no other captions, which are left out too.

    Attributes:
        ignore_rejected: leave out captions with `is_rejected`.
        ignore_precanned: leave out captions with `is_precanned`.
        max_captions: keep at most this many references per image; None keeps all.
        row_per_caption: one row per caption.
        image_dir: folder of the images, or of the folders with them; None searches in `data_dir` and its `images/`.
        with_images: False loads captions only (`image` is None).
    """

    name: ClassVar[str] = "vizwiz"
    card: ClassVar[SourceCard] = SourceCard(
        "Photographs taken by people who are blind, with up to five captions each.",
        "Gurari et al. Captioning Images Taken by People Who Are Blind. ECCV 2020.",
        "CC BY 4.0",
        "https://vizwiz.org/tasks-and-datasets/image-captioning/",
    )
    split_files: ClassVar[Mapping[str, SplitFile]] = {
        "train": SplitFile("train.json", "train"),
        "validation": SplitFile("val.json", "val"),
        "test": SplitFile("test.json", "test", captioned=False),
    }
    features: ClassVar[Features] = Features(
        {"file_name": Value("string"), "caption_ids": List(Value("int64")), "text_detected": Value("bool")}
    )

    ignore_rejected: bool = True
    ignore_precanned: bool = True

    def _why_left_out(self, annotation: dict[str, Any]) -> str | None:
        if self.ignore_rejected and annotation.get("is_rejected"):
            return "rejected caption"
        return "precanned caption" if self.ignore_precanned and annotation.get("is_precanned") else None

    def rows(self, path: Path, source: SplitFile, report: DataReport) -> Iterator[CaptionRow]:
        """Read the images of a split."""
        return read_coco_format(
            path, source.images, self.find_image, source.captioned, report, ("text_detected",), self._why_left_out
        )
