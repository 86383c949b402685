"""`flickr8k` and `flickr30k`: photographs with five captions each.

Hodosh, Young, Hockenmaier, "Framing Image Description as a Ranking Task", JAIR 47 (2013); Young et al., "From Image
Descriptions to Visual Denotations", TACL 2 (2014).

Files read from `data_dir`:

- `dataset_flickr8k.json` or `dataset_flickr30k.json`: Karpathy's split, complete in itself.
- the original token file (`Flickr8k.token.txt`, `results_20130124.token`; lines `name#k TAB caption`) with the lists
  `Flickr_8k.trainImages.txt`, `.devImages.txt`, `.testImages.txt`, or `train.txt`, `val.txt`, `test.txt`.

Images are searched in `image_dir`, or in `data_dir` and its usual folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from datasets import Features, List, Value

from hf_captioners.metrics.annotation_files import text_lines
from hf_captioners.metrics.caption_tables import NUMBERED

from .images import first_file
from .karpathy import KARPATHY_FEATURES, KARPATHY_SPLITS, read_karpathy
from .reader import Annotations, SourceCard
from .references import ReferenceReader
from .report import DataReport, ProblemKind
from .schema import CaptionRow

IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")
LISTS = {
    "train": ("*trainImages.txt", "train.txt"),
    "validation": ("*devImages.txt", "val.txt", "dev.txt"),
    "test": ("*testImages.txt", "test.txt"),
}
TOKEN_FEATURES = Features({"file_name": Value("string"), "caption_ids": List(Value("int64"))})


@dataclass(kw_only=True)
class Flickr(ReferenceReader):
    """Reader of Flickr8k or Flickr30k.

    Attributes:
        token_file: name of the token file in `data_dir`; None finds it by its usual name.
        max_captions: keep at most this many references per image; None keeps all.
        row_per_caption: one row per caption.
        image_dir: folder of the images.
        with_images: False loads captions only (`image` is None).
    """

    token_file: str | None = None

    def _split_file(self) -> Path | None:
        places = [self.folder / f"dataset_{self.name}.json{end}" for end in ("", ".gz")]
        return None if self.token_file else next((path for path in places if path.is_file()), None)

    def _tokens(self) -> Path:
        patterns = (self.token_file,) if self.token_file else ("*.token*", "results.csv.token")
        paths = [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths)
            raise FileNotFoundError(
                f"{self.folder} has no dataset_{self.name}.json and "
                f"{f'several token files ({names})' if paths else 'no token file such as Flickr8k.token.txt'}. "
                "Pass `token_file='...'`."
            )
        return paths[0]

    def _lists(self) -> dict[str, Path]:
        lists = {
            split: path
            for split, patterns in LISTS.items()
            for pattern in reversed(patterns)
            for path in self.folder.glob(pattern)
        }
        if not lists:
            expected = ", ".join(patterns[0] for patterns in LISTS.values())
            raise FileNotFoundError(f"{self.folder} has no lists of images: expected {expected}.")
        return lists

    def annotation_files(self) -> list[Path]:
        """Return the split file, or the caption file and the split lists."""
        split_file = self._split_file()
        return [split_file] if split_file else [self._tokens(), *self._lists().values()]

    def image_places(self) -> Iterable[Path]:
        """Return the image folders."""
        if self.with_images:
            yield from self._image_roots()

    def _image_roots(self) -> list[Path]:
        if self.image_dir is not None:
            return [Path(self.image_dir)]
        return [self.folder, *(path for name in IMAGE_FOLDERS if (path := self.folder / name).is_dir())]

    def _image(self, folder: str, name: str) -> str | None:
        if not self.with_images:
            return None
        candidates = [root / folder / name for root in reversed(self._image_roots())]
        return first_file(candidates)

    def read(self, report: DataReport) -> Annotations:
        """Read images and captions, and assign them to splits."""
        split_file = self._split_file()
        splits: dict[str, list[CaptionRow]] = {split: [] for split in LISTS}
        if split_file:
            for row in read_karpathy(split_file, self._image, report):
                part = row.extra["source_split"]
                if part not in KARPATHY_SPLITS:
                    message = f"the split is {part!r}; expected one of {', '.join(KARPATHY_SPLITS)}"
                    report.add(ProblemKind.MALFORMED_ROW, row.file, row.line, message)
                else:
                    splits[KARPATHY_SPLITS[part]].append(row)
        else:
            by_name = self._token_rows(report)
            for split, path in self._lists().items():
                splits[split] = list(_listed(path, by_name, report))
        shaped = {split: list(self.shaped(rows)) for split, rows in splits.items()}
        extra = KARPATHY_FEATURES if split_file else TOKEN_FEATURES
        return Annotations({split: rows for split, rows in shaped.items() if rows}, extra)

    def _token_rows(self, report: DataReport) -> dict[str, CaptionRow]:
        path = self._tokens()
        rows: dict[str, CaptionRow] = {}
        for line, text in text_lines(path, report):
            text = text.rstrip("\r\n")
            found = NUMBERED.match(text)
            if found is None:
                if text.strip():
                    report.add(ProblemKind.MALFORMED_ROW, path, line, f"expected `name#k TAB caption`: {text[:80]!r}")
                continue
            name, caption = found["name"], found["caption"]
            if not caption.strip():
                report.add(ProblemKind.MISSING_CAPTION, path, line, f"{name} has an empty caption")
                continue
            if name not in rows:
                extra: dict[str, Any] = {"file_name": name, "caption_ids": []}
                rows[name] = CaptionRow(name, self._image("", name), [], str(path), line, extra)
            rows[name].captions.append(caption)
            rows[name].extra["caption_ids"].append(line - 1)
        return rows


def _listed(path: Path, by_name: dict[str, CaptionRow], report: DataReport) -> Iterator[CaptionRow]:
    """Return the images of a split list, in its order; unlisted images belong to no split."""
    for line, text in text_lines(path, report):
        name = text.strip()
        row = by_name.get(name) or by_name.get(f"{name}.jpg")
        if row is not None:
            yield row
        elif name:
            report.add(ProblemKind.MISSING_CAPTION, path, line, f"{name} has no caption in the token file")


class Flickr8k(Flickr):
    """Reader of Flickr8k: 6,000 training, 1,000 validation and 1,000 test photographs."""

    name: ClassVar[str] = "flickr8k"
    card: ClassVar[SourceCard] = SourceCard(
        "8,000 photographs of people and dogs in action with five captions each.",
        "Hodosh, Young, Hockenmaier. Framing Image Description as a Ranking Task. JAIR 47, 2013.",
        "images: their Flickr authors' own; non-commercial research and education",
    )


class Flickr30k(Flickr):
    """Reader of Flickr30k: 31,014 photographs; Karpathy's split has 1,014 for validation and 1,000 for test."""

    name: ClassVar[str] = "flickr30k"
    card: ClassVar[SourceCard] = SourceCard(
        "31,014 photographs of everyday scenes with five captions each.",
        "Young et al. From Image Descriptions to Visual Denotations. TACL 2, 2014.",
        "images: their Flickr authors' own; non-commercial research and education",
    )
