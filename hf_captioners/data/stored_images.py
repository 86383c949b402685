"""`containers`: images with captions inside tar shards (WebDataset), Parquet and Arrow files, and saved data sets.

    shards/train-0000.tar            000017.jpg 000017.txt 000018.jpg 000018.json ...
    data/train-00000-of-00002.parquet   columns image, caption
    saved/train/state.json           written by `save_to_disk`

A column `split` states the split of a row, or else the name of a folder or the beginning of a file's name does; all
others are `train`. Images are read in place, and copied into the cache of `datasets` unless the data set is streamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from datasets import Features, Value
from datasets.features.features import generate_from_arrow_type

from hf_captioners.names import listed

from .container_rows import ContainerRow, is_plain, schema_of, table_rows, tar_rows
from .containers import CONTAINER_KINDS, TarShard, containers_in, is_container, open_container
from .folder_tables import SPLIT_NAMES, SPLIT_ORDER
from .reader import Annotations, CaptionReader, LazyRows, SourceCard
from .report import DataReport, ProblemKind
from .schema import IMAGE_ID, SCHEMA_COLUMNS, SPLIT, CaptionRow, storable

FILE_NAME = "file_name"


@dataclass(slots=True)
class StoredImage:
    """An image in a container file that is read later.

    Attributes:
        container: the container.
        place: its place there.
        image_id: see `CaptionRow`.
        captions: its captions.
        line: number of its row, from 1.
        extra: values of other columns.
    """

    container: Path
    place: str
    image_id: str
    captions: list[str]
    line: int
    extra: dict[str, Any] = field(default_factory=dict)


class StoredRows(LazyRows):
    """Rows whose images are read from container files on access.

    Args:
        images: the images.
        image_column: see `Containers`.
    """

    def __init__(self, images: Sequence[StoredImage], image_column: str | None) -> None:
        self.images, self.image_column = images, image_column

    def __len__(self) -> int:
        return len(self.images)

    def row(self, index: int) -> CaptionRow:
        """Read the image of a row; for an unreadable image, the reason is the row's `fault`."""
        image = self.images[index]
        make = partial(CaptionRow, image.image_id, captions=image.captions, file=str(image.container))
        try:
            content = open_container(image.container, self.image_column).content(image.place)
        except (ValueError, OSError) as error:
            return make(image=None, line=image.line, extra=image.extra, fault=str(error))
        stored = content if isinstance(content, str) else {"bytes": content, "path": image.place}
        return make(image=stored, line=image.line, extra=image.extra)


@dataclass(kw_only=True)
class Containers(CaptionReader):
    """Reader of captioned images in container files.

    Attributes:
        files: names of the containers in the folder; None: all in it and in folders below it.
        image_column: the column of images, of all but tar shards; None finds it.
        caption_columns: the columns of captions; of tar shards, endings of text files or keys of `.json` files. None
            finds usual names, or the only column of texts.
        check_images: decode every image once to find unreadable ones.
    """

    name: ClassVar[str] = "containers"
    card: ClassVar[SourceCard] = SourceCard("Images and captions of tar shards, Parquet or Arrow files.")

    files: Sequence[str] | None = None
    image_column: str | None = None
    caption_columns: Sequence[str] | None = None
    check_images: bool = True

    def __post_init__(self) -> None:
        """Convert single column names to lists."""
        super().__post_init__()
        if isinstance(self.caption_columns, str):
            self.caption_columns = [self.caption_columns]
        if isinstance(self.files, str):
            self.files = [self.files]

    def paths(self) -> list[Path]:
        """Return the container files.

        Raises:
            FileNotFoundError: there is none.
            UnsafeFileError: one is a symbolic link that leads out of the folder.
        """
        if self.files is not None:
            paths = [self.folder / name for name in self.files]
            if missing := next((path for path in paths if not is_container(path)), None):
                raise FileNotFoundError(f"There is no tar shard, Parquet or Arrow file, or saved data set {missing}.")
        else:
            paths = containers_in(self.folder)
        if not paths:
            raise FileNotFoundError(
                f"{self.folder} has no files that end in {listed(CONTAINER_KINDS)}, and no saved data set."
            )
        for path in paths:
            self.require_link_inside(path)
        return paths

    def annotation_files(self) -> Iterable[Path]:
        """Return no files: containers are compared by size and time like images, because they are large."""
        return ()

    def image_places(self) -> Iterable[Path]:
        """Return the container files."""
        return self.paths()

    def read(self, report: DataReport) -> Annotations:
        """Read the captions of all containers, and sort the images by split."""
        splits: dict[str, dict[str, StoredImage]] = {}
        features: Features | None = None
        for path in self.paths():
            with report.whole(path):
                container: Any = open_container(path, self.image_column)
                if isinstance(container, TarShard):
                    rows, columns = tar_rows(container, self.caption_columns), Features()
                else:
                    rows = table_rows(container, self.caption_columns)
                    columns = _extra_columns(container)
                for number, row in enumerate(rows, 1):
                    self._add(row, number, path, splits, report)
                shared = columns if features is None else {k: v for k, v in columns.items() if features.get(k) == v}
                features = Features(shared)
        ordered = sorted(splits, key=lambda name: ((*SPLIT_ORDER, name).index(name), name))
        extra = Features({FILE_NAME: Value("string"), **(features or {})})
        for image in (image for images in splits.values() for image in images.values()):
            image.extra = {name: storable(image.extra.get(name)) for name in extra}
        return Annotations(
            {split: StoredRows(list(splits[split].values()), self.image_column) for split in ordered}, extra
        )

    def _add(
        self, row: ContainerRow, number: int, path: Path, splits: dict[str, dict[str, StoredImage]], report: DataReport
    ) -> None:
        """Add a row to its split; rows with one caption and the same `image_id` are merged to one image."""
        values = [container for value in row.captions for container in (value if isinstance(value, list) else [value])]
        captions = [text for text in values if isinstance(text, str) and text.strip() and storable(text) == text]
        if not captions:
            report.add(
                ProblemKind.MISSING_CAPTION, path, number, f"expected text for {row.place}, found {values!r:.80}"
            )
            return
        name = self._name(path, row.place)
        split = row.columns.get(SPLIT)
        split = split_of(path.relative_to(self.folder)) if split is None else str(split)
        split = SPLIT_NAMES.get(split.lower(), split)
        if not re.fullmatch(r"\w+(\.\w+)*", split):
            message = f"the split is {split[:60]!r}; expected letters, digits and `_`"
            report.add(ProblemKind.MALFORMED_ROW, path, number, message)
            return
        image_id = name if row.columns.get(IMAGE_ID) is None else str(row.columns[IMAGE_ID])
        images = splits.setdefault(split, {})
        earlier = images.get(image_id)
        if earlier is None:
            extra = {FILE_NAME: name, **{key: value for key, value in row.columns.items() if key not in NOT_EXTRA}}
            images[image_id] = StoredImage(path, row.place, image_id, captions, number, extra)
        elif len(values) == 1:
            earlier.captions += captions
        else:
            message = f"the image_id {image_id!r} is in row {earlier.line} of {earlier.container} already"
            report.add(ProblemKind.DUPLICATE, path, number, message)

    def _name(self, path: Path, place: str) -> str:
        folder = path.relative_to(self.folder).as_posix()
        return place if folder == "." else f"{folder}/{place}"


NOT_EXTRA = frozenset((*SCHEMA_COLUMNS, FILE_NAME))


def _extra_columns(container: Any) -> Features:
    schema = schema_of(container)
    plain = [field for field in schema if is_plain(field.type) and field.name not in NOT_EXTRA]
    return Features({field.name: generate_from_arrow_type(field.type) for field in plain})


def split_of(path: Path) -> str:
    """Return the split named by a folder or by the start of a file name: `data/train-00000.parquet`."""
    for part in path.parts:
        for word in (part, *re.split(r"[-_.]", part)):
            if word.lower() in SPLIT_NAMES:
                return SPLIT_NAMES[word.lower()]
    return "train"
