"""`nocaps`: novel object captioning at scale (Agrawal et al., ICCV 2019), to evaluate captioners trained on COCO.

Files read from `data_dir` or its folder `annotations` (each also as `.gz`):

- `nocaps_val_4500_captions.json`: images with their domain, and ten captions each, in COCO's format.
- `nocaps_test_image_info.json`: the test images, whose captions and domains are not public.

Images are searched in `val/` and `test/`, or beside these, of `image_dir`, of `data_dir` or of its `images/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from datasets import Features, List, Value

from .coco_format import read_coco_format
from .reader import SourceCard
from .report import DataReport, ProblemKind
from .schema import CaptionRow
from .split_files import SplitFile, SplitFilesReader

DOMAINS = ("in-domain", "near-domain", "out-domain")
COLUMNS = ("domain", "open_images_id", "height", "width")


@dataclass(kw_only=True)
class Nocaps(SplitFilesReader):
    """Reader of nocaps: `validation` and `test`, since captioners are trained on COCO.

    The column `domain` says whether the classes of an image's objects occur in COCO: `in-domain` (all of them),
    `near-domain` (some) or `out-domain` (none).

    Attributes:
        max_captions: keep at most this many references per image; None keeps all ten.
        row_per_caption: one row per caption.
        image_dir: folder of the images, or of the folders with them; None searches in `data_dir` and its `images/`.
        with_images: False loads captions only (`image` is None).
    """

    name: ClassVar[str] = "nocaps"
    card: ClassVar[SourceCard] = SourceCard(
        "Photographs of Open Images with ten captions each, of objects that COCO has and does not have.",
        "Agrawal et al. nocaps: novel object captioning at scale. ICCV 2019.",
        "images: CC BY 2.0, as those of Open Images",
        "https://nocaps.org",
    )
    scored_by: ClassVar[str | None] = "domain"
    split_files: ClassVar[Mapping[str, SplitFile]] = {
        "validation": SplitFile("nocaps_val_4500_captions.json", "val"),
        "test": SplitFile("nocaps_test_image_info.json", "test", captioned=False),
    }
    features: ClassVar[Features] = Features(
        {
            "file_name": Value("string"),
            "caption_ids": List(Value("int64")),
            "domain": Value("string"),
            "open_images_id": Value("string"),
            "height": Value("int64"),
            "width": Value("int64"),
        }
    )

    def rows(self, path: Path, source: SplitFile, report: DataReport) -> Iterator[CaptionRow]:
        """Read the images of a split; report captioned ones without a domain."""
        for row in read_coco_format(path, source.images, self.find_image, source.captioned, report, COLUMNS):
            domain = row.extra["domain"]
            if domain in DOMAINS or (domain is None and not source.captioned):
                yield row
            else:
                message = f"the domain of image {row.image_id} is {domain!r}, expected one of {', '.join(DOMAINS)}"
                report.add(ProblemKind.MALFORMED_ROW, path, row.line, message)
