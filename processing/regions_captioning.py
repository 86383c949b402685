"""Regions that were extracted beforehand, put into padded batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def batch_regions(regions: Any) -> dict[str, np.ndarray]:
    """Pad the regions of several pictures to a batch.

    Args:
        regions: one entry a picture: features `[R, D]`, or `{"features": [R, D], "boxes": [R, 4]}` with boxes as
            normalised corners x1, y1, x2, y2 in 0..1. An array `[B, R, D]` is B pictures; a single entry is one.

    Returns:
        `region_features` `[B, R, D]` float32, zero where padded; `region_mask` `[B, R]` bool, True at real regions;
        `region_boxes` `[B, R, 4]` float32 if boxes were given. R is the largest number of regions of a picture.

    Raises:
        ValueError: features are not two-dimensional, empty, not finite, or of different sizes; boxes are missing for
            some pictures, do not fit the features, or are not normalised corners.
    """
    entries = [_entry(entry, index) for index, entry in enumerate(_pictures_of(regions))]
    if not entries:
        raise ValueError("`regions` is empty; expected one entry a picture.")
    sizes = sorted({features.shape[1] for features, _ in entries})
    if len(sizes) > 1:
        raise ValueError(
            f"`regions` mixes features of sizes {sizes}; expected one size. Extract all pictures with one model."
        )
    counts = [len(features) for features, _ in entries]
    batch = {
        "region_features": np.zeros((len(entries), max(counts), sizes[0]), dtype=np.float32),
        "region_mask": np.arange(max(counts)) < np.array(counts)[:, None],
    }
    with_boxes = [boxes is not None for _, boxes in entries]
    if any(with_boxes):
        if not all(with_boxes):
            raise ValueError(
                f"`regions` has boxes for some pictures only; picture {with_boxes.index(False)} has none. Give boxes "
                "for all pictures or for none."
            )
        batch["region_boxes"] = np.zeros((len(entries), max(counts), 4), dtype=np.float32)
    for index, (features, boxes) in enumerate(entries):
        batch["region_features"][index, : len(features)] = features
        if boxes is not None:
            batch["region_boxes"][index, : len(boxes)] = boxes
    return batch


def _pictures_of(regions: Any) -> list[Any]:
    if isinstance(regions, Mapping):
        return [regions]
    if isinstance(regions, (np.ndarray, torch.Tensor)):
        return [regions] if regions.ndim == 2 else list(regions)
    return list(regions)


def _entry(entry: Any, index: int) -> tuple[np.ndarray, np.ndarray | None]:
    boxes = None
    if isinstance(entry, Mapping):
        if "features" not in entry or (unknown := sorted(entry.keys() - {"features", "boxes"})):
            known = sorted(entry) if "features" not in entry else unknown
            raise ValueError(
                f"`regions` of picture {index} has the keys {known}; expected 'features' and, if there are any, 'boxes'."
            )
        entry, boxes = entry["features"], entry.get("boxes")
    features = _array(entry)
    if features.ndim != 2:
        raise ValueError(
            f"`regions` of picture {index} has the shape {features.shape}; expected features [R, D]: R regions, "
            "D features a region."
        )
    if features.shape[0] == 0 or features.shape[1] == 0:
        raise ValueError(
            f"`regions` of picture {index} has the shape {features.shape}: there is nothing to look at. Leave the "
            "picture out, or give it one region that covers the whole picture."
        )
    if not np.isfinite(features).all():
        bad = int(np.argmin(np.isfinite(features).all(axis=1)))
        raise ValueError(
            f"`regions` of picture {index} has NaN or infinite features, first in region {bad}. Extract the picture "
            "again."
        )
    return features, None if boxes is None else _checked_boxes(_array(boxes), len(features), index)


def _checked_boxes(boxes: np.ndarray, count: int, index: int) -> np.ndarray:
    if boxes.shape != (count, 4):
        raise ValueError(
            f"Boxes of picture {index} have the shape {boxes.shape}; its {count} regions need ({count}, 4): x1, y1, "
            "x2, y2."
        )
    rim = 1e-4  # of rounding: boxes are often stored in half precision or divided in single precision
    if not (np.isfinite(boxes).all() and boxes.min() >= -rim and boxes.max() <= 1 + rim):
        raise ValueError(
            f"Boxes of picture {index} run from {boxes.min():g} to {boxes.max():g}; expected 0..1. Divide them by the "
            "picture's size: boxes / [width, height, width, height]."
        )
    if (boxes[:, 2:] < boxes[:, :2] - rim).any():
        bad = int(np.argmax((boxes[:, 2:] < boxes[:, :2] - rim).any(axis=1)))
        raise ValueError(
            f"Box {bad} of picture {index} is {boxes[bad].round(4).tolist()}; expected corners x1 <= x2, y1 <= y2. "
            "If it is x, y, width, height, add the first two to the last two."
        )
    return boxes


def _array(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().float().numpy()
    return np.asarray(values, dtype=np.float32)
