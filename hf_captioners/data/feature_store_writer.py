"""Write a feature store: shard by shard, resumable, in the memory of one shard."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from .feature_store import SHARD_PATTERN, StoreDescription, StoredShard
from .region_source import Regions

SHARD_BYTES = 64 * 2**20


class FeatureStoreWriter:
    """Adds pictures to a store, new or begun by an earlier writer that was killed.

    Use as a context manager; leaving it after an error writes nothing more. The same pictures added in the same order
    give the same bytes, with or without interruptions.

    Args:
        folder: the store; made if missing.
        description: what it holds.
        writer: number of this writer, where several processes write one store, each its own pictures.
        shard_bytes: size of features at which a shard is closed.

    Raises:
        ValueError: the store that is there holds something else.

    Attributes:
        done: ids that are stored already; `add` refuses them.
        largest_error: largest difference between a value given and stored, of the shards that this writer closed.
    """

    def __init__(
        self, folder: str | Path, description: StoreDescription, writer: int = 0, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.description, self.writer, self.shard_bytes = description, writer, shard_bytes
        if (self.folder / "store.json").is_file():
            found = StoreDescription.read(self.folder)
            if found != description:
                raise ValueError(f"{self.folder} holds {found}; you want to add {description}. Use another folder.")
        else:
            description.write(self.folder)
        shards = sorted(self.folder.glob(SHARD_PATTERN))
        self.done = {image_id for path in shards for image_id in StoredShard(path).ids}
        self._next_shard = sum(path.name.startswith(self._prefix) for path in shards)
        self.largest_error = 0.0
        self._ids: list[str] = []
        self._regions: list[Regions] = []
        self._bytes = 0

    def __enter__(self) -> FeatureStoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._close_shard()

    @property
    def _prefix(self) -> str:
        return f"regions-{self.writer:03d}-"

    def add(self, image_id: str, regions: Regions) -> None:
        """Add the regions of a picture.

        Raises:
            ValueError: the picture is there already, or its regions do not fit the store or are not finite.
        """
        features, boxes = regions.features, regions.boxes
        if image_id in self.done:
            raise ValueError(f"{self.folder} has the picture {image_id} already.")
        if features.ndim != 2 or features.shape[1] != self.description.feature_size or not len(features):
            raise ValueError(
                f"The features of {image_id} have the shape {features.shape}; expected "
                f"[R, {self.description.feature_size}] with at least one region."
            )
        if not np.isfinite(features).all():
            raise ValueError(f"The features of {image_id} are not all finite.")
        if (boxes is not None) != self.description.boxes or (boxes is not None and boxes.shape != (len(features), 4)):
            raise ValueError(
                f"The boxes of {image_id} are {'missing' if boxes is None else boxes.shape}; expected "
                f"{f'({len(features)}, 4)' if self.description.boxes else 'none'}."
            )
        self.done.add(image_id)
        self._ids.append(image_id)
        self._regions.append(regions)
        self._bytes += features.size * np.dtype(self.description.kind).itemsize
        if self._bytes >= self.shard_bytes:
            self._close_shard()

    def _close_shard(self) -> None:
        if not self._ids:
            return
        path = self.folder / f"{self._prefix}{self._next_shard:05d}.safetensors"
        features = np.concatenate([regions.features for regions in self._regions]).astype(np.float32, copy=False)
        arrays = self._stored(features)
        if self.description.boxes:
            boxes = [regions.boxes for regions in self._regions if regions.boxes is not None]
            arrays["boxes"] = np.concatenate(boxes).astype(np.float32)
        arrays["counts"] = np.array([len(regions.features) for regions in self._regions], np.int64)
        unfinished = path.with_name(f".{path.name}.unfinished")
        save_file(arrays, unfinished, metadata={"ids": json.dumps(self._ids)})
        os.replace(unfinished, path)
        self._next_shard += 1
        self._ids, self._regions, self._bytes = [], [], 0

    def _stored(self, features: np.ndarray) -> dict[str, np.ndarray]:
        """Round features to what is stored, and note by how much."""
        if self.description.kind == "int8":
            scales = np.abs(features).max(axis=1) / np.float32(127)
            steps = np.where(scales > 0, scales, np.float32(1))[:, None]
            stored = np.rint(features / steps).astype(np.int8)
            self._note_error(features, stored * scales[:, None])
            return {"features": stored, "scales": scales}
        with np.errstate(over="ignore"):  # said below
            stored = features.astype(self.description.kind)
        if self.description.kind == "float16":
            if not np.isfinite(stored).all():
                raise ValueError(f"A feature of {np.abs(features).max():g} is too large for float16 (65,504).")
            self._note_error(features, stored)
        return {"features": stored}

    def _note_error(self, given: np.ndarray, stored: np.ndarray) -> None:
        self.largest_error = max(self.largest_error, float(np.abs(given - stored.astype(np.float32)).max()))
