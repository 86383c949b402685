"""Features of a frozen vision model, computed once a picture and read from a memory-mapped file afterwards.

A cache is a directory named after the extractor and the pictures, with `features.npy` `[N, R, D]` and `cache.json`.
It is written in order and in steps; a build that was killed goes on where it stopped.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Image
from torch.utils.data import DataLoader, Subset
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import logging

from .caption_encoding import CaptionEncoder
from .collator import CaptionCollator
from .pictures import CaptionedPictures

logger = logging.get_logger(__name__)

DESCRIPTION, VALUES = "cache.json", "features.npy"


def can_cache(model: PreTrainedModel) -> bool:
    """Whether a model has a vision part whose output never changes."""
    config = model.config
    frozen = getattr(config, "freeze_vision", False) and getattr(config, "vision_config", None) is not None
    return bool(frozen) and hasattr(model, "get_region_features")


def extractor_id(model: PreTrainedModel, processor: Any) -> str:
    """A digest of everything that features depend on beside the picture: weights, layer, grid and preparation."""
    digest = hashlib.sha256()
    config = model.config
    settings = processor.image_processor.to_dict()
    for name in ("auto_map", "processor_class"):
        settings.pop(name, None)
    said = [config.vision_feature_layer, config.vision_grid_size, config.vision_config.to_dict(), settings]
    digest.update(json.dumps(said, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.model.encoder.vision.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def pictures_id(rows: Dataset) -> str:
    """A digest of the pictures of a data set: their bytes, or path, size and time where they are files."""
    digest = hashlib.sha256()
    for row in rows.select_columns(["image"]).cast_column("image", Image(decode=False)):
        stored = row["image"]
        if stored["bytes"] is not None:
            digest.update(hashlib.sha256(stored["bytes"]).digest())
        else:
            status = os.stat(stored["path"])
            digest.update(f"{os.path.abspath(stored['path'])}:{status.st_size}:{status.st_mtime_ns};".encode())
    return digest.hexdigest()


class StoredFeatures:
    """A finished cache, open for reading.

    Args:
        folder: the cache's directory.
        extractor: `extractor_id` of the model that wants to read it.

    Raises:
        ValueError: the features are of another extractor, or the cache is unfinished.
    """

    def __init__(self, folder: str | os.PathLike[str], extractor: str) -> None:
        self.folder = Path(folder)
        found = json.loads((self.folder / DESCRIPTION).read_text(encoding="utf-8"))
        if found["extractor"] != extractor:
            raise ValueError(
                f"The features in {folder} are of the extractor {found['extractor'][:16]}, this model's vision part "
                f"with its picture preparation is {extractor[:16]}. Delete the folder, or pass another "
                "`feature_cache_dir`."
            )
        if found["done"] < found["shape"][0]:
            raise ValueError(f"The features in {folder} are unfinished: {found['done']} of {found['shape'][0]} rows.")
        self.boxes = np.array(found["boxes"], dtype=np.float32)
        self.values = np.load(self.folder / VALUES, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        """`region_features` `[R, D]` and `region_boxes` `[R, 4]` of one picture."""
        return {"region_features": np.array(self.values[row]), "region_boxes": self.boxes}

    def __getstate__(self) -> dict[str, Any]:
        """Workers open the file themselves instead of getting a copy of it."""
        return {"folder": self.folder, "boxes": self.boxes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.folder, self.boxes = state["folder"], state["boxes"]
        self.values = np.load(self.folder / VALUES, mmap_mode="r")


class FeatureCache:
    """Builds and finds caches of one extractor below one directory.

    Args:
        directory: where caches lie; made when needed.
        model: a captioner for which `can_cache` is True.
        processor: its processor.
        encoder: prepares its pictures.
        dtype: `"float16"` or `"float32"`.
        batch_size: pictures at a time. workers: processes that decode pictures.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: PreTrainedModel,
        processor: Any,
        encoder: CaptionEncoder,
        dtype: str = "float16",
        batch_size: int = 32,
        workers: int = 0,
    ) -> None:
        self.directory = Path(directory)
        self.model, self.collator = model, CaptionCollator(encoder)
        self.dtype, self.batch_size, self.workers = np.dtype(dtype), batch_size, workers
        self.extractor = f"{extractor_id(model, processor)}-{self.dtype}"

    def features_of(self, pictures: CaptionedPictures) -> StoredFeatures:
        """Features of pictures, computed if they are not there yet.

        Raises:
            ValueError: a feature is NaN, infinite or too large for the data type.
        """
        folder = self.directory / f"{self.extractor[:16]}-{self.dtype}-{pictures_id(pictures.rows)[:16]}"
        self._build(folder, pictures)
        return StoredFeatures(folder, self.extractor)

    def _build(self, folder: Path, pictures: CaptionedPictures) -> None:
        done = _rows_done(folder)
        if done == len(pictures):
            return
        folder.mkdir(parents=True, exist_ok=True)
        logger.warning(f"Computing the features of {len(pictures) - done:,} pictures, to be stored in {folder}.")
        rest = Subset(pictures, range(done, len(pictures)))
        generator = torch.Generator().manual_seed(0)  # the loader must not draw from the run's own random numbers
        loader = DataLoader(
            rest, self.batch_size, num_workers=self.workers, collate_fn=self.collator, generator=generator
        )
        values: np.ndarray | None = None
        for batch in tqdm(loader, desc="features", disable=None):
            features, boxes = self._extract(batch)
            if values is None:
                values = _open_values(folder, (len(pictures), *features.shape[1:]), self.dtype, is_new=not done)
            values[done : done + len(features)] = features
            done += len(features)
            values.flush()  # type: ignore[attr-defined]
            described = {"extractor": self.extractor, "shape": values.shape, "done": done, "boxes": boxes.tolist()}
            _write_atomically(folder / DESCRIPTION, json.dumps(described))

    @torch.no_grad()
    def _extract(self, batch: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Features `[B, R, D]` of a batch, and the boxes `[R, 4]` that all its pictures share."""
        found = self.model.get_region_features(batch["pixel_values"].to(self.model.device))
        features = found.region_features.float().cpu().numpy()
        limit = np.finfo(self.dtype).max
        if not (np.abs(features) <= limit).all():
            raise ValueError(
                f"A feature is {np.abs(features).max()}, more than {self.dtype} holds (or NaN). Pass "
                "`feature_cache_dtype='float32'` or `cache_features=False`."
            )
        return features.astype(self.dtype), found.region_boxes[0].float().cpu().numpy()


def _rows_done(folder: Path) -> int:
    description = folder / DESCRIPTION
    return json.loads(description.read_text(encoding="utf-8"))["done"] if description.exists() else 0


def _open_values(folder: Path, shape: tuple[int, ...], dtype: np.dtype, is_new: bool) -> np.ndarray:
    make: Callable[..., np.ndarray] = np.lib.format.open_memmap
    if is_new:
        return make(folder / VALUES, mode="w+", dtype=dtype, shape=shape)
    return make(folder / VALUES, mode="r+")


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
