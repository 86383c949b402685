"""Items of captioned pictures into batches of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .caption_encoding import CaptionEncoder


@dataclass
class CaptionCollator:
    """Makes a batch of B items of `CaptionPairs` (with labels) or of `CaptionedPictures` (without).

    Args:
        encoder: turns pictures and captions into tensors.
    """

    encoder: CaptionEncoder

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`pixel_values`, or `region_features`, `region_boxes` and `region_mask`; with captions, `labels` too."""
        if "region_features" in items[0]:
            batch = stack_features(items)
        else:
            batch = self.encoder.encode_pictures(items)
        if "caption" in items[0]:
            batch.update(self.encoder.encode_captions([item["caption"] for item in items]))
        return batch


def stack_features(items: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Stored features of B pictures, `[B, R, D]`, with boxes `[B, R, 4]`; every region is real."""
    features = torch.from_numpy(np.stack([item["region_features"] for item in items])).float()
    return {
        "region_features": features,
        "region_boxes": torch.from_numpy(np.stack([item["region_boxes"] for item in items])),
        "region_mask": torch.ones(features.shape[:2], dtype=torch.bool),
    }
