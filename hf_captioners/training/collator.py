"""Collator: items of captioned images become batches of tensors."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .caption_encoding import CaptionEncoder


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

        Further columns that the model reads (`CaptionedImages.row_inputs`) are padded, see `pad_ids`.
        """
        images = once_each(items) if self.share_images and "row" in items[0] else items
        if "region_features" in items[0]:
            batch = stack_features(images)
        else:
            batch = self.encoder.encode_images(images)
        for name in items[0].get("row_inputs", ()):
            batch.update(pad_ids(name, [item["row_inputs"][name] for item in images]))
        if "caption" in items[0]:
            batch.update(self.encoder.encode_captions([item["caption"] for item in items]))
        return batch


def once_each(items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the first item of each image, if all images have the same number of consecutive items."""
    runs = [len(list(run)) for _, run in itertools.groupby(item["row"] for item in items)]
    return items[:: runs[0]] if len(set(runs)) == 1 else items


def pad_ids(name: str, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Pad the variable-length ids of B images.

    Args:
        name: of the column, such as `attribute_ids`.
        rows: the ids of each image.

    Returns:
        NAME `[B, N]` int64, padded with 0, and its mask `[B, N]` bool, True at real ids: `attribute_ids` has the mask
        `attribute_mask`. N is at least 1, so that an image without ids also has a row.
    """
    counts = torch.tensor([len(row) for row in rows])
    mask = torch.arange(max(1, int(counts.max()))) < counts[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.tensor([value for row in rows for value in row], dtype=torch.long)
    return {name: ids, f"{name.removesuffix('_ids')}_mask": mask}


def stack_features(items: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Stack the stored features of B images as `[B, R, D]` float32, with boxes `[B, R, 4]` and mask `[B, R]`."""
    counts = np.array([len(item["region_features"]) for item in items])
    columns: dict[str, Tensor] = {
        name: torch.from_numpy(_padded([item[name] for item in items], counts)).float()
        for name in ("region_features", "region_boxes")
        if name in items[0]
    }
    return {**columns, "region_mask": torch.from_numpy(np.arange(counts.max()) < counts[:, None])}


def _padded(rows: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Pad rows `[R_i, D]` with zeros to `[B, R, D]`."""
    if (counts == counts[0]).all():
        return np.stack(rows)
    padded = np.zeros((len(rows), counts.max(), rows[0].shape[1]), rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
