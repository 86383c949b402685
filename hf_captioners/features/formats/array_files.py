"""Reader of `.npy` and `.npz` files that checks the declared size against the file before it takes memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hf_captioners.features.region_source import MAX_NUMBERS, require_numbers

# Longest header of an array: that of numpy plus the fixed part.
HEADER_BYTES = 2**14


def read_array(path: Path, keys: Sequence[str] = (), max_numbers: int = MAX_NUMBERS) -> np.ndarray:
    """Read an array of numbers from a `.npy` or `.npz` file.

    Args:
        path: a `.npy` or `.npz` file.
        keys: names of the array in `.npz` files; the first one that is there is read.
        max_numbers: the largest number of elements.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, too large, or has no such array.
    """
    with open(path, "rb") as file:
        try:
            if path.suffix != ".npz":
                return _read_stream(file, path.stat().st_size, max_numbers)
            with zipfile.ZipFile(file) as archive:
                return _read_member(archive, keys, max_numbers)
        except Exception as error:  # numpy and zipfile raise errors of many types for damaged files
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path} cannot be read: {reason.rstrip('.')}.") from error


def _read_member(archive: zipfile.ZipFile, keys: Sequence[str], max_numbers: int) -> np.ndarray:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    key = next((key for key in keys if key in names), None)
    if key is None:
        raise ValueError(f"it has the arrays {names[:5]}; expected `{keys[0]}`")
    member = archive.getinfo(f"{key}.npy" if f"{key}.npy" in archive.namelist() else key)
    if member.file_size > 8 * max_numbers + HEADER_BYTES:
        raise ValueError(
            f"`{key}` has {member.file_size:,} bytes, more than {max_numbers:,} numbers. If the file is right, open "
            "it with a larger max_numbers=..."
        )
    with archive.open(member) as stream:
        return _read_stream(stream, member.file_size, max_numbers)  # type: ignore[arg-type]


def _read_stream(stream: BinaryIO, size: int, max_numbers: int) -> np.ndarray:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"its format is {version}; expected (1, 0) or (2, 0)")
    require_numbers(shape, dtype, "it", max_numbers)
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or declared > size:
        raise ValueError(f"it declares the shape {list(shape)} ({declared:,} bytes), and has {size:,} bytes")
    content = stream.read(declared)
    if len(content) < declared:
        raise ValueError(f"it is truncated: {len(content):,} of {declared:,} bytes are there")
    return np.frombuffer(bytearray(content), dtype).reshape(shape, order="F" if by_columns else "C")
