"""Cache of the features of a frozen vision model: computed once per image, then read from a feature store.

The cache's directory has one store per extractor (weights, layer, grid, image preparation) and data type. Data sets
share it: the key of an image is a digest of its content. A build that was killed resumes where it stopped.
"""

import os
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_captioners.data.image_digests import image_digests

from .extraction import GridExtractor, extractor_of
from .feature_store import STORE_FILE, FeatureStore, StoredKind
from .feature_store_writer import FeatureStoreWriter
from .region_rows import RegionRows, require_stored_rows
from .region_source import Regions
from .regions_column import store_regions

logger = logging.get_logger(__name__)

# About 40 grids of 7 x 7 x 2048 in half precision: at most these are computed again after a kill.
SHARD_BYTES = 8 * 2**20


def can_cache(model: PreTrainedModel) -> bool:
    """Return whether a model has a frozen vision part."""
    config = model.config
    frozen = getattr(config, "freeze_vision", False) and getattr(config, "vision_config", None) is not None
    return bool(frozen) and hasattr(model, "get_region_features")


def vision_part(model: PreTrainedModel, processor: Any) -> GridExtractor:
    """Return the vision part of a captioner of this library, with its image preparation."""
    vision = model.model.encoder.vision
    return extractor_of(vision, processor.image_processor, model.config.vision_config.model_type)


class FeatureCache:
    """Cache of the features of one captioner's vision part.

    Args:
        directory: the directory of the stores; made when needed.
        model: a captioner for which `can_cache` is True.
        processor: its processor.
        dtype: `"float16"` or `"float32"`.
        batch_size: images at a time; on CPU a small batch is faster, because its feature maps fit the CPU's caches.
        workers: processes that decode images.
        shard_bytes: size of the features that are written at once.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: PreTrainedModel,
        processor: Any,
        dtype: StoredKind = "float16",
        batch_size: int = 8,
        workers: int = 0,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.vision = vision_part(model, processor)
        self.dtype, self.batch_size, self.workers, self.shard_bytes = dtype, batch_size, workers, shard_bytes
        self.extractor = self.vision.digest
        self.folder = Path(directory, f"{self.extractor[:16]}-{dtype}")

    def features_of(self, rows: Dataset) -> RegionRows:
        """Return the features of the images of a data set; compute those that are not stored yet.

        Args:
            rows: a data set with one column: `image`, or `images` for several views.

        Raises:
            ValueError: an image cannot be read, or a feature is NaN, infinite or too large for the data type.
        """
        keys = image_digests(rows)
        assert keys is not None, rows.column_names
        known = FeatureStore(self.folder) if (self.folder / STORE_FILE).is_file() else ()
        missing = len({key for key in keys if key not in known})
        if missing:
            logger.warning(f"Computing the features of {missing:,} images, to be stored in {self.folder}.")
            self._build(rows, keys)
        return require_stored_rows(FeatureStore(self.folder), self.extractor, keys)

    def _build(self, rows: Dataset, keys: list[str]) -> None:
        description = self.vision.description(self.dtype)
        # A second run may fill the same store: wait for it, and compute what is still missing.
        with FeatureStoreWriter(self.folder, description, shard_bytes=self.shard_bytes, patience=-1) as writer:
            store_regions(rows, self._extract, writer, self.batch_size, self.vision.prepare, self.workers, keys)

    def _extract(self, inputs: dict[str, Any]) -> list[Regions]:
        return self.vision(inputs)
