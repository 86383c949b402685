"""Interface of data set readers; one reader per file, selected by `load_captions`."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias, overload

from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict

from hf_captioners.output_files import require_link_inside

from .report import DataReport
from .schema import CaptionRow

CaptionDatasets: TypeAlias = Dataset | DatasetDict | IterableDataset | IterableDatasetDict


@dataclass(frozen=True)
class SourceCard:
    """Description, citation, licence and URL of a data source, for cards."""

    description: str = ""
    citation: str = ""
    licence: str = ""
    homepage: str = ""


class LazyRows(abc.ABC, Sequence[CaptionRow]):
    """Sequence whose rows are made on access, to save memory with millions of rows or images."""

    @abc.abstractmethod
    def row(self, index: int) -> CaptionRow:
        """Make the row at an index."""

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
    """Annotations of a data set: the rows of each split.

    Attributes:
        splits: the rows of each split, in order: a list, or `LazyRows`.
        extra: features of the additional columns of the source.
        views: whether rows have lists of images.
        expected: number of rows of splits, if a protocol defines it; a different number raises.
    """

    splits: Mapping[str, Sequence[CaptionRow]]
    extra: Features = field(default_factory=Features)
    views: bool = False
    expected: Mapping[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class CaptionReader(abc.ABC):
    """Reader of one data set format; its fields are the options of `load_captions`.

    Attributes:
        generation: class attribute; data-set-specific generation defaults (`max_new_tokens`, `num_beams`), if the
            usual limits would truncate captions.
        scored_by: class attribute; column by whose values `evaluate` scores captions too, if published results do.
        data_dir: the folder of the data set.
        follow_links: whether tables and text files may be symbolic links that lead out of the folder. Images may, and
            links into the `blobs` of a Hub cache.
        check_images: whether to decode every image once to find truncated and corrupt ones (about 1 ms per image;
            repeated only when a file changes). Missing images are always found.
    """

    name: ClassVar[str]
    card: ClassVar[SourceCard] = SourceCard()
    generation: ClassVar[Mapping[str, int]] = {}
    scored_by: ClassVar[str | None] = None

    data_dir: Path | None = None
    follow_links: bool = False
    check_images: bool = False

    def __post_init__(self) -> None:
        """Expand `~` in the folder's path."""
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

    def require_link_inside(self, file: Path) -> None:
        """Check that an annotation file lies inside the folder, links followed, before it is read.

        Raises:
            UnsafeFileError: it is a symbolic link that leads out of the folder. A file that an option names elsewhere
                is none.
        """
        if self.data_dir is not None and file.is_relative_to(self.data_dir) and ".." not in file.parts:
            require_link_inside(file, self.data_dir, self.follow_links)

    @abc.abstractmethod
    def annotation_files(self) -> Iterable[Path]:
        """Return the files whose contents determine the rows; editing one causes a rebuild."""

    def image_places(self) -> Iterable[Path]:
        """Return image files and folders; a changed size, time or name causes a rebuild."""
        return ()

    @abc.abstractmethod
    def read(self, report: DataReport) -> Annotations:
        """Read the annotations; report bad rows. The builder checks images later."""


@dataclass(kw_only=True)
class HubDatasetReader(abc.ABC):
    """Base class for readers of data sets that `datasets` opens, whose columns are mapped to the schema.

    Attributes:
        data_dir: the folder of the data set, if it has one.
        check_images: whether to decode every image at each load (about 1 ms per image), and leave out and report the
            rows of those that cannot be read; of a stream, as rows are read. Images on other machines are not checked.
    """

    name: ClassVar[str]

    data_dir: Path | None = None
    check_images: bool = False

    @abc.abstractmethod
    def load(
        self, split: str | None, streaming: bool, strict: bool, report: DataReport, cache_dir: str | Path | None
    ) -> CaptionDatasets:
        """Load the data set; arguments and result as in `load_captions`."""
