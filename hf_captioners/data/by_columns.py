"""`by_columns`: every data set that `datasets.load_dataset` opens, by its image and caption columns.

    load_captions("by_columns", path="owner/name", image_column="image", caption_columns=["caption"])
    load_captions("by_columns", path="webdataset", data_files={"train": "shards/*.tar"}, image_column="jpg",
                  caption_columns=["txt"], streaming=True)
    load_captions("by_columns", path="parquet", data_dir="shards", image_column="image", caption_columns=["text"])

It reads data sets of the Hub, WebDataset shards and Parquet shards, also streamed, without copying them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow
import pyarrow.parquet
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    Image,
    IterableDataset,
    IterableDatasetDict,
    List,
    Value,
    concatenate_datasets,
    load_dataset,
)
from datasets.utils.file_utils import is_local_path

from .image_feature import with_allowed_formats
from .images import why_undecodable
from .reader import CaptionDatasets, HubDatasetReader
from .report import DataReport, ProblemKind, first_lines
from .schema import CAPTIONS, IMAGE, IMAGE_ID, SPLIT


@dataclass(kw_only=True)
class ByColumns(HubDatasetReader):
    """Reader that renames the columns of any data set to the schema.

    Attributes:
        path: a data set of the Hub, or a format that `datasets` knows: `webdataset`, `parquet`, `json`, ...
        config_name: configuration of the data set.
        data_files: files of this format, by split.
        revision: revision of the data set on the Hub.
        image_column: the column of images.
        caption_columns: the columns of captions, each a string or a list of strings.
        id_column: the column with a unique id per image; None: the split and the number of the row.
    """

    name: ClassVar[str] = "by_columns"

    path: str
    image_column: str
    caption_columns: Sequence[str]
    config_name: str | None = None
    data_files: Mapping[str, Any] | Sequence[str] | str | None = None
    revision: str | None = None
    id_column: str | None = None

    def load(
        self, split: str | None, streaming: bool, strict: bool, report: DataReport, cache_dir: str | Path | None
    ) -> CaptionDatasets:
        """Load a data set, and rename, gather and check its columns.

        Raises:
            ValueError: a column is missing, or no row has an image and a caption.
            BadRowsError: a row lacks its image or captions and `strict` is set.
        """
        report.begin(f"{self.name} {self.path}")
        with self._named():
            loaded = load_dataset(
                self.path,
                self.config_name,
                data_dir=None if self.data_dir is None else str(self.data_dir),
                data_files=self.data_files,
                revision=self.revision,
                split=split,
                streaming=streaming,
                cache_dir=None if cache_dir is None else str(cache_dir),
            )
        if isinstance(loaded, (Dataset, IterableDataset)):
            return self._of_split(loaded, str(split), strict, report)
        renamed = {name: self._of_split(part, name, strict, report) for name, part in loaded.items()}
        return IterableDatasetDict(renamed) if streaming else DatasetDict(renamed)

    @property
    def _place(self) -> str:
        """Files, folder or name of the data set, for messages."""
        return str(self.data_files or self.data_dir or self.path)

    def _of_split(
        self, dataset: Dataset | IterableDataset, split: str, strict: bool, report: DataReport
    ) -> Dataset | IterableDataset:
        rows = self._to_schema(dataset, split, strict, report)
        advice = "" if self.check_images else " (`check_images=True` reports such rows and leaves them out)"
        return with_allowed_formats(rows, f"the split {split!r} of {self._place}{advice}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Context manager that adds source and, if known, file to errors of `datasets`, which often lack both."""
        try:
            yield
        except (FileNotFoundError, ConnectionError):
            raise
        except Exception as error:  # a source may use any library
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            damaged = _damaged_parquet(self.data_dir)
            reason = damaged or f"{type(cause).__name__}: {str(cause)[:300]}".replace("\n", " ").rstrip(". ")
            raise ValueError(f"{self._place} cannot be loaded as {self.path!r}: {reason}.") from error

    def _to_schema(
        self, dataset: Dataset | IterableDataset, split: str, strict: bool, report: DataReport
    ) -> Dataset | IterableDataset:
        features: Mapping[str, Any] = dataset.features or next(iter(dataset.take(1)), {})
        required = [self.image_column, *self.caption_columns, *([self.id_column] if self.id_column else [])]
        if missing := [column for column in required if column not in features]:
            raise ValueError(f"{self.path!r} has no column {', '.join(missing)}; it has {', '.join(features)}.")
        if isinstance(dataset, IterableDataset):
            return self._streamed(dataset, split, strict, report)
        return self._stored(dataset, split, strict, report)

    def _renamed(self, dataset: Any) -> Any:
        """Rename the image column to `image`, and drop the caption columns and those with reserved names."""
        columns = list(dataset.features)
        unused = [name for name in columns if name in (*self.caption_columns, IMAGE_ID, CAPTIONS, SPLIT)]
        unused += [IMAGE] if self.image_column != IMAGE and IMAGE in columns else []
        dataset = dataset.remove_columns([name for name in dict.fromkeys(unused) if name != self.image_column])
        if self.image_column != IMAGE:
            dataset = dataset.rename_column(self.image_column, IMAGE)
        return dataset.cast_column(IMAGE, Image())

    def _stored(self, dataset: Dataset, split: str, strict: bool, report: DataReport) -> Dataset:
        captions = [
            _gathered(values) for values in zip(*(dataset[name][:] for name in self.caption_columns), strict=True)
        ]
        empty = dataset.with_format("arrow")[self.image_column][:].is_null().to_pylist()
        for number, (texts, none) in enumerate(zip(captions, empty, strict=True), 1):
            self._report(texts, none, split, number, report)
        kept = [index for index, (texts, none) in enumerate(zip(captions, empty, strict=True)) if texts and not none]
        if not kept:
            raise ValueError(f"No row of the split {split!r} of {self.path!r} has an image and a caption.")
        ids = dataset[self.id_column][:] if self.id_column else range(len(dataset))
        if self.check_images:
            images = dataset.select_columns([self.image_column]).cast_column(self.image_column, Image(decode=False))
            kept = [
                index
                for index in kept
                if self._is_readable(
                    images[index][self.image_column], self._id(split, ids[index]), split, index + 1, report
                )
            ]
        if strict:
            report.raise_if_bad()
        if not kept:
            raise ValueError(
                f"The split {split!r} of {self._place} has no image that can be read (of {len(dataset)}).\n"
                f"{first_lines(report.problems, 10)}"
            )
        added = Dataset.from_dict(
            {IMAGE_ID: [self._id(split, value) for value in ids], CAPTIONS: captions, SPLIT: [split] * len(captions)},
            features=_ADDED,
        )
        report.kept[split] += len(kept)
        # Columns are joined and rows selected by index, so images are not written again.
        whole = concatenate_datasets([self._renamed(dataset), added], axis=1)
        return whole if len(kept) == len(whole) else whole.select(kept)

    def _streamed(self, dataset: IterableDataset, split: str, strict: bool, report: DataReport) -> IterableDataset:
        if dataset.features is None:
            dataset = dataset._resolve_features()  # reads the first row
        features = Features({**self._renamed(dataset).features, **_ADDED})

        def add(row: dict[str, Any], index: int) -> dict[str, Any]:
            texts = _gathered([row[name] for name in self.caption_columns])
            value = row[self.id_column] if self.id_column else index
            image, name = row[self.image_column], self._id(split, value)
            self._report(texts, image is None, split, index + 1, report)
            usable = bool(texts) and image is not None
            if usable and self.check_images and not self._is_readable(image, name, split, index + 1, report):
                image, usable = None, False
            if strict:
                report.raise_if_bad()
            report.kept[split] += usable
            others = {name: row[name] for name in features if name in row and name not in _ADDED and name != IMAGE}
            return {IMAGE: image, **others, IMAGE_ID: name, CAPTIONS: texts, SPLIT: split}

        raw = dataset.cast_column(self.image_column, Image(decode=False))
        mapped = raw.map(add, with_indices=True, remove_columns=list(raw.features))
        usable = mapped.filter(lambda row: row[CAPTIONS] and row[IMAGE] is not None)
        return usable.cast(features)  # images are decoded here, after bad rows are removed

    def _id(self, split: str, value: Any) -> str:
        return str(value) if self.id_column else f"{split}-{value:09d}"

    def _is_readable(self, image: dict[str, Any], name: str, split: str, number: int, report: DataReport) -> bool:
        """Return whether an image can be decoded or is on another machine; report an unreadable image."""
        if image["bytes"] is None and image["path"] is not None and not is_local_path(image["path"]):
            return True
        reason = why_undecodable(image)
        if reason is not None:
            place = f"{image['path'] or 'the image'} of the row {name!r}: {reason}"
            report.add(ProblemKind.UNREADABLE_IMAGE, f"{self.path}/{split}", number, place)
        return reason is None

    def _report(self, captions: list[str], no_image: bool, split: str, number: int, report: DataReport) -> None:
        if no_image:
            report.add(ProblemKind.MISSING_IMAGE, f"{self.path}/{split}", number, f"{self.image_column!r} is empty")
        if not captions:
            columns = ", ".join(self.caption_columns)
            report.add(ProblemKind.MISSING_CAPTION, f"{self.path}/{split}", number, f"no text in {columns}")


_ADDED = Features({IMAGE_ID: Value("string"), CAPTIONS: List(Value("string")), SPLIT: Value("string")})


def _damaged_parquet(folder: Path | None) -> str | None:
    """Return what is wrong with the first unreadable Parquet file of a folder; None if all are readable."""
    for path in [] if folder is None else sorted(folder.rglob("*.parquet")):
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                for _ in file.iter_batches():
                    pass
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            return f"{path} cannot be read as Parquet ({str(error)[:300].strip()})"
    return None


def _gathered(values: Sequence[Any]) -> list[str]:
    """Flatten strings and lists of strings to one list, without empty strings."""
    flat = [text for value in values for text in (value if isinstance(value, (list, tuple)) else [value])]
    return [text for text in flat if isinstance(text, str) and text.strip()]
