"""Data sets with one official annotation file for each split: `nocaps`, `textcaps`, `vizwiz`."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from datasets import Features

from .images import first_file
from .reader import Annotations
from .references import ReferenceReader
from .report import DataReport, ProblemKind
from .schema import CaptionRow


class SplitFile(NamedTuple):
    """Annotation file of a split.

    Attributes:
        name: name of the file.
        images: name of the folder of its images.
        captioned: whether its captions are public.
    """

    name: str
    images: str
    captioned: bool = True


@dataclass(kw_only=True)
class SplitFilesReader(ReferenceReader):
    """Reader of a data set with one annotation file for each split; splits without a file are left out.

    Attributes:
        split_files: class attribute; the file of each split, in `data_dir` or its folder `annotations`, also as `.gz`.
        features: class attribute; features of the additional columns.
        max_captions: keep at most this many references per image; None keeps all.
        row_per_caption: one row per caption.
        image_dir: folder of the images, or of the folders with them; None searches in `data_dir` and its `images/`.
        with_images: False loads captions only (`image` is None).
    """

    split_files: ClassVar[Mapping[str, SplitFile]]
    features: ClassVar[Features]

    @abc.abstractmethod
    def rows(self, path: Path, source: SplitFile, report: DataReport) -> Iterator[CaptionRow]:
        """Read the annotation file of a split; add bad rows to the report."""

    def _paths(self) -> dict[str, Path]:
        """Return the annotation file of each available split."""
        found = {
            split: path
            for split, source in self.split_files.items()
            if (path := self.find_annotations(source.name)) is not None
        }
        if not found:
            names = [source.name for source in self.split_files.values()]
            raise FileNotFoundError(f"{self.folder} has neither {' nor '.join(names)} (nor has its `annotations`).")
        return found

    def annotation_files(self) -> list[Path]:
        """Return the annotation files of the available splits."""
        return list(self._paths().values())

    def _image_roots(self) -> list[Path]:
        return [Path(self.image_dir).expanduser()] if self.image_dir else [self.folder, self.folder / "images"]

    def image_places(self) -> Iterable[Path]:
        """Return the folders with images."""
        if self.with_images:
            folders = {source.images for source in self.split_files.values()}
            found = [root / folder for root in self._image_roots() for folder in sorted(folders)]
            yield from ([place for place in found if place.is_dir()] or self._image_roots())

    def find_image(self, folder: str, name: str) -> str | None:
        """Return the path of an image in the folder of its split, or beside these folders."""
        if not self.with_images:
            return None
        return first_file([root / part / name for root in self._image_roots() for part in (folder, "")])

    def read(self, report: DataReport) -> Annotations:
        """Read the splits; leave out those without any image, if others have images."""
        splits: dict[str, list[CaptionRow]] = {}
        paths = self._paths()
        for split, path in paths.items():
            with report.whole(path):
                rows = self.rows(path, self.split_files[split], report)
                splits[split] = list(self.shaped(rows))
        absent = [split for split, rows in splits.items() if rows and not any(map(_has_image, rows))]
        if self.with_images and len(absent) < len(splits):
            for split in absent:
                folder = self.split_files[split].images
                message = f"none of its images is in a folder {folder} or beside it; the split {split!r} is left out"
                report.add(ProblemKind.MISSING_IMAGE, paths[split], None, message)
                del splits[split]
        return Annotations(splits, self.features)


def _has_image(row: CaptionRow) -> bool:
    return row.image is not None and os.path.isfile(row.image)
