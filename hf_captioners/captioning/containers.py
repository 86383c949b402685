"""Images inside other files: tar shards, Parquet files, data sets on disk and of the Hub.

Such an image has the name of its container and its place there, as if the container were a folder:
`shards/0001.tar/000017.jpg`, `photos.parquet/17` (the row, from 0), `my_data/train/17`,
`hf://datasets/owner/name/data/train.parquet/17`.
"""

import bisect
import io
import json
import os
import re
import struct
import tarfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from hf_captioners.data.images import IMAGE_SUFFIXES, is_image_name, visible_files
from hf_captioners.image_names import FolderNames, ImageNames, path_form

TAR, PARQUET = ".tar", ".parquet"
CONTAINER_KINDS = (TAR, PARQUET)
SAVED_FILE = "state.json"  # of `Dataset.save_to_disk`; each split of a `DatasetDict` has one in its folder
IMAGE_COLUMN = "image"
HUB_PREFIX = "hf://datasets/"
HUB_NAME = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<path>.*))?")
EXPANDED_FLOOR = 64 * 2**20  # bytes that the images of a row group may decompress to, whatever the size of the file
EXPANDED_RATIO = 32  # or this many times the bytes of the file
OPEN_CONTAINERS = 8  # whose tables of contents a process keeps; images are read container by container


class NamedBytes(io.BytesIO):
    """The bytes of an image file with the name that messages say.

    Args:
        content: the bytes.
        name: the name of the image.
    """

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class Container(Protocol):
    """Protocol of a tar file, Parquet file or saved data set whose images are read in place."""

    def places(self) -> Iterator[str]:
        """Yield the place of each image in the container: its file name in a tar file, its row number elsewhere."""

    def content(self, place: str) -> bytes | str:
        """Return the bytes or the path of an image.

        Raises:
            FileNotFoundError: there is no such place.
            ValueError: its content cannot be read.
        """


class TarShard:
    """A tar file of images, such as a shard of WebDataset; it is read in place, so it must not be compressed.

    Args:
        path: the file.

    Raises:
        ValueError: it is no tar file, is damaged, or has two images of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.members = path, dict[str, tuple[int, int]]()
        try:
            with tarfile.open(path, "r:") as file:
                members = [member for member in file if member.isfile() and is_image_name(member.name)]
        except (tarfile.TarError, EOFError, ValueError, OSError) as error:
            raise ValueError(
                f"{path} cannot be read as a tar file without compression: {error}. Copy it again, or decompress it."
            ) from error
        for member in members:
            name = path_form(f"/{member.name}")[1:]  # `..` leads nowhere
            if member.size < 0:
                raise ValueError(f"{path} is damaged: {name} is stated to have {member.size} bytes. Copy it again.")
            if name in self.members:
                raise ValueError(f"{path} has two images named {name}. Rename one of them, or pack the file again.")
            self.members[name] = (member.offset_data, member.size)
        self.names = ImageNames(self.members)

    def places(self) -> Iterator[str]:
        """Yield the names of the images, in the order of the file."""
        yield from self.members

    def content(self, place: str) -> bytes:
        """Return the bytes of an image."""
        name = self.names.find(place)
        if name is None:
            near = self.names.near(place)
            advice = f" Did you mean {near!r}? Upper and lower case differ." if near else ""
            raise FileNotFoundError(f"{self.path} has no image {place}.{advice}")
        offset, size = self.members[name]
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(size)


class ParquetImages:
    """A Parquet file with a column of images; see `image_column`.

    Args:
        path: the file.

    Raises:
        ValueError: it is no Parquet file, or has no such column.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as a Parquet file: {error}. Copy it again.") from error
        self.column = image_column(self.file.schema_arrow, path)
        sizes = [self.file.metadata.row_group(group).num_rows for group in range(self.file.num_row_groups)]
        self.ends = list(accumulate(sizes))
        self._check_sizes()
        self.batches: Iterator[Any] = iter(())  # of the row group that is read: images are read in order
        self.batch: Any = None
        self.first = -1  # number of the first row of the batch

    def _check_sizes(self) -> None:
        """Refuse row groups that decompress to far more than the file has."""
        size, metadata = self.path.stat().st_size, self.file.metadata
        most = max(EXPANDED_FLOOR, EXPANDED_RATIO * size)
        for group in range(self.file.num_row_groups):
            columns = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
            expanded = sum(one.total_uncompressed_size for one in columns if _is_of(self.column, one.path_in_schema))
            if expanded > most:
                raise ValueError(
                    f"{self.path} has {size:,} bytes, and its row group {group} decompresses to {expanded:,}, "
                    f"expected {most:,} at most. If the file is right, write it again with smaller row groups."
                )

    def places(self) -> Iterator[str]:
        """Yield the numbers of the rows."""
        yield from map(str, range(self.file.metadata.num_rows))

    def content(self, place: str) -> bytes | str:
        """Return the bytes or the path of the image of a row."""
        row = row_number(place, self.file.metadata.num_rows, self.path)
        try:
            self._read_to(row)
            value = self.batch.column(0)[row - self.first].as_py()
        except (pyarrow.ArrowException, OSError, StopIteration, IndexError) as error:
            self.batch = None
            reason = str(error) or "there are fewer rows than it states"
            raise ValueError(f"Rows of {self.path} cannot be read: {reason}. Copy it again.") from error
        return image_of_value(value, self.path, place)

    def _read_to(self, row: int) -> None:
        """Read on to the batch of a row, or begin its row group again: a batch is a row, which may be large."""
        group = bisect.bisect_right(self.ends, row)
        start = self.ends[group - 1] if group else 0
        if self.batch is None or not start <= self.first <= row:
            self.batches = self.file.iter_batches(1, [group], [self.column], use_threads=False)
            self.batch, self.first = next(self.batches), start
        while row >= self.first + len(self.batch):
            self.first += len(self.batch)
            self.batch = next(self.batches)


def _is_of(column: str, path: str) -> bool:
    """Return whether a column of a Parquet file is a top-level column, or a part of it."""
    return path == column or path.startswith(f"{column}.")


class SavedDataSet:
    """A data set that `datasets` saved to disk, with a column of images; see `image_column`.

    Args:
        path: its folder.

    Raises:
        ValueError: it has no such column, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        from datasets import load_from_disk

        self.path = path
        try:
            require_no_compression(path)
            rows = load_from_disk(str(path))
        except Exception as error:  # files that are damaged raise errors of many types
            raise ValueError(f"{path} cannot be read as a saved data set: {error}. Save it again.") from error
        column = image_column(rows.features.arrow_schema, path)
        self.rows = rows.select_columns([column]).with_format("arrow")

    def places(self) -> Iterator[str]:
        """Yield the numbers of the rows."""
        yield from map(str, range(len(self.rows)))

    def content(self, place: str) -> bytes | str:
        """Return the bytes or the path of the image of a row."""
        row = row_number(place, len(self.rows), self.path)
        return image_of_value(self.rows[row].column(0)[0].as_py(), self.path, place)


BATCHES, DICTIONARIES = 3, 2  # types of messages of Arrow


def require_no_compression(path: Path) -> None:
    """Check that the Arrow files of a data set can be mapped into memory: compressed ones expand as they are opened.

    Raises:
        ValueError: a record batch is compressed, which `datasets` never writes.
        OSError: a file cannot be read.
        ArrowException: a file is damaged.
    """
    state = json.loads((path / SAVED_FILE).read_bytes())
    for name in (one["filename"] for one in state["_data_files"]):
        with pyarrow.memory_map(os.path.join(path, name)) as file:
            for message in pyarrow.ipc.MessageReader.open_stream(file):
                if is_compressed(message.metadata.to_pybytes()):
                    raise ValueError(f"{name} is compressed, which `Dataset.save_to_disk` never does")


def is_compressed(metadata: bytes) -> bool:
    """Return whether a message of Arrow, a table of FlatBuffers, has a compressed record batch."""

    def field(table: int, number: int) -> int:
        """Return the place of a field of a table; 0 if it has none."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        at = 4 + 2 * number
        if at >= struct.unpack_from("<H", metadata, fields)[0]:
            return 0
        offset = struct.unpack_from("<H", metadata, fields + at)[0]
        return table + offset if offset else 0

    def target(place: int) -> int:
        return place + struct.unpack_from("<I", metadata, place)[0]

    message = target(0)
    kind, header = field(message, 1), field(message, 2)
    if not kind or not header or metadata[kind] not in (BATCHES, DICTIONARIES):
        return False
    batch = target(header)
    if metadata[kind] == DICTIONARIES:
        batch = target(field(batch, 1))
    return field(batch, 3) > 0


def image_column(schema: pyarrow.Schema, path: Path) -> str:
    """Return the column of images: `image`, or the only one of bytes or of `{"bytes", "path"}`.

    Raises:
        ValueError: there is none, or several.
    """
    found = [one.name for one in schema if _holds_images(one.type)]
    if IMAGE_COLUMN in found:
        return IMAGE_COLUMN
    if len(found) == 1:
        return found[0]
    raise ValueError(
        f"{path} has the columns {schema.names}, expected one of images (bytes, or a struct of bytes and path) named "
        f"`{IMAGE_COLUMN}`" + (f", and {' and '.join(found)} are such columns." if found else ".")
    )


def _holds_images(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)


def row_number(place: str, rows: int, path: Path) -> int:
    """Return the number of a row.

    Raises:
        FileNotFoundError: there is no such row.
    """
    if not (place.isdecimal() and int(place) < rows):
        raise FileNotFoundError(f"{path} has no row {place}, it has {rows:,}, counted from 0.")
    return int(place)


def image_of_value(value: Any, path: Path, place: str) -> bytes | str:
    """Return the bytes or the path in a cell of a column of images; a relative path begins at the table's folder.

    Raises:
        ValueError: it has neither, or a value of another type.
    """
    if isinstance(value, dict):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if value is None:
        raise ValueError(f"The row {place} of {path} has no image.")
    if not isinstance(value, (bytes, str)):
        raise ValueError(f"The row {place} of {path} has {value!r:.60} as its image, expected bytes or a path.")
    return os.path.join(path.parent, value) if isinstance(value, str) else value


@lru_cache(OPEN_CONTAINERS)
def open_container(path: Path) -> Container:
    """Open a container, which stays open for its next images.

    Raises:
        ValueError: it is damaged, or has no column of images.
    """
    kinds: dict[str, Callable[[Path], Container]] = {TAR: TarShard, PARQUET: ParquetImages}
    return kinds.get(path.suffix.lower(), SavedDataSet)(path)


def is_container(path: Path) -> bool:
    """Return whether a path is a tar shard, a Parquet file or a saved data set."""
    if path.suffix.lower() in CONTAINER_KINDS and path.is_file():
        return True
    return (path / SAVED_FILE).is_file()


def containers_in(folder: Path) -> list[Path]:
    """Return the tar files, Parquet files and saved data sets in a folder, searched recursively, sorted by path."""
    files = list(visible_files(folder))
    saved = {path.parent for path in files if path.name == SAVED_FILE}
    inside = {path for path in files if path.suffix.lower() in CONTAINER_KINDS and path.parent not in saved}
    return sorted(saved | inside)


def names_in(path: Path) -> list[str]:
    """Return the names of the images in a container.

    Raises:
        ValueError: it has none, is damaged, or has no column of images.
    """
    names = [f"{path}/{place}" for place in open_container(path).places()]
    if not names:
        raise ValueError(f"{path} has no images, expected files that end with {' '.join(sorted(IMAGE_SUFFIXES))}.")
    return names


def split_name(name: str) -> tuple[Path, str] | None:
    """Return the container and the place of the name of an image; None if it is not inside one."""
    if os.path.isfile(name):
        return None
    for folder in PurePosixPath(name).parents if os.sep == "/" else Path(name).parents:
        if is_container(Path(folder)):
            return Path(folder), type(folder)(name).relative_to(folder).as_posix()
    return None


def is_image_inside(name: str) -> bool:
    """Return whether a name is that of an image in a tar shard, whatever characters it has."""
    container = split_name(local_path(name))
    if container is None or container[0].suffix.lower() != TAR:
        return False
    shard = open_container(container[0])
    return isinstance(shard, TarShard) and shard.names.find(container[1]) is not None


def located(name: str) -> Any:
    """Return what `read_image` reads of the name of an image: a path, or the bytes of an image inside a container.

    Raises:
        FileNotFoundError: a container has no such image.
        ValueError: a container is damaged.
    """
    path = local_path(name)
    found = split_name(path)
    if found is None:
        if not os.path.exists(path) and (near := _near_in_case(*os.path.split(path))):
            raise FileNotFoundError(f"There is no image {name}. Did you mean {near!r}? Upper and lower case differ.")
        return path
    container, place = found
    content = open_container(container).content(place)
    return content if isinstance(content, str) else NamedBytes(content, name)


@lru_cache(OPEN_CONTAINERS)
def _names_in(folder: str, changed: int) -> FolderNames:
    return FolderNames(folder)


def _near_in_case(folder: str, name: str) -> str | None:
    """Return the name of a file that differs from that of a missing one in case only."""
    try:
        changed = os.stat(folder or ".").st_mtime_ns
    except OSError:
        return None
    return _names_in(folder, changed).near(name)


def local_path(name: str) -> str:
    """Return the path in the cache of a name on the Hub; any other name is unchanged."""
    if not name.startswith(HUB_PREFIX):
        return name
    address, path = hub_address(name)
    return os.path.join(hub_folder(address), path)


def hub_address(name: str) -> tuple[str, str]:
    """Return `hf://datasets/OWNER/NAME[@REVISION]` and the path in the repository.

    Raises:
        ValueError: the name is not of this form.
    """
    match = HUB_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no data set of the Hub, expected {HUB_PREFIX}OWNER/NAME[@REVISION][/FOLDER].")
    path = match["path"] or ""
    return name[: len(name) - len(path)].rstrip("/"), path.rstrip("/")


@lru_cache
def hub_folder(address: str) -> str:
    """Download the images, tar shards and Parquet files of a data set of the Hub; return their folder in the cache.

    Raises:
        OSError: the Hub cannot be reached, and the cache does not have it.
    """
    from huggingface_hub import snapshot_download

    match = HUB_NAME.fullmatch(address)
    assert match is not None
    endings = [*IMAGE_SUFFIXES, *CONTAINER_KINDS]
    patterns = [f"*{form}" for ending in endings for form in (ending, ending.upper())]
    return snapshot_download(match["repo"], repo_type="dataset", revision=match["revision"], allow_patterns=patterns)
