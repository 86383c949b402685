"""Reader of an HDF5 file with one data set per image: M2's and VisualGPT's `coco_detections.hdf5`.

Keys: `<id>_features` [N, D]; `<id>_boxes` [N, 4] in pixels (or normalised, where `<id>_size` is there too: DLCT and
RSTNet); `<id>_cls_prob` [N, classes]; `<id>_grids` [cells, D].
"""

from __future__ import annotations

import importlib.util
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hf_captioners.features.region_source import (
    MAX_NUMBERS,
    Regions,
    RegionSource,
    as_float32,
    normalised,
    require_numbers,
)

# Filters that h5py has itself; of the compressing ones, the most bytes that one byte becomes.
DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
GROWTH = {DEFLATE: 1032, LZF: 88}
FREE_CHUNK_BYTES = 128 * 2**20  # chunks that cannot become larger are not looked into


def require_bounded_chunks(dataset: Any) -> None:
    """Check that compressed chunks do not decompress to more bytes than the chunk shape states.

    HDF5 takes memory for whatever a compressed chunk becomes.

    Raises:
        ValueError: a chunk becomes larger, or this cannot be checked.
    """
    if dataset.chunks is None:
        return
    filters = dataset.id.get_create_plist()
    kinds = [filters.get_filter(number)[0] for number in range(filters.get_nfilters())]
    packing = [kind for kind in kinds if kind in GROWTH]
    if len(packing) > 1 or set(kinds) - {*GROWTH, SHUFFLE, FLETCHER32}:
        raise ValueError(f"it is stored with the filters {kinds} of HDF5; expected gzip, lzf, shuffle or a checksum")
    stated = math.prod(dataset.chunks) * dataset.dtype.itemsize
    for number in range(dataset.id.get_num_chunks() if packing else 0):
        chunk = dataset.id.get_chunk_info(number)
        if chunk.size * GROWTH[packing[0]] <= FREE_CHUNK_BYTES:
            continue
        if packing[0] == LZF:
            raise ValueError(f"a chunk has {chunk.size:,} bytes compressed by lzf; store it with gzip, or without")
        if _inflated_size(dataset, chunk, kinds.index(DEFLATE), stated) > stated:
            raise ValueError(f"a chunk is stated as {stated:,} bytes and decompresses to more")


def _inflated_size(dataset: Any, chunk: Any, place: int, stated: int) -> int:
    """Return the decompressed size of a chunk; stops at the first size above `stated`."""
    mask, content = dataset.id.read_direct_chunk(chunk.chunk_offset)
    packer, size = zlib.decompressobj(), 0
    if mask & (1 << place):  # the filter is left out
        return 0
    try:
        while content and size <= stated:
            size += len(packer.decompress(content, 2**20))
            content = packer.unconsumed_tail
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed ({error})") from error
    return size


class DetectionsHdf5(RegionSource):
    """Reader of HDF5 files of detected regions, one image at a time. Needs `h5py`.

    Args:
        path: the file.
        max_regions: rows beyond are cut, in the order of the file; the released training scripts use 50. None: all.
        sort_by_score: order regions by their highest class probability first, as the released code can.
        part: `features` (detected regions) or `grids`.
        sizes: width and height of each image by its id, to normalise boxes; without it boxes in pixels are left
            out.
        max_numbers: largest number of features of one image (R x D); larger arrays are refused before they are read.

    Raises:
        ImportError: h5py is not installed.
        ValueError: the file is damaged, or has no data sets of this part. Data sets that refer to other files (links,
            external storage, virtual data sets) are refused when they are read.
    """

    def __init__(
        self,
        path: str | Path,
        max_regions: int | None = None,
        sort_by_score: bool = False,
        part: str = "features",
        sizes: Mapping[str, tuple[int, int]] | None = None,
        max_numbers: int = MAX_NUMBERS,
    ) -> None:
        if importlib.util.find_spec("h5py") is None:
            raise ImportError(f"Reading {path} needs h5py: pip install h5py")
        self.name = str(path)
        self.max_regions, self.sort_by_score, self.part, self.sizes = max_regions, sort_by_score, part, sizes
        self.max_numbers = max_numbers
        self._opened: Any = None
        ending = f"_{part}"
        with self._named():
            keys = list(self._file)
            for key in keys:
                if not isinstance(key, str):
                    raise ValueError(f"the name of its data set {key!r:.60} is not UTF-8")
        self._ids = dict.fromkeys(key.removesuffix(ending) for key in keys if key.endswith(ending))
        if not self._ids:
            raise ValueError(f"{path} has no data sets named <id>{ending}; it has {keys[:3]}.")

    @contextmanager
    def _named(self, part: str | None = None) -> Iterator[None]:
        """Context that adds the names of file and data set to errors of reading them."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, MemoryError, OverflowError) as error:
            place = self.name if part is None else f"The data set {part} in {self.name}"
            raise ValueError(f"{place} cannot be read: {str(error).rstrip('.') or type(error).__name__}.") from error

    def _array(self, name: str, dimensions: int = 2) -> np.ndarray:
        """Read an HDF5 data set after checking its type, size and storage."""
        import h5py

        with self._named(name):
            if not isinstance(self._file.get(name, getlink=True), h5py.HardLink):
                raise ValueError("it is a link, which may lead to a different file")
            dataset = self._file[name]
            if not isinstance(dataset, h5py.Dataset):
                raise ValueError(f"it is a {type(dataset).__name__}, expected an array")
            if dataset.external or dataset.is_virtual:
                raise ValueError("its numbers are in a different file; only numbers in this file are read")
            shape = dataset.shape
            if shape is None or len(shape) != dimensions:
                raise ValueError(f"it has the shape {shape}, expected {dimensions} dimensions")
            require_numbers(shape, dataset.dtype, "it", self.max_numbers)
            require_numbers(dataset.chunks or (), dataset.dtype, "one of its chunks", self.max_numbers)
            stored = dataset.id.get_storage_size()
            if dataset.chunks is None and stored < math.prod(shape) * dataset.dtype.itemsize:
                raise ValueError(f"it declares the shape {list(shape)}, and {stored:,} bytes are stored")
            require_bounded_chunks(dataset)
            return as_float32(dataset[()], "it", self.max_numbers)

    @property
    def _file(self) -> Any:
        """Open HDF5 file of this process; HDF5 handles do not survive a fork."""
        import h5py

        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), h5py.File(self.name, "r"))
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def ids(self) -> Mapping[str, None]:
        """Return the image ids."""
        return self._ids

    def regions(self, image_id: str) -> Regions:
        """Read the regions of an image."""
        features = self._array(f"{image_id}_{self.part}")
        boxes = self._boxes(image_id) if self.part == "features" else None
        order = np.arange(len(features))
        if self.sort_by_score:
            probabilities = self._array(f"{image_id}_cls_prob")
            if len(probabilities) != len(features) or not probabilities.size:
                raise ValueError(
                    f"The data set {image_id}_cls_prob in {self.name} has the shape {list(probabilities.shape)} for "
                    f"{len(features)} regions."
                )
            order = np.argsort(-probabilities.max(axis=1), kind="stable")
        if boxes is not None and len(boxes) != len(features):
            raise ValueError(
                f"The data set {image_id}_boxes in {self.name} has {len(boxes)} boxes for {len(features)} regions."
            )
        return Regions(features, boxes).ordered(order[: self.max_regions])

    def _has(self, name: str) -> bool:
        return self._file.get(name, getlink=True, default=None) is not None  # `in` would open the target of a link

    def _boxes(self, image_id: str) -> np.ndarray | None:
        name = f"{image_id}_boxes"
        if not self._has(name):
            return None
        boxes = self._array(name)
        if self._has(f"{image_id}_size"):
            return boxes
        if self.sizes is None:
            return None
        if image_id not in self.sizes:
            raise ValueError(f"`sizes` has no width and height of the image {image_id!r} of {self.name}.")
        with self._named(name):
            return normalised(boxes, self.sizes[image_id])
