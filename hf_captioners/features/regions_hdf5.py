"""Regions in one HDF5 file with a data set for each image: M2's and VisualGPT's `coco_detections.hdf5`.

Keys: `<id>_features` [N, D]; `<id>_boxes` [N, 4] in pixels (or normalised, where `<id>_size` is there too: DLCT and
RSTNet); `<id>_cls_prob` [N, classes]; `<id>_grids` [cells, D].
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .region_source import Regions, RegionSource, normalised


class DetectionsHdf5(RegionSource):
    """Reader of HDF5 files, one image at a time. Needs `h5py`.

    Args:
        path: the file.
        max_regions: rows beyond are cut, in the order of the file; the released training scripts use 50. None: all.
        sort_by_score: order regions by their highest class probability first, as the released code can.
        part: `features` (detected regions) or `grids`.
        sizes: width and height of each image by its id, to normalise boxes; without it boxes in pixels are left
            out.

    Raises:
        ImportError: h5py is not installed.
        ValueError: the file has no data sets of this part.
    """

    def __init__(
        self,
        path: str | Path,
        max_regions: int | None = None,
        sort_by_score: bool = False,
        part: str = "features",
        sizes: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        if importlib.util.find_spec("h5py") is None:
            raise ImportError(f"Reading {path} needs h5py: pip install h5py")
        self.name = str(path)
        self.max_regions, self.sort_by_score, self.part, self.sizes = max_regions, sort_by_score, part, sizes
        self._opened: Any = None
        ending = f"_{part}"
        self._ids = dict.fromkeys(key.removesuffix(ending) for key in self._file if key.endswith(ending))
        if not self._ids:
            raise ValueError(f"{path} has no data sets named <id>{ending}; it has {list(self._file)[:3]}.")

    @property
    def _file(self) -> Any:
        """The open file. Each process opens its own, because HDF5 handles do not survive a fork."""
        import h5py

        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), h5py.File(self.name, "r"))
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def ids(self) -> Mapping[str, None]:
        """Return the ids that are there."""
        return self._ids

    def regions(self, image_id: str) -> Regions:
        """Read the regions of an image."""
        file = self._file
        features = np.asarray(file[f"{image_id}_{self.part}"][()], dtype=np.float32)
        boxes = self._boxes(file, image_id) if self.part == "features" else None
        order = np.arange(len(features))
        if self.sort_by_score:
            order = np.argsort(-file[f"{image_id}_cls_prob"][()].max(axis=1), kind="stable")
        return Regions(features, boxes).ordered(order[: self.max_regions])

    def _boxes(self, file: Any, image_id: str) -> np.ndarray | None:
        if f"{image_id}_boxes" not in file:
            return None
        boxes = np.asarray(file[f"{image_id}_boxes"][()], dtype=np.float32)
        if f"{image_id}_size" in file:
            return boxes
        return normalised(boxes, self.sizes[image_id]) if self.sizes is not None else None
