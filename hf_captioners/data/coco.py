"""`coco`: Microsoft COCO captions, with Karpathy's or the official split.

Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014; Chen et al., "Microsoft COCO Captions", 2015.

Files read from `data_dir` or its folder `annotations` (each also as `.gz`):

- `dataset_coco.json`: Karpathy's split, complete in itself.
- `captions_train2014.json`, `captions_val2014.json`: the official files; with `split_lists` they give Karpathy's split
  too.
- `image_info_test2014.json`: the test images, whose captions are not public.

Images are searched in `train2014/`, `val2014/` and `test2014/` of `image_dir`, of `data_dir` or of its `images/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Features, List, Value

from hf_captioners.metrics.annotation_files import read_json

from .coco_format import read_coco_format
from .images import first_file
from .karpathy import KARPATHY_FEATURES, KARPATHY_SPLITS, read_karpathy
from .reader import Annotations, SourceCard
from .references import ReferenceReader
from .report import DataReport, ProblemKind
from .schema import CaptionRow

OFFICIAL_FEATURES = Features(
    {
        "file_name": Value("string"),
        "source_split": Value("string"),
        "caption_ids": List(Value("int64")),
        "cocoid": Value("int64"),
        "height": Value("int64"),
        "width": Value("int64"),
    }
)
# Names of the parts in the split lists of released code.
LIST_NAMES = {"train": ("train",), "restval": ("restval",), "val": ("val", "dev"), "test": ("test",)}


@dataclass(kw_only=True)
class Coco(ReferenceReader):
    """Reader of COCO captions.

    Attributes:
        official: use the official split (train, validation, and test without captions) instead of Karpathy's.
        split_lists: derive Karpathy's split from the official files: a JSON file `{"val": [image ids], "test": [...]}`
            (the other images of val2014 are restval), or a folder with `coco_{train,restval,val,test}.txt` (file
            names) or with M2's `coco_{train,restval,dev,test}_ids.npy` (which contain *annotation* ids).
        year: of the official files: 2014 or 2017.
        restval_in_train: merge restval into train, as all published results do; False keeps it as a separate split.
        max_captions: keep at most this many references per image; None keeps all.
        row_per_caption: one row per caption.
        image_dir: folder with `train2014` and the other image folders.
        with_images: False loads captions only (`image` is None).
    """

    name: ClassVar[str] = "coco"
    card: ClassVar[SourceCard] = SourceCard(
        "Microsoft COCO photographs with five captions each.",
        "Lin et al. Microsoft COCO: Common Objects in Context. ECCV 2014. Chen et al. Microsoft COCO Captions. 2015.",
        "captions: CC BY 4.0; images: their Flickr authors' own licences",
        "https://cocodataset.org",
    )

    official: bool = False
    split_lists: str | Path | None = None
    year: int = 2014
    restval_in_train: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.split_lists is not None:
            self.split_lists = Path(self.split_lists)

    def _by_split_file(self) -> Path | None:
        return None if self.official or self.split_lists else self.find_annotations("dataset_coco.json")

    def _official_files(self) -> dict[str, Path]:
        """Return the annotation file of each available part."""
        names = {part: f"captions_{part}{self.year}.json" for part in ("train", "val")}
        if self.official:
            names["test"] = f"image_info_test{self.year}.json"
        files = {part: path for part, name in names.items() if (path := self.find_annotations(name))}
        if not set(files) & {"train", "val"}:
            raise FileNotFoundError(
                f"{self.folder} has neither {'' if self.official else 'dataset_coco.json nor '}"
                f"{' nor '.join(names.values())} (nor has its folder `annotations`)."
            )
        if not self.official and self.split_lists is None:
            raise FileNotFoundError(
                f"{self.folder} has no dataset_coco.json, which defines Karpathy's split. Add it, pass "
                "lists of ids with `split_lists='...'`, or use the official split with `official=True`."
            )
        return files

    def _list_files(self) -> list[Path]:
        lists = self.split_lists
        if not isinstance(lists, Path):
            return []
        paths = [lists] if lists.is_file() else sorted([*lists.glob("coco_*_ids.npy"), *lists.glob("coco_*.txt")])
        if not paths:
            raise FileNotFoundError(
                f"{lists} (`split_lists`) is neither a JSON file nor a folder with coco_*_ids.npy or coco_*.txt."
            )
        return paths

    def annotation_files(self) -> list[Path]:
        """Return the split file, or the official annotation files and the split lists."""
        split_file = self._by_split_file()
        return [split_file] if split_file else [*self._official_files().values(), *self._list_files()]

    def _image_roots(self) -> list[Path]:
        return [Path(self.image_dir)] if self.image_dir else [self.folder, self.folder / "images"]

    def image_places(self) -> Iterable[Path]:
        """Return the image folders."""
        if self.with_images:
            names = [f"{part}{self.year}" for part in ("train", "val", "test")]
            folders = [root / name for root in self._image_roots() for name in names]
            yield from (folder for folder in folders if folder.is_dir())

    def _absent_folders(self, files: Iterable[str]) -> set[str]:
        """Return the parts of the official split without an image folder, if other parts have a folder."""
        if not (self.official and self.with_images):
            return set()
        roots = self._image_roots()
        existing = {part for part in files if any((root / f"{part}{self.year}").is_dir() for root in roots)}
        return set(files) - existing if existing else set()

    def _image_finder(self) -> Callable[[str, str], str | None]:
        roots = self._image_roots()

        def find(folder: str, name: str) -> str | None:
            if not self.with_images:
                return None
            candidates = [root / part / name for root in roots for part in (folder, "")]
            return first_file(candidates)

        return find

    def read(self, report: DataReport) -> Annotations:
        """Read images and captions, and assign them to splits."""
        split_file = self._by_split_file()
        if split_file:
            rows: Iterable[CaptionRow] = read_karpathy(split_file, self._image_finder(), report)
            extra = Features({**KARPATHY_FEATURES, "cocoid": Value("int64")})
        else:
            rows, extra = self._official_rows(report), OFFICIAL_FEATURES
        names = {"train": "train", "val": "validation", "test": "test"} if self.official else dict(KARPATHY_SPLITS)
        if not self.restval_in_train:
            names["restval"] = "restval"
        splits: dict[str, list[CaptionRow]] = {}
        for row in self.shaped(rows):
            part = row.extra["source_split"]
            if part in names:
                splits.setdefault(names[part], []).append(row)
            else:
                message = f"the split is {part!r}; expected one of {', '.join(names)}"
                report.add(ProblemKind.MALFORMED_ROW, row.file, row.line, message)
        order = ("train", "restval", "validation", "test")
        return Annotations({split: splits[split] for split in order if split in splits}, extra)

    def _official_rows(self, report: DataReport) -> Iterator[CaptionRow]:
        files = self._official_files()
        lists = read_split_lists(self._list_files()) if self.split_lists else None
        absent = self._absent_folders(files)
        for part, path in files.items():
            if part in absent:
                message = f"there is no folder {part}{self.year} of its images, which are left out"
                report.add(ProblemKind.MISSING_IMAGE, path, None, message)
                continue
            with report.whole(path):
                for row in read_coco_format(
                    path, f"{part}{self.year}", self._image_finder(), part != "test", report, ("height", "width")
                ):
                    row.extra = {**row.extra, "cocoid": int(row.image_id)}
                    if lists is None:
                        row.extra = {**row.extra, "source_split": part}
                        yield row
                    else:
                        yield from lists.assign(row, part)


@dataclass(frozen=True)
class SplitLists:
    """Lists of the images or captions in each part of Karpathy's split.

    Attributes:
        parts: the ids of each part.
        column: kind of the ids: `cocoid`, `file_name` or `caption_ids`.
    """

    parts: dict[str, Collection[Any]]
    column: str

    def assign(self, row: CaptionRow, official_part: str) -> Iterator[CaptionRow]:
        """Yield an image's row with its split; with caption lists, unlisted captions are dropped."""
        if self.column == "caption_ids":
            yield from self._by_captions(row)
            return
        value = row.extra["cocoid"] if self.column == "cocoid" else Path(row.extra["file_name"]).name
        part = next((part for part, values in self.parts.items() if value in values), None)
        if part is None and self.column == "cocoid":  # JSON lists name val and test only
            part = "train" if official_part == "train" else "restval"
        if part is not None:
            row.extra = {**row.extra, "source_split": part}
            yield row

    def _by_captions(self, row: CaptionRow) -> Iterator[CaptionRow]:
        pairs = list(zip(row.extra["caption_ids"], row.captions, strict=True))
        for part, ids in self.parts.items():
            chosen = [(caption_id, caption) for caption_id, caption in pairs if caption_id in ids]
            if chosen:
                extra = {**row.extra, "source_split": part, "caption_ids": [caption_id for caption_id, _ in chosen]}
                yield CaptionRow(row.image_id, row.image, [text for _, text in chosen], row.file, row.line, extra)


def read_split_lists(files: list[Path]) -> SplitLists:
    """Read the id lists that define Karpathy's split, in any format of `Coco.split_lists`.

    Raises:
        ValueError: a list has a different structure.
    """
    if len(files) == 1 and files[0].suffix in (".json", ".gz"):
        ids = read_json(files[0])
        if not isinstance(ids, dict) or not {"val", "test"} <= set(ids):
            raise ValueError(f'{files[0]} is not a split list: expected {{"val": [image ids], "test": [image ids]}}.')
        return SplitLists({part: set(ids[part]) for part in ("val", "test")}, "cocoid")
    if all(file.suffix == ".npy" for file in files):
        kind, column = "_ids.npy", "caption_ids"
    else:
        kind, column = ".txt", "file_name"
    parts: dict[str, Collection[Any]] = {}
    for part, names in LIST_NAMES.items():
        for file in files:
            if file.name in [f"coco_{name}{kind}" for name in names]:
                parts[part] = set(np.load(file).tolist() if kind == "_ids.npy" else file.read_text().split())
    return SplitLists(parts, column)
