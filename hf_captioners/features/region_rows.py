"""Regions of a data set's images by row number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .feature_store import FeatureStore
from .region_source import RegionSource

RELATIONS = "region_relations"


class RegionRows:
    """Regions of a data set's images by row number.

    Args:
        source: regions by key.
        keys: the key of every row's image in the source.
    """

    def __init__(self, source: RegionSource, keys: Sequence[str]) -> None:
        self.source, self.keys = source, keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        """Return the row's `region_features` `[R, D]`, and boxes, views and relations if the source has them.

        These are `region_boxes` `[R, 4]`, `region_views` `[R]` and `region_relations` `[R, R]`.
        """
        regions = self.source.stored(self.keys[row])
        optional = {"region_boxes": regions.boxes, "region_views": regions.views, RELATIONS: regions.relations}
        return {"region_features": regions.features} | {n: v for n, v in optional.items() if v is not None}


def require_stored_rows(store: FeatureStore, extractor: str, keys: Sequence[str]) -> RegionRows:
    """Return the stored regions of a data set by row; check extractor and completeness.

    Args:
        store: a feature store.
        extractor: `GridExtractor.digest` of the model that reads it.
        keys: the key of every row's image, see `image_digests`.

    Raises:
        ValueError: the features come from a different extractor, or some rows are missing.
    """
    revision = store.description.revision
    if revision != extractor:
        raise ValueError(
            f"The features in {store.folder} come from the extractor {revision[:16]}, this model's vision part with "
            f"its image preparation is {extractor[:16]}. Delete the folder, or pass a different `feature_cache_dir`."
        )
    stored = sum(key in store for key in keys)
    if stored < len(keys):
        raise ValueError(f"The features in {store.folder} are unfinished: {stored} of {len(keys)} rows.")
    return RegionRows(store, keys)
