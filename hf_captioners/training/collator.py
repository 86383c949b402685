"""Collator: items of captioned images become batches of tensors."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .caption_encoding import CaptionEncoder
from .streams import SKIPPED


@dataclass
class CaptionCollator:
    """Collator of B items of `CaptionPairs` (with labels) or of `CaptionedImages` (without).

    Args:
        encoder: encodes images and captions.
        share_images: put an image into the batch once if the K captions of each image follow each other; for models
            that read B images with B * K captions, as those of this library.
    """

    encoder: CaptionEncoder
    share_images: bool = False

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return `pixel_values`, or `region_features`, `region_boxes` and `region_mask`; with captions also `labels`.

        Further inputs that the model declares are padded, see `CaptioningProcessor.pad_columns`.
        """
        if SKIPPED in items[0]:
            return {SKIPPED: torch.ones(len(items), dtype=torch.bool)}
        images = once_each(items) if self.share_images and "row" in items[0] else items
        if "region_features" in items[0]:
            batch = stack_features(images)
        else:
            batch = self.encoder.encode_images(images)
        if declared := items[0].get("declared"):
            rows = {name: [item["declared"][name] for item in images] for name in declared}
            batch.update(self.encoder.encode_columns(rows, len(images)))
        if "caption" in items[0]:
            batch.update(self.encoder.encode_captions([item["caption"] for item in items]))
        return batch


def once_each(items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the first item of each image, if all images have the same number of consecutive items."""
    runs = [len(list(run)) for _, run in itertools.groupby(item["row"] for item in items)]
    return items[:: runs[0]] if len(set(runs)) == 1 else items


def stack_features(items: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Stack the stored features of B images as `[B, R, D]` float32, with boxes `[B, R, 4]` and mask `[B, R]`."""
    counts = np.array([len(item["region_features"]) for item in items])
    columns: dict[str, Tensor] = {
        name: torch.from_numpy(_padded([item[name] for item in items], counts)).float()
        for name in ("region_features", "region_boxes")
        if name in items[0]
    }
    if "region_views" in items[0]:
        columns["region_views"] = torch.from_numpy(_padded([item["region_views"] for item in items], counts))
    return {**columns, "region_mask": torch.from_numpy(np.arange(counts.max()) < counts[:, None])}


def _padded(rows: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Pad rows `[R_i, ...]` with zeros to `[B, R, ...]`."""
    if (counts == counts[0]).all():
        return np.stack(rows)
    padded = np.zeros((len(rows), counts.max(), *rows[0].shape[1:]), rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
