"""`conceptual_captions`: captions and URLs of images on the web (CC3M).

Sharma et al., "Conceptual Captions: A Cleaned, Hypernymed, Image Alt-text Dataset for Automatic Image Captioning",
ACL 2018.

Files read from `data_dir` (each also as `.gz`): `Train_GCC-training.tsv` and `Validation_GCC-1.1.0-Validation.tsv`,
lines of `caption TAB address` without header and without quoting. Loading does not download: images are read
from the folders `train` and `validation` that `hf_captioners.data.image_download` (or a different program) filled,
named by the number of their line or by the MD5 or SHA-1 of their address. Lines without an image are left out and
counted in `DataReport.notes`: many addresses are no longer valid.

Captions are unchanged: lower-case, words separated by spaces, names replaced by "person", "actor" and the like.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from datasets import Features, Value

from hf_captioners.metrics.annotation_files import read_annotation

from .images import list_images
from .reader import Annotations, CaptionReader, LazyRows, SourceCard
from .report import DataReport, ProblemKind
from .schema import CaptionRow

PATTERNS = {"train": "*rain*GCC*.tsv*", "validation": "*alidation*GCC*.tsv*"}
NOT_FETCHED = "line whose image was not fetched"


@dataclass(kw_only=True)
class ConceptualCaptions(CaptionReader):
    """Reader of Conceptual Captions.

    Attributes:
        image_dir: folder with the folders `train` and `validation` of fetched images; None: `data_dir`.
        first_number: the number in the name of the first line's image.
        held_out: use this many random training lines as validation split, and the public validation lines as test
            split, as VisualGPT does with 5,000 (section 4.1 of its paper); 0 keeps the published splits.
        held_out_seed: seed of the held-out split, which is drawn from all lines, with and without images.
        lower_case: convert captions to lower case (the official files are).
        with_images: False loads all captions with `image` None.
    """

    name: ClassVar[str] = "conceptual_captions"
    card: ClassVar[SourceCard] = SourceCard(
        "Captions and addresses of images found on the web.",
        "Sharma et al. Conceptual Captions. ACL 2018.",
        "captions: free for any purpose, as is; images: their web sites' own",
        "https://ai.google.com/research/ConceptualCaptions",
    )

    image_dir: str | Path | None = None
    first_number: int = 0
    held_out: int = 0
    held_out_seed: int = 0
    lower_case: bool = False
    with_images: bool = True

    def tables(self) -> dict[str, Path]:
        """Return the TSV file of each available split."""
        tables: dict[str, Path] = {}
        for split, pattern in PATTERNS.items():
            paths = sorted(self.folder.glob(pattern))
            if len(paths) > 1:
                raise ValueError(f"{self.folder} has several files for {split}: {[path.name for path in paths]}.")
            if paths:
                tables[split] = paths[0]
        if not tables:
            raise FileNotFoundError(
                f"{self.folder} has neither Train_GCC-training.tsv nor Validation_GCC-1.1.0-Validation.tsv. Get them "
                f"from {self.card.homepage}."
            )
        return tables

    def annotation_files(self) -> list[Path]:
        """Return the TSV files."""
        return list(self.tables().values())

    def image_folder(self, split: str) -> Path:
        """Return the folder of a split's downloaded images."""
        return Path(self.image_dir or self.folder) / split

    def image_places(self) -> Iterable[Path]:
        """Return the folders of downloaded images."""
        return [self.image_folder(split) for split in PATTERNS] if self.with_images else []

    def read(self, report: DataReport) -> Annotations:
        """Index the TSV lines, and select those with images."""
        splits: dict[str, Sequence[CaptionRow]] = {}
        for split, path in self.tables().items():
            lines = TsvLines(path, report)
            chosen: dict[str, Sequence[int]] = {split: range(len(lines))}
            if self.held_out and split == "train":
                chosen = _held_out(len(lines), self.held_out, self.held_out_seed)
            elif self.held_out:
                chosen = {"test": range(len(lines))}
            for name, indices in chosen.items():
                splits[name] = self._rows(lines, indices, self.image_folder(split), report)
        return Annotations(splits, Features({"url": Value("string")}))

    def _rows(self, lines: TsvLines, indices: Sequence[int], folder: Path, report: DataReport) -> PairRows:
        if not self.with_images:
            return PairRows(lines, indices, None, self.lower_case)
        by_stem = {path.stem.lstrip("0") or "0": str(path) for path in list_images(folder)}
        hashed = any(not stem.isdigit() for stem in by_stem)
        kept, images = array("Q"), []
        for index in indices:
            number, _, url = lines[index]
            names = [str(number - 1 + self.first_number), *(_hashes(url) if hashed else ())]
            image = next((by_stem[name] for name in names if name in by_stem), None)
            if image is None:
                report.notes[NOT_FETCHED] += 1
            else:
                kept.append(index)
                images.append(image)
        return PairRows(lines, kept, images, self.lower_case)


def images_to_fetch(
    data_dir: str | Path, split: str, first_number: int = 0, report: DataReport | None = None
) -> Iterator[tuple[str, str]]:
    """Yield names and URLs of the images of a split, for `download_images`.

    Args:
        data_dir: folder of the TSV files.
        split: `train` or `validation`.
        first_number: number of the first line's image.
        report: receives the malformed lines.

    Yields:
        The name of the image (nine digits) and its address.
    """
    lines = TsvLines(
        ConceptualCaptions(data_dir=Path(data_dir)).tables()[split], DataReport() if report is None else report
    )
    for index in range(len(lines)):
        number, _, url = lines[index]
        yield f"{number - 1 + first_number:09d}", url


class TsvLines:
    """Well-formed lines of a TSV file of captions and URLs, stored as offsets to save memory.

    Args:
        path: the file.
        report: receives the malformed lines.
    """

    def __init__(self, path: Path, report: DataReport) -> None:
        self.path = path
        self.content = read_annotation(path)
        self.starts, self.numbers = array("Q"), array("Q")
        start, number = 0, 0
        while start < len(self.content):
            number += 1
            stop = self._end(start)
            if fault := _fault(self.content[start:stop]):
                report.add(ProblemKind.MALFORMED_ROW, path, number, fault)
            else:
                self.starts.append(start)
                self.numbers.append(number)
            start = stop + 1

    def _end(self, start: int) -> int:
        stop = self.content.find(b"\n", start)
        return len(self.content) if stop < 0 else stop

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[int, str, str]:
        """Return line number (from 1), caption and URL."""
        start = self.starts[index]
        caption, url = self.content[start : self._end(start)].decode("utf-8").removeprefix("\ufeff").split("\t")
        return self.numbers[index], caption, url.rstrip("\r")


def _fault(line: bytes) -> str | None:
    try:
        fields = line.decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        return f"this line is not UTF-8 ({error}): {line[:60]!r}"
    if len(fields) != 2:
        return f"expected `caption TAB address`, found {len(fields) - 1} TABs: {line[:80]!r}"
    if not fields[0].strip() or not fields[1].startswith(("http://", "https://")):
        return f"expected a caption and an http(s) address: {line[:80]!r}"
    return None


class PairRows(LazyRows):
    """Rows of a split: selected TSV lines, with or without images."""

    def __init__(self, lines: TsvLines, indices: Sequence[int], images: list[str] | None, lower_case: bool) -> None:
        self.lines, self.indices, self.images, self.lower_case = lines, indices, images, lower_case

    def __len__(self) -> int:
        return len(self.indices)

    def row(self, index: int) -> CaptionRow:
        """Read the image-caption pair of a TSV line."""
        number, caption, url = self.lines[self.indices[index]]
        image = None if self.images is None else self.images[index]
        caption = caption.lower() if self.lower_case else caption
        return CaptionRow(f"{number - 1:09d}", image, [caption], str(self.lines.path), number, {"url": url})


def _held_out(count: int, held_out: int, seed: int) -> dict[str, Sequence[int]]:
    if not 0 < held_out < count:
        raise ValueError(
            f"`held_out` is {held_out}; expected 1 to {count - 1}, as there are {count:,} training pairs."
        )
    chosen = sorted(random.Random(seed).sample(range(count), held_out))
    selected = set(chosen)
    return {"train": [index for index in range(count) if index not in selected], "validation": chosen}


def _hashes(url: str) -> tuple[str, str]:
    """Return possible names of a downloaded image: MD5 and SHA-1 of its URL, without leading zeros."""
    data = url.encode("utf-8")
    digests = (hashlib.md5(data, usedforsecurity=False), hashlib.sha1(data, usedforsecurity=False))
    first, second = (digest.hexdigest().lstrip("0") for digest in digests)
    return first, second
