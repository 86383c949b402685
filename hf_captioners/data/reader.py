"""What every data set's reader offers; one reader a file, found through `load_captions`."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias, overload

from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict

from .report import DataReport
from .schema import CaptionRow

CaptionDatasets: TypeAlias = Dataset | DatasetDict | IterableDataset | IterableDatasetDict


@dataclass(frozen=True)
class SourceCard:
    """What a data card says of a source: description, citation, licence and address."""

    description: str = ""
    citation: str = ""
    licence: str = ""
    homepage: str = ""


class LazyRows(abc.ABC, Sequence[CaptionRow]):
    """Rows that are made when they are asked for, so that millions of them, or their images, need no memory."""

    @abc.abstractmethod
    def row(self, index: int) -> CaptionRow:
        """Make one row."""

    @overload
    def __getitem__(self, index: int) -> CaptionRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CaptionRow]: ...
    def __getitem__(self, index: int | slice) -> CaptionRow | Sequence[CaptionRow]:
        if isinstance(index, slice):
            return [self.row(place) for place in range(*index.indices(len(self)))]
        return self.row(index)


@dataclass
class Annotations:
    """What a reader found.

    Attributes:
        splits: the rows of each split, in order: a list, or `LazyRows`.
        extra: features of the source's own columns.
        views: whether rows hold lists of images.
        expected: how many rows splits must have in the end, where a protocol says so; fewer or more is an error.
    """

    splits: Mapping[str, Sequence[CaptionRow]]
    extra: Features = field(default_factory=Features)
    views: bool = False
    expected: Mapping[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class CaptionReader(abc.ABC):
    """Reads one kind of data set. The fields of a reader are the options of `load_captions`.

    Attributes:
        generation: class attribute; how captions of this kind are decoded (`max_new_tokens`, `num_beams`) where the
            usual limits would cut them.
        data_dir: the folder of the data set.
        check_images: whether every image is decoded once to find truncated and corrupt ones (about 1 ms an
            image; remembered until a file changes). Missing images are found in any case.
    """

    name: ClassVar[str]
    card: ClassVar[SourceCard] = SourceCard()
    generation: ClassVar[Mapping[str, int]] = {}

    data_dir: Path | None = None
    check_images: bool = False

    def __post_init__(self) -> None:
        """Make a path of the folder and see that it is there."""
        if self.data_dir is not None:
            self.data_dir = Path(self.data_dir).expanduser()

    @property
    def folder(self) -> Path:
        """The folder of the data set.

        Raises:
            ValueError: no folder was given.
            FileNotFoundError: there is no such folder.
        """
        if self.data_dir is None:
            raise ValueError(f"`load_captions({self.name!r})` needs the folder of the data: pass data_dir=...")
        if not self.data_dir.is_dir():
            raise FileNotFoundError(f"There is no folder {self.data_dir} (`data_dir` of {self.name!r}).")
        return self.data_dir

    @abc.abstractmethod
    def annotation_files(self) -> Iterable[Path]:
        """Return the files whose contents decide about the rows; an edit of one of them makes a new data set."""

    def image_places(self) -> Iterable[Path]:
        """Return the files and folders of images; a changed size, time or name makes a new data set."""
        return ()

    @abc.abstractmethod
    def read(self, report: DataReport) -> Annotations:
        """Read the annotations; note bad rows in the report. Images are looked at later, by the builder."""


@dataclass(kw_only=True)
class HubDatasetReader(abc.ABC):
    """A data set that `datasets` itself opens and that only has to be brought into the schema.

    Attributes:
        data_dir: a folder, where that makes sense.
    """

    name: ClassVar[str]

    data_dir: Path | None = None

    @abc.abstractmethod
    def load(
        self, split: str | None, streaming: bool, strict: bool, report: DataReport, cache_dir: str | Path | None
    ) -> CaptionDatasets:
        """Load it; arguments and result as those of `load_captions`."""
