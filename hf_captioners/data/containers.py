"""Images inside container files: tar shards, Parquet and Arrow files, data sets on disk and on the Hub.

Such an image has the name of its container and its place there, as if the container were a folder:
`shards/0001.tar/000017.jpg`, `photos.parquet/17` (the row, from 0), `my_data/train/17`,
`hf://datasets/owner/name/data/train.parquet/17`.
"""

import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from hf_captioners.image_names import FolderNames, ImageNames, path_form
from hf_captioners.output_files import MAX_TEXT_BYTES

from .images import IMAGE_SUFFIXES, SAVED_FILE, is_image_name, visible_files

TAR, PARQUET, ARROW = ".tar", ".parquet", ".arrow"
CONTAINER_KINDS = (TAR, PARQUET, ARROW)
TEXT_ENDINGS = ("txt", "caption", "json")  # of files in a tar shard that belong to the image of the same name
HUB_PREFIX = "hf://datasets/"
HUB_NAME = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<path>.*))?")
OPEN_CONTAINERS = 8  # whose tables of contents a process keeps; images are read container by container


class NamedBytes(io.BytesIO):
    """Bytes of an image file, with a name for messages.

    Args:
        content: the bytes.
        name: the name of the image.
    """

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class Container(Protocol):
    """Protocol for tar files, Parquet files and saved data sets from which images are read in place."""

    def places(self) -> Iterator[str]:
        """Yield the place of each image in the container: a file name in tar files, a row number elsewhere."""

    def content(self, place: str) -> bytes | str:
        """Return the bytes or path of an image.

        Raises:
            FileNotFoundError: there is no such place.
            ValueError: its content cannot be read.
        """


class TarShard:
    """Tar file of images, such as a WebDataset shard; uncompressed, because images are read in place.

    Args:
        path: the file.

    Raises:
        ValueError: it is no tar file, is damaged, or has two images of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.members = path, dict[str, tuple[int, int]]()
        self.texts: dict[str, dict[str, tuple[int, int]]] = {}  # by the key of the image and the ending
        try:
            with tarfile.open(path, "r:") as file:
                files = [member for member in file if member.isfile()]
        except (tarfile.TarError, EOFError, ValueError, OSError) as error:
            raise ValueError(
                f"{path} cannot be read as a tar file without compression: {error}. Copy it again, or decompress it."
            ) from error
        for member in files:
            if member.size < 0:
                raise ValueError(
                    f"{path} is damaged: {member.name} is stated to have {member.size} bytes. Copy it again."
                )
            key, ending = sample_key(member.name)
            if ending in TEXT_ENDINGS:
                self.texts.setdefault(key, {})[ending] = (member.offset_data, member.size)
            if not is_image_name(member.name):
                continue
            name = path_form(f"/{member.name}")[1:]  # `..` leads nowhere
            if name in self.members:
                raise ValueError(f"{path} has two images named {name}. Rename one of them, or pack the file again.")
            self.members[name] = (member.offset_data, member.size)
        self.names = ImageNames(self.members)

    def places(self) -> Iterator[str]:
        """Yield the names of the images, in file order."""
        yield from self.members

    def content(self, place: str) -> bytes:
        """Return the bytes of an image."""
        name = self.names.find(place)
        if name is None:
            near = self.names.near(place)
            advice = f" Did you mean {near!r}? Upper and lower case differ." if near else ""
            raise FileNotFoundError(f"{self.path} has no image {place}.{advice}")
        return self._bytes(*self.members[name])

    def texts_of(self, place: str) -> dict[str, bytes]:
        """Return the texts of an image's sample by file ending: `txt`, `caption` and `json`.

        Raises:
            ValueError: a text is too long.
        """
        texts = self.texts.get(sample_key(place)[0], {})
        if long := next((ending for ending, (_, size) in texts.items() if size > MAX_TEXT_BYTES), None):
            raise ValueError(f"the text .{long} of {place} in {self.path} has more than {MAX_TEXT_BYTES:,} bytes")
        return {ending: self._bytes(*where) for ending, where in texts.items()}

    def _bytes(self, offset: int, size: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(size)


def sample_key(name: str) -> tuple[str, str]:
    """Return the stem of a file name in a tar shard, common to a sample's files, and the lower-case ending.

    As in WebDataset, the ending begins at the first dot of the last part.
    """
    name = path_form(f"/{name}")[1:]
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def open_container(path: Path, column: str | None = None) -> Container:
    """Open a container file; the opened file is cached until it changes on disk.

    Args:
        path: the file, or the folder of a saved data set.
        column: the column of images. None: it is found.

    Raises:
        ValueError: it is damaged, or has no column of images.
    """
    state = os.stat(path / SAVED_FILE if path.is_dir() else path)
    return _opened(path, column, (state.st_size, state.st_mtime_ns, state.st_ino))


@lru_cache(OPEN_CONTAINERS)
def _opened(path: Path, column: str | None, state: tuple[int, ...]) -> Container:
    kind = path.suffix.lower()
    if kind == TAR and not path.is_dir():
        return TarShard(path)
    from .arrow_containers import ArrowImages, ParquetImages, SavedDataSet  # here: plain images need no pyarrow

    kinds: dict[str, Callable[[Path, str | None], Container]] = {PARQUET: ParquetImages, ARROW: ArrowImages}
    return SavedDataSet(path, column) if path.is_dir() else kinds.get(kind, SavedDataSet)(path, column)


def is_container(path: Path) -> bool:
    """Return whether a path is a tar shard, Parquet or Arrow file, or saved data set."""
    if path.suffix.lower() in CONTAINER_KINDS and path.is_file():
        return True
    return (path / SAVED_FILE).is_file()


def is_saved(folder: Path) -> bool:
    """Return whether a folder was written by `save_to_disk`: one data set, or one for each split."""
    return (folder / SAVED_FILE).is_file() or (folder / "dataset_dict.json").is_file()


def containers_in(folder: Path) -> list[Path]:
    """Return the container files and saved data sets in a folder, searched recursively, sorted by path."""
    files = list(visible_files(folder))
    saved = {path.parent for path in files if path.name == SAVED_FILE}
    inside = {path for path in files if path.suffix.lower() in CONTAINER_KINDS and path.parent not in saved}
    return sorted(saved | inside)


def names_in(path: Path) -> list[str]:
    """Return the names of all images in a container: its path and the place inside.

    Raises:
        ValueError: it has none, is damaged, or has no column of images.
    """
    names = [f"{path}/{place}" for place in open_container(path).places()]
    if not names:
        raise ValueError(f"{path} has no images, expected files that end with {' '.join(sorted(IMAGE_SUFFIXES))}.")
    return names


def split_name(name: str) -> tuple[Path, str] | None:
    """Split an image name into container path and place inside; None for an image outside containers."""
    if os.path.isfile(name):
        return None
    for folder in PurePosixPath(name).parents if os.sep == "/" else Path(name).parents:
        if is_container(Path(folder)):
            return Path(folder), type(folder)(name).relative_to(folder).as_posix()
    return None


def is_image_inside(name: str) -> bool:
    """Return whether a name refers to an existing image in a tar shard, whatever its characters."""
    container = split_name(local_path(name))
    if container is None or container[0].suffix.lower() != TAR:
        return False
    shard = open_container(container[0])
    return isinstance(shard, TarShard) and shard.names.find(container[1]) is not None


def located(name: str) -> Any:
    """Return the input of `read_image` for an image name: a path, or the bytes from a container.

    Raises:
        FileNotFoundError: a container has no such image.
        ValueError: a container is damaged.
    """
    path = local_path(name)
    inside = split_name(path)
    if inside is None:
        if not os.path.exists(path) and (near := _near_in_case(*os.path.split(path))):
            raise FileNotFoundError(f"There is no image {name}. Did you mean {near!r}? Upper and lower case differ.")
        return path
    container, place = inside
    content = open_container(container).content(place)
    return content if isinstance(content, str) else NamedBytes(content, name)


@lru_cache(OPEN_CONTAINERS)
def _names_in(folder: str, changed: int) -> FolderNames:
    return FolderNames(folder)


def _near_in_case(folder: str, name: str) -> str | None:
    """Return an existing file name that differs from a missing one in case only."""
    try:
        changed = os.stat(folder or ".").st_mtime_ns
    except OSError:
        return None
    return _names_in(folder, changed).near(name)


def local_path(name: str) -> str:
    """Return the cache path of a name on the Hub; other names are unchanged."""
    if not name.startswith(HUB_PREFIX):
        return name
    address, path = hub_address(name)
    return os.path.join(hub_folder(address), path)


def hub_address(name: str) -> tuple[str, str]:
    """Split a name on the Hub into `hf://datasets/OWNER/NAME[@REVISION]` and the path in the repository.

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
    """Download the images and container files of a Hub data set; return their folder in the cache.

    Raises:
        OSError: the Hub cannot be reached, and the cache does not have it.
    """
    from huggingface_hub import snapshot_download

    match = HUB_NAME.fullmatch(address)
    assert match is not None
    endings = [*IMAGE_SUFFIXES, *CONTAINER_KINDS]
    patterns = [f"*{form}" for ending in endings for form in (ending, ending.upper())]
    return snapshot_download(match["repo"], repo_type="dataset", revision=match["revision"], allow_patterns=patterns)
