"""Writer of feature stores: resumable, one shard in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from filelock import BaseFileLock, Timeout
from safetensors.numpy import save_file

from hf_captioners.output_files import (
    atomic_file,
    explain_write_errors,
    lock_of,
    require_no_links_out,
    require_safe_target,
)

from .feature_store import SHARD_PATTERN, StoreDescription
from .region_source import Regions

SHARD_BYTES = 64 * 2**20
RESUME_ADVICE = "Free some space, then repeat the command: it resumes, and earlier shards are kept."
LARGEST_HALF = float(np.finfo(np.float16).max)


class FeatureStoreWriter:
    """Writer that adds images to a feature store, new or left incomplete by an earlier run.

    Use it as a context manager; after an error it writes nothing more. The same images in the same order give the same
    bytes, with or without interruptions. While it is open, no other process can be the same writer.

    Args:
        folder: the store; made if missing.
        description: extractor, size and data type of the features.
        writer: number of this writer, if several processes write one store, each its own images.
        shard_bytes: size of features at which a shard is closed.
        patience: seconds to wait for a different process that is this writer; negative: without limit.

    Raises:
        ValueError: the existing store has a different description.
        UnsafeFileError: a link in the store leads out of it.
        BlockingIOError: a different process is this writer.

    Attributes:
        done: ids that are stored already; `add` refuses them.
        largest_error: largest difference between a given and a stored value in the shards that this writer closed.
    """

    def __init__(
        self,
        folder: str | Path,
        description: StoreDescription,
        writer: int = 0,
        shard_bytes: int = SHARD_BYTES,
        patience: float = 10.0,
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.description, self.writer, self.shard_bytes = description, writer, shard_bytes
        self._lock = self._locked(patience)
        try:
            self._resume()
        except BaseException:
            self._lock.release()
            raise

    def _locked(self, patience: float) -> BaseFileLock:
        lock = lock_of(self.folder / f".writer-{self.writer:03d}.lock", patience)
        try:
            lock.acquire()
        except Timeout:
            raise BlockingIOError(
                f"Another process is writing {self.folder} (writer {self.writer}). Wait for its end, or write to "
                "a different folder."
            ) from None
        return lock

    def _resume(self) -> None:
        """Read the ids of the images that the store has already."""
        require_safe_target(self.folder / "store.json")
        require_no_links_out(self.folder)
        if (self.folder / "store.json").is_file():
            stored_description = StoreDescription.read(self.folder)
            if stored_description != self.description:
                raise ValueError(
                    f"{self.folder} holds {stored_description}; you want to add {self.description}. Use a different "
                    "folder."
                )
        else:
            self.description.write(self.folder)
        for partial in self.folder.glob(f".{self._prefix}*.tmp"):  # shards that a killed writer left incomplete
            partial.unlink()
        shards = sorted(self.folder.glob(SHARD_PATTERN))
        self.done = {image_id for path in shards for image_id in self.description.open_shard(path).ids}
        own_shards = [path.stem.removeprefix(self._prefix) for path in shards if path.name.startswith(self._prefix)]
        self._next_shard = int(own_shards[-1]) + 1 if own_shards else 0
        self.largest_error = 0.0
        self._ids: list[str] = []
        self._regions: list[Regions] = []
        self._bytes = 0

    def __enter__(self) -> FeatureStoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._close_shard()
        finally:
            self._lock.release()

    @property
    def _prefix(self) -> str:
        return f"regions-{self.writer:03d}-"

    def add(self, image_id: str, regions: Regions) -> None:
        """Add the regions of an image, see `add_batch`."""
        self.add_batch([(image_id, regions)])

    def add_batch(self, entries: Iterable[tuple[str, Regions]]) -> None:
        """Add the images of one batch to a single shard, so that a resumed run forms the same batches.

        Raises:
            ValueError: the store has the image already, or its regions do not fit the store or are not finite.
            OSError: the shard cannot be written.
        """
        for image_id, regions in entries:
            self._check(image_id, regions)
            self.done.add(image_id)
            self._ids.append(image_id)
            self._regions.append(regions)
            self._bytes += regions.features.size * np.dtype(self.description.kind).itemsize
        if self._bytes >= self.shard_bytes:
            self._close_shard()

    def _check(self, image_id: str, regions: Regions) -> None:
        features = regions.features
        if image_id in self.done:
            raise ValueError(f"{self.folder} has the image {image_id} already.")
        if features.ndim != 2 or features.shape[1] != self.description.feature_size or not len(features):
            raise ValueError(
                f"The features of {image_id} have the shape {features.shape}; expected "
                f"[R, {self.description.feature_size}] with at least one region."
            )
        largest = float(np.abs(features).max())  # NaN if there is one
        if not np.isfinite(largest):
            raise ValueError(f"The features of {image_id} are not all finite.")
        if self.description.kind == "float16" and largest > LARGEST_HALF:
            raise ValueError(
                f"A feature of {image_id} is {largest:g}, too large for float16 ({LARGEST_HALF:,.0f}). Store them as "
                "float32."
            )
        if regions.views is not None and regions.views.shape != (len(features),):
            raise ValueError(f"The views of {image_id} have the shape {regions.views.shape}, expected one per region.")
        for name, values, shape in (
            ("boxes", regions.boxes, (len(features), 4)),
            ("scores", regions.scores, (len(features),)),
        ):
            expected = shape if getattr(self.description, name) else None
            actual = None if values is None else values.shape
            if actual != expected:
                raise ValueError(
                    f"The {name} of {image_id} are {actual or 'missing'}; the store has {expected or 'none'}."
                )

    def _close_shard(self) -> None:
        if not self._ids:
            return
        path = self.folder / f"{self._prefix}{self._next_shard:05d}.safetensors"
        # A file is written in the order of the memory, so rows must be contiguous: those of a convolution come column
        # by column.
        features = np.ascontiguousarray(np.concatenate([regions.features for regions in self._regions]), np.float32)
        arrays = self._stored(features)
        for name, column in (
            ("boxes", [regions.boxes for regions in self._regions]),
            ("scores", [regions.scores for regions in self._regions]),
        ):
            if getattr(self.description, name):
                values = np.concatenate([array for array in column if array is not None])
                arrays[name] = np.ascontiguousarray(values, np.float32)
        if any(regions.views is not None for regions in self._regions):
            views = [np.zeros(len(r.features)) if r.views is None else r.views for r in self._regions]
            arrays["views"] = np.concatenate(views).astype(np.int64)
        arrays["counts"] = np.array([len(regions.features) for regions in self._regions], np.int64)
        with explain_write_errors(path, RESUME_ADVICE), atomic_file(path, "wb") as file:
            save_file(arrays, file.name, metadata={"ids": json.dumps(self._ids)})
        self._next_shard += 1
        self._ids, self._regions, self._bytes = [], [], 0

    def _stored(self, features: np.ndarray) -> dict[str, np.ndarray]:
        """Convert features to the data type of the store, and record the largest rounding error."""
        if self.description.kind == "int8":
            scales = np.abs(features).max(axis=1) / np.float32(127)
            steps = np.where(scales > 0, scales, np.float32(1))[:, None]
            stored = np.rint(features / steps).astype(np.int8)
            self._note_error(features, stored * scales[:, None])
            return {"features": stored, "scales": scales}
        if self.description.kind == "float32":
            return {"features": features}
        halves = torch.from_numpy(features).half()  # torch converts several times as fast as numpy
        self._note_error(features, halves.float().numpy())
        return {"features": halves.numpy()}

    def _note_error(self, given: np.ndarray, stored: np.ndarray) -> None:
        self.largest_error = max(self.largest_error, float(np.abs(given - stored).max()))
