"""Reader of both formats of `torch.save` that runs no code of the file.

Tensors become descriptions. Each is checked before any data is read: a tensor must lie within its storage.
"""

import io
import math
import os
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from .pickle_limits import MAX_DEPTH
from .safe_unpickling import Record, SafeUnpickler, UnsafePickleError

MAX_MODULES = 100_000
# Bytes that compressed parts of a file may have in all: 64 MiB, or 8 times the size of the file if that is more.
DEFLATED_FLOOR, DEFLATED_RATIO = 64 * 2**20, 8
DAMAGES = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
    zlib.error,
    struct.error,
)
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
RECORDS = frozenset((module, name) for module in ("torch", "torch.cuda") for name in STORAGES) | {
    ("torch.nn.parameter", "Parameter"),
    ("torch", "Tensor"),
}


@dataclass(frozen=True)
class Storage:
    """Storage of tensors of one dtype in the file: `length` elements from element `shift` on."""

    dtype: torch.dtype
    key: str
    length: int
    shift: int = 0


@dataclass(frozen=True)
class TensorDescription:
    """Tensor in the file: its storage, offset, shape and strides.

    Attributes:
        storage, offset, size, stride: as in torch, in elements.
    """

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that the tensor lies within its storage."""
        numbers = (self.offset, *self.size, *self.stride)
        if len(self.size) != len(self.stride) or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
            shown = reprlib.repr((self.size, self.stride, self.offset))
            raise ValueError(f"a tensor has the size, strides and offset {shown}")
        last = self.offset + sum((side - 1) * step for side, step in zip(self.size, self.stride, strict=True))
        count = math.prod(self.size)
        if count and (last >= self.storage.length or count > self.storage.length):
            raise ValueError(f"a tensor of {self.size} exceeds the {self.storage.length} elements of its storage")


@dataclass(frozen=True)
class TorchFile:
    """Content of a file written by `torch.save`; tensors are read on request.

    Attributes:
        content: dictionaries, lists and records, with a `TensorDescription` in place of each tensor.
        read_storage: returns the bytes of a storage by its key.
        place: the file, for messages.
    """

    content: Any
    read_storage: Callable[[str], bytes]
    place: str

    def tensor(self, description: TensorDescription) -> Tensor:
        """Read a tensor into its own memory.

        Raises:
            ValueError: the storage is smaller than stated.
        """
        storage = description.storage
        content = self.read_storage(storage.key)
        start, width = storage.shift * storage.dtype.itemsize, storage.length * storage.dtype.itemsize
        if start < 0 or len(content) < start + width:
            raise ValueError(
                f"{self.place}: storage {storage.key} has {len(content):,} bytes, expected {start + width:,}."
            )
        if not storage.length:
            return torch.empty(description.size, dtype=storage.dtype)
        numbers = torch.frombuffer(bytearray(memoryview(content)[start : start + width]), dtype=storage.dtype)
        return numbers.as_strided(description.size, description.stride, description.offset).clone()

    def tensors(self, part: Any) -> dict[str, Tensor]:
        """Read all tensors of a `state_dict` or of a pickled module, by their names in the `state_dict`.

        Raises:
            ValueError: `part` is neither, or a module contains itself or too many others.
        """
        if isinstance(part, Record):
            try:
                found_tensors = dict(module_tensors(part))
            except ValueError as error:
                raise ValueError(f"{self.place}: {error}.") from error
            return {name: self.tensor(description) for name, description in found_tensors.items()}
        if not isinstance(part, dict) or not all(isinstance(name, str) for name in part):
            raise ValueError(f"{self.place}: expected a `state_dict` or a module, got {type(part).__name__}")
        return {
            name: self.tensor(description)
            for name, description in part.items()
            if isinstance(description, TensorDescription)
        }


def module_tensors(module: Record) -> Iterator[tuple[str, TensorDescription]]:
    """Yield name and description of the parameters and buffers of a pickled module and its submodules.

    Raises:
        ValueError: a module contains itself or too many others.
    """
    waiting: list[tuple[str, Record, int]] = [("", module, 0)]
    visited = 0
    while waiting:
        prefix, part, depth = waiting.pop()
        visited += 1
        if depth > MAX_DEPTH or visited > MAX_MODULES:
            raise ValueError(f"its modules are nested more than {MAX_DEPTH} levels deep, or more than {MAX_MODULES:,}")
        for group in ("_parameters", "_buffers"):
            for name, value in _named_parts(part, group):
                if isinstance(value, TensorDescription):
                    yield f"{prefix}{name}", value
        inner = [(name, value) for name, value in _named_parts(part, "_modules") if isinstance(value, Record)]
        waiting += [(f"{prefix}{name}.", value, depth + 1) for name, value in reversed(inner)]


def _named_parts(module: Record, group: str) -> list[tuple[Any, Any]]:
    parts = module_attribute(module, group, {})
    return list(parts.items()) if isinstance(parts, dict) else []


def module_attribute(module: Record, name: str, default: Any = None) -> Any:
    """Return an attribute of a pickled module, or a default."""
    return module.state.get(name, default) if isinstance(module.state, dict) else default


class TorchUnpickler(SafeUnpickler):
    """Unpickler for `torch.save`; classes of the program that saved the file become inert records."""

    def __init__(self, file: BinaryIO, place: str, records: frozenset[tuple[str, str]]) -> None:
        functions = {
            ("torch._utils", "_rebuild_tensor"): _describe,
            ("torch._utils", "_rebuild_tensor_v2"): _describe,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
            ("torch._utils", "_rebuild_parameter_with_state"): lambda tensor, *_: tensor,
        }
        super().__init__(file, place, RECORDS | records, functions)
        self.types: dict[str, torch.dtype] = {}  # dtypes of storages by key

    def persistent_load(self, pid: Any) -> Any:
        """Return the storage, or in the older format the module class, that a persistent id refers to."""
        if isinstance(pid, tuple) and len(pid) >= 2 and pid[0] == "module":
            return pid[1]
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise UnsafePickleError(f"{self.place} refers to {reprlib.repr(pid):.60}, which is not a storage.")
        _, kind, key, _, length = pid[:5]
        name = kind.source.rpartition(".")[2] if isinstance(kind, type) and issubclass(kind, Record) else None
        if name not in STORAGES or type(length) is not int or length < 0:
            raise UnsafePickleError(
                f"{self.place} refers to a storage of {reprlib.repr(kind)} with {reprlib.repr(length)} elements."
            )
        shift = 0
        if len(pid) == 6 and pid[5] is not None:  # a part of a larger storage
            _, shift, length = pid[5]
        if not isinstance(key, (str, int)) or not all(type(n) is int and 0 <= n < 2**56 for n in (shift, length)):
            raise UnsafePickleError(f"{self.place} refers to the part {reprlib.repr(pid)} of a storage.")
        self.types[str(key)] = STORAGES[name]
        return Storage(STORAGES[name], str(key), length, shift)


def _describe(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorDescription:
    if not isinstance(storage, Storage):
        raise UnsafePickleError(f"it creates a tensor from {reprlib.repr(storage):.60}")
    sides, steps = (value.arguments[0] if isinstance(value, Record) else value for value in (size, stride))
    return TensorDescription(storage, offset, tuple(sides), tuple(steps))


def read_torch_file(path: str | os.PathLike[str], records: frozenset[tuple[str, str]] = frozenset()) -> TorchFile:
    """Read a file written by `torch.save`.

    Args:
        path: the file.
        records: (module, name) pairs of classes of the program, e.g. `("models", "Encoder")`.

    Raises:
        UnsafePickleError: a name is not on the list.
        ValueError: the file is incomplete or not of `torch.save`.
        OSError: the file cannot be read.
    """
    path = Path(path)
    with _named(path):
        zipped = zipfile.is_zipfile(path)
    return _read_zip(path, records) if zipped else _read_sequence(path, records)


def _read_zip(path: Path, records: frozenset[tuple[str, str]]) -> TorchFile:
    with _named(path):
        archive = zipfile.ZipFile(path)
        names = archive.namelist()
    pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise ValueError(f"{path} is a zip file without a data.pkl, so it is not a file of torch.save.")
    _check_sizes(path, archive)
    root = pickles[0].rpartition("/")[0]
    order = f"{root}/byteorder"
    with _named(path):
        if order in names and archive.read(order) != b"little":
            raise ValueError("it was written on a big-endian machine; only little-endian files are read")
        program = archive.read(pickles[0])
    content = TorchUnpickler(io.BytesIO(program), str(path), records).read()

    def read_storage(key: str) -> bytes:
        try:
            return archive.read(f"{root}/data/{key}")
        except (KeyError, *DAMAGES) as error:
            raise ValueError(f"{path} lacks storage {key}, or the storage is corrupt.") from error

    return TorchFile(content, read_storage, str(path))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Context that adds the file's name to errors of the zip format."""
    try:
        yield
    except FileNotFoundError:
        raise
    except DAMAGES as error:
        raise ValueError(f"{path} cannot be read: {str(error) or type(error).__name__}.") from error


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    """Reject zip archives that decompress to far more bytes than the file has."""
    size = path.stat().st_size
    packed = sum(entry.file_size for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED)
    if packed > max(DEFLATED_FLOOR, DEFLATED_RATIO * size):
        raise ValueError(
            f"{path} has {size:,} bytes and decompresses to {packed:,}. torch.save does not compress; if the file is "
            "right, unpack it and pack it again without compression (`zip -0`)."
        )
    for entry in archive.infolist():
        if entry.compress_type == zipfile.ZIP_STORED and not entry.file_size == entry.compress_size <= size:
            raise ValueError(f"{path} is damaged: {entry.filename!r:.80} is stated as {entry.file_size:,} bytes.")


def _read_sequence(path: Path, records: frozenset[tuple[str, str]]) -> TorchFile:
    """Read the format of torch before 1.6: five pickles (the fourth is the object), then the storages."""
    places: dict[str, tuple[int, int]] = {}
    size = path.stat().st_size
    with open(path, "rb") as file:
        if file.read(2) != b"\x80\x02":  # header of a pickle of protocol 2
            raise ValueError(f"{path} is not a file of torch.save.")
        file.seek(0)
        if _next(file, path) != MAGIC_NUMBER or _next(file, path) != PROTOCOL:
            raise ValueError(f"{path} is not a file of torch.save.")
        system = _next(file, path)
        if not isinstance(system, dict) or not system.get("little_endian", True):
            raise ValueError(f"{path} was written on a big-endian machine; only little-endian files are read.")
        unpickler = TorchUnpickler(file, str(path), records)
        content, keys = unpickler.read(), _next(file, path)
        for key in map(str, keys if isinstance(keys, list) else []):
            header = file.read(8)
            if len(header) < 8 or key not in unpickler.types:
                raise ValueError(f"{path} is truncated: storage {key} is missing.")
            width = struct.unpack("<q", header)[0] * unpickler.types[key].itemsize
            if not 0 <= width <= size - file.tell():
                raise ValueError(f"{path} is truncated: storage {key} is stated as {width:,} bytes.")
            places[key] = (file.tell(), width)
            file.seek(width, os.SEEK_CUR)

    def read_storage(key: str) -> bytes:
        if key not in places:
            raise ValueError(f"{path} lacks storage {key}.")
        start, width = places[key]
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(width)

    return TorchFile(content, read_storage, str(path))


def _next(file: BinaryIO, path: Path) -> Any:
    return TorchUnpickler(file, str(path), frozenset()).read()
