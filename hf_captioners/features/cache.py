"""Cache of the features of a frozen vision model: computed once per image, then read from a feature store.

The cache's directory has one store per extractor (weights, layer, grid, image preparation) and data type. Data sets
share it: the key of an image is a digest of its content. A build that was killed resumes where it stopped.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from filelock import BaseFileLock
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_captioners.data.image_digests import image_digests
from hf_captioners.data.image_feature import with_allowed_formats
from hf_captioners.processing.image_reading import read_image

from .extraction import GridExtractor, extractor_of
from .feature_store import STORE_FILE, FeatureStore, StoredKind
from .feature_store_writer import FeatureStoreWriter
from .region_rows import RegionRows, require_stored_rows
from .region_source import Regions
from .regions_column import store_regions
from .shared_cache import GIGABYTE, SharedCache

logger = logging.get_logger(__name__)

# About 40 grids of 7 x 7 x 2048 in half precision: at most these are computed again after a kill.
SHARD_BYTES = 8 * 2**20


def can_cache(model: PreTrainedModel) -> bool:
    """Return True if a model's vision part is frozen, so that its features can be stored."""
    config = model.config
    frozen = getattr(config, "freeze_vision", False) and getattr(config, "vision_config", None) is not None
    return bool(frozen) and hasattr(model, "get_region_features")


def vision_part(model: PreTrainedModel, processor: Any) -> GridExtractor:
    """Return the feature extractor that a captioner's vision part and image preparation form."""
    vision = model.model.encoder.vision
    return extractor_of(vision, processor.image_processor, model.config.vision_config.model_type)


class FeatureCache:
    """Feature store of one captioner's frozen vision part, filled as images are trained on.

    Args:
        directory: the directory of the stores; made when needed. With `shared`: the one for features that do not fit
            into the shared cache.
        model: a captioner for which `can_cache` is True.
        processor: its processor.
        dtype: `"float16"` or `"float32"`.
        batch_size: images at a time; on CPU a small batch is faster, because its feature maps fit the CPU's caches.
        workers: processes that decode images.
        shard_bytes: size of the features that are written at once.
        shared: the cache of all runs, see `SharedCache`. None: the directory alone is used.
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
        shared: SharedCache | None = None,
    ) -> None:
        self.vision = vision_part(model, processor)
        self.dtype, self.batch_size, self.workers, self.shard_bytes = dtype, batch_size, workers, shard_bytes
        self.extractor = self.vision.digest
        name = f"{self.extractor[:16]}-{dtype}"
        self.folder, self.shared = Path(directory, name), shared
        self._use: BaseFileLock | None = None
        self._shards: set[Path] = set()  # that data sets of this process read
        if shared is None or (self.folder / STORE_FILE).is_file():  # a run goes on with features of its own
            self.shared = None
            return
        try:
            self._use = shared.use(shared.folder / name)
            self.own_folder, self.folder = self.folder, shared.folder / name
        except OSError as error:
            logger.warning(f"Features are stored in {self.folder}: {shared.folder} cannot be used ({error}).")
            self.shared = None

    def features_of(self, rows: Dataset) -> RegionRows:
        """Return the features of a data set's images; compute and store the missing ones.

        Args:
            rows: a data set with one column: `image`, or `images` for several views.

        Raises:
            ValueError: an image cannot be read, or a feature is NaN, infinite or too large for the data type.
        """
        keys = image_digests(rows)
        assert keys is not None, rows.column_names
        store = FeatureStore(self.folder) if (self.folder / STORE_FILE).is_file() else None
        missing = len({key for key in keys if store is None or key not in store})
        if missing:
            if self.shared is not None:
                self._make_room(self.shared, rows, store, keys, missing)
            logger.warning(f"Computing the features of {missing:,} images, to be stored in {self.folder}.")
            self._build(rows, keys)
        store = FeatureStore(self.folder)
        if self.shared is not None:
            self._shards |= (used := store.shards_of(keys))
            self.shared.touch(used)
        return require_stored_rows(store, self.extractor, keys)

    def _make_room(
        self, shared: SharedCache, rows: Dataset, store: FeatureStore | None, keys: Sequence[str], missing: int
    ) -> None:
        """Remove features that were not used for longest; a run too large for the cache gets its own folder."""
        size, images = self._bytes_of_image(rows), len(set(keys))
        if size * images > shared.limit:
            needed, limit = (f"{count / GIGABYTE:,.1f} GB" for count in (size * images, shared.limit))
            logger.warning(
                f"The features of {images:,} images take {needed}, more than the {limit} of the cache that all runs "
                f"share (`feature_cache_gb`): they are stored in {self.own_folder}."
            )
            self.folder, self.shared = self.own_folder, None
            if self._use is not None:
                self._use.release()
            return
        keep = self._shards | (set() if store is None else store.shards_of(keys))
        shared.make_room(size * missing, keep, self._use)

    def _bytes_of_image(self, rows: Dataset) -> int:
        """Return the number of bytes of the first image's features; 0 if it cannot be read."""
        try:
            (views,) = with_allowed_formats(rows)[0].values()
            images = [read_image(view) for view in (views if isinstance(views, list) else [views])]
            regions = self.vision(self.vision.prepare(images))
        except Exception:  # decoders raise errors of many types
            return 0
        size = sum(region_set.features.size * (2 if self.dtype == "float16" else 4) for region_set in regions)
        return size + sum(region_set.boxes.nbytes for region_set in regions if region_set.boxes is not None)

    def _build(self, rows: Dataset, keys: list[str]) -> None:
        description = self.vision.description(self.dtype)
        # A second run may fill the same store: wait for it, and compute what is still missing.
        with FeatureStoreWriter(self.folder, description, shard_bytes=self.shard_bytes, patience=-1) as writer:
            store_regions(rows, self._extract, writer, self.batch_size, self.vision.prepare, self.workers, keys)

    def _extract(self, inputs: dict[str, Any]) -> list[Regions]:
        return self.vision(inputs)
