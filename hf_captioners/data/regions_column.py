"""Regions beside captions: a data set whose rows bring the regions of their picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import PIL.Image
from datasets import Dataset

from .feature_store_writer import FeatureStoreWriter
from .region_source import MissingRegionsError, Regions, RegionSource
from .report import DataReport, ProblemKind
from .schema import IMAGE, IMAGE_ID

REGIONS = "regions"


def with_regions(
    dataset: Dataset, source: RegionSource, allow_missing: bool = False, report: DataReport | None = None
) -> Dataset:
    """Give each row the regions of its picture, read when the row is looked at.

    Args:
        dataset: rows with `image_id`.
        source: a feature store, or a reader of region features.
        allow_missing: leave out pictures without regions; otherwise they are an error.
        report: gets the pictures that were left out.

    Returns:
        The data set with a column `regions` of `{"features": [R, D], "boxes": [R, 4]}` in the place of `image`.

    Raises:
        MissingRegionsError: pictures have no regions and `allow_missing` is off.
        ValueError: no picture has regions.
    """
    ids = dataset[IMAGE_ID][:]
    present = [row for row, image_id in enumerate(ids) if image_id in source]
    missing = [image_id for image_id in ids if image_id not in source]
    if missing and not allow_missing:
        raise MissingRegionsError(
            f"{source.name} has no regions of {len(missing):,} of {len(ids):,} pictures, such as "
            f"{', '.join(missing[:3])}. Extract them, or pass allow_missing=True to leave them out."
        )
    if not present:
        raise ValueError(f"{source.name} has regions of none of the {len(ids):,} pictures (such as {ids[0]}).")
    if report is not None:
        for image_id in missing:
            report.add(ProblemKind.MISSING_PICTURE, source.name, None, f"no regions of {image_id}")
    chosen = dataset.select(present) if missing else dataset
    if IMAGE in chosen.column_names:
        chosen = chosen.remove_columns(IMAGE)
    return chosen.with_transform(partial(_add_regions, source=source))


def _add_regions(rows: Mapping[str, list[Any]], source: RegionSource) -> dict[str, list[Any]]:
    return {**rows, REGIONS: [source[image_id].as_entry() for image_id in rows[IMAGE_ID]]}


def store_regions(
    dataset: Iterable[Mapping[str, Any]],
    extract: Callable[[list[PIL.Image.Image]], list[Regions]],
    writer: FeatureStoreWriter,
    batch_size: int = 32,
) -> int:
    """Compute the regions of all pictures that a store does not have yet.

    Args:
        dataset: rows with `image_id` and `image`; for several processes, `dataset.shard(processes, rank)` in each,
            with `writer=rank`.
        extract: computes the regions of several pictures.
        writer: where they go, opened as a context manager by the caller.
        batch_size: pictures at a time.

    Returns:
        How many pictures were computed.
    """
    ids: list[str] = []
    pictures: list[PIL.Image.Image] = []
    computed = 0

    def flush() -> int:
        for image_id, regions in zip(ids, extract(pictures) if ids else [], strict=True):
            writer.add(image_id, regions)
        count = len(ids)
        ids.clear()
        pictures.clear()
        return count

    if isinstance(dataset, Dataset):  # without decoding what is stored already
        dataset = dataset.select([row for row, name in enumerate(dataset[IMAGE_ID]) if name not in writer.done])
    for row in dataset:
        if row[IMAGE_ID] not in writer.done:
            ids.append(row[IMAGE_ID])
            pictures.append(row[IMAGE])
            if len(ids) == batch_size:
                computed += flush()
    return computed + flush()
