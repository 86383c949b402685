"""Reading of both formats of `torch.save` without running code.

Tensors become descriptions. Each is checked before any data is read: a tensor must lie within its storage.
"""

import io
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from .safe_unpickling import Record, SafeUnpickler, UnsafePickleError

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
    """Storage of one dtype in the file: `length` elements from element `shift` on."""

    dtype: torch.dtype
    key: str
    length: int
    shift: int = 0


@dataclass(frozen=True)
class TensorDescription:
    """View of a storage.

    Attributes:
        storage, offset, size, stride: as in torch, in elements.
    """

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that the view lies within its storage."""
        numbers = (self.offset, *self.size, *self.stride)
        if len(self.size) != len(self.stride) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"a tensor has the size {self.size}, strides {self.stride} and offset {self.offset}")
        last = self.offset + sum((side - 1) * step for side, step in zip(self.size, self.stride, strict=True))
        count = math.prod(self.size)
        if count and (last >= self.storage.length or count > self.storage.length):
            raise ValueError(f"a tensor of {self.size} exceeds the {self.storage.length} elements of its storage")


@dataclass(frozen=True)
class TorchFile:
    """Content of a file of `torch.save`.

    Attributes:
        content: dictionaries, lists and records, with a `TensorDescription` in place of each tensor.
        read_storage: returns the bytes of a storage by its key.
    """

    content: Any
    read_storage: Callable[[str], bytes]

    def tensor(self, description: TensorDescription) -> Tensor:
        """Read a tensor into its own memory.

        Raises:
            ValueError: the storage is smaller than stated.
        """
        storage = description.storage
        content = self.read_storage(storage.key)
        start, width = storage.shift * storage.dtype.itemsize, storage.length * storage.dtype.itemsize
        if start < 0 or len(content) < start + width:
            raise ValueError(f"Storage {storage.key} has {len(content)} bytes, expected {start + width}.")
        if not storage.length:
            return torch.empty(description.size, dtype=storage.dtype)
        numbers = torch.frombuffer(bytearray(content[start : start + width]), dtype=storage.dtype)
        return numbers.as_strided(description.size, description.stride, description.offset).clone()

    def tensors(self, part: Any) -> dict[str, Tensor]:
        """Read all tensors of a `state_dict` or of a pickled module, by their names in the `state_dict`.

        Raises:
            ValueError: `part` is neither.
        """
        if isinstance(part, Record):
            return {name: self.tensor(found) for name, found in module_tensors(part)}
        if not isinstance(part, dict) or not all(isinstance(name, str) for name in part):
            raise ValueError(f"expected a `state_dict` or a module, got {type(part).__name__}")
        return {name: self.tensor(found) for name, found in part.items() if isinstance(found, TensorDescription)}


def module_tensors(module: Record, prefix: str = "") -> Iterator[tuple[str, TensorDescription]]:
    """Yield (name, tensor) of the parameters and buffers of a pickled module and its submodules."""
    for group in ("_parameters", "_buffers"):
        for name, found in module_attribute(module, group, {}).items():
            if isinstance(found, TensorDescription):
                yield f"{prefix}{name}", found
    for name, part in module_attribute(module, "_modules", {}).items():
        if isinstance(part, Record):
            yield from module_tensors(part, f"{prefix}{name}.")


def module_attribute(module: Record, name: str, default: Any = None) -> Any:
    """Return an attribute of a pickled module."""
    return module.state.get(name, default) if isinstance(module.state, dict) else default


class TorchUnpickler(SafeUnpickler):
    """Unpickler for `torch.save`; `records` are the classes of the program that saved the file."""

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
        """Return a storage or, in the older format, the class of a module; stored source code is not read."""
        if isinstance(pid, tuple) and len(pid) >= 2 and pid[0] == "module":
            return pid[1]
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise UnsafePickleError(f"{self.place} refers to {pid!r:.60}, which is not a storage.")
        _, kind, key, _, length = pid[:5]
        name = kind.source.rpartition(".")[2] if isinstance(kind, type) and issubclass(kind, Record) else None
        if name not in STORAGES or type(length) is not int or length < 0:
            raise UnsafePickleError(f"{self.place} refers to a storage of {kind!r:.60} with {length!r:.20} elements.")
        shift = 0
        if len(pid) == 6 and pid[5] is not None:  # a part of a larger storage
            _, shift, length = pid[5]
        self.types[str(key)] = STORAGES[name]
        return Storage(STORAGES[name], str(key), length, shift)


def _describe(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorDescription:
    if not isinstance(storage, Storage):
        raise UnsafePickleError(f"it creates a tensor from {storage!r:.60}")
    sides, steps = (value.arguments[0] if isinstance(value, Record) else value for value in (size, stride))
    return TensorDescription(storage, offset, tuple(sides), tuple(steps))


def read_torch_file(path: str | os.PathLike[str], records: frozenset[tuple[str, str]] = frozenset()) -> TorchFile:
    """Read a file of `torch.save`.

    Args:
        path: the file.
        records: (module, name) pairs of classes of the program, e.g. `("models", "Encoder")`.

    Raises:
        UnsafePickleError: a name is not on the list.
        ValueError: the file is incomplete or not of `torch.save`.
        OSError: the file cannot be read.
    """
    path = Path(path)
    return _read_zip(path, records) if zipfile.is_zipfile(path) else _read_sequence(path, records)


def _read_zip(path: Path, records: frozenset[tuple[str, str]]) -> TorchFile:
    archive = zipfile.ZipFile(path)
    found = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
    if len(found) != 1:
        raise ValueError(f"{path} is a zip file without a data.pkl, so it is not a file of torch.save.")
    root = found[0].rpartition("/")[0]
    order = f"{root}/byteorder"
    if order in archive.namelist() and archive.read(order) != b"little":
        raise ValueError(f"{path} was written on a big-endian machine; only little-endian files are read.")
    content = TorchUnpickler(io.BytesIO(archive.read(found[0])), str(path), records).read()

    def read_storage(key: str) -> bytes:
        try:
            return archive.read(f"{root}/data/{key}")
        except (KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} lacks storage {key}, or the storage is corrupt.") from error

    return TorchFile(content, read_storage)


def _read_sequence(path: Path, records: frozenset[tuple[str, str]]) -> TorchFile:
    """Read the format of torch before 1.6: five pickles, of which the fourth is the object, then the storages."""
    places: dict[str, tuple[int, int]] = {}
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
            places[key] = (file.tell(), max(width, 0))
            file.seek(max(width, 0), os.SEEK_CUR)

    def read_storage(key: str) -> bytes:
        if key not in places:
            raise ValueError(f"{path} lacks storage {key}.")
        start, width = places[key]
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(width)

    return TorchFile(content, read_storage)


def _next(file: BinaryIO, path: Path) -> Any:
    return TorchUnpickler(file, str(path), frozenset()).read()
