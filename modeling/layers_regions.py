"""Layers over regions: projection of features, layer and batch norm, mean; repetition of images for their captions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class UnbiasedLayerNorm(nn.Module):
    """Layer normalisation of the ImageCaptioning.pytorch family: `a (x - mean) / (std + eps) + b`.

    Unlike `nn.LayerNorm`, the standard deviation divides by D - 1 and `eps` is added to it, not to the variance.

    Args:
        hidden_size: D.
        eps: added to the standard deviation.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """Normalise the last axis of `[..., D]`."""
        deviation = states.std(-1, keepdim=True)
        return self.weight * (states - states.mean(-1, keepdim=True)) / (deviation + self.eps) + self.bias


class RegionBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of regions `[B, R, D]` that ignores padding in its statistics."""

    def forward(self, regions: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Normalise regions `[B, R, D]`.

        Args:
            mask: `[B, R]`, True = a real region; the others become 0 in training. None: all are real.
        """
        if mask is None or not self.training:  # the stored statistics do not depend on the batch
            return super().forward(regions.flatten(0, 1)).unflatten(0, regions.shape[:2])
        return torch.zeros_like(regions).masked_scatter(mask[..., None], super().forward(regions[mask]))


REGION_NORMS = ("none", "layer", "batch_input", "batch")


class RegionProjection(nn.Module):
    """Projection of region features to the width of the model: linear layer, activation, dropout, norms.

    Args:
        feature_size: D_in of the regions.
        hidden_size: D.
        norm: `"none"`; `"layer"`: layer norm after the dropout (M2, VisualGPT); `"batch_input"`: batch norm of the
            features; `"batch"`: that and another one after the dropout (`use_bn` 1 and 2 of the
            ImageCaptioning.pytorch family).
        dropout: rate after the activation.
        activation: function of the linear projection.
    """

    def __init__(
        self,
        feature_size: int,
        hidden_size: int,
        norm: str = "none",
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.input_norm = RegionBatchNorm(feature_size) if norm.startswith("batch") else None
        self.linear = nn.Linear(feature_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.norm: nn.Module | None = None
        if norm == "layer":
            self.norm = nn.LayerNorm(hidden_size, eps=1e-5)
        elif norm == "batch":
            self.norm = RegionBatchNorm(hidden_size)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Project region features `[B, R, D_in]` to `[B, R, D]`.

        Args:
            mask: `[B, R]`, True = a real region; None: all are.
        """
        if self.input_norm is not None:
            features = self.input_norm(features, mask)
        projected = self.dropout(self.activation(self.linear(features)))
        if isinstance(self.norm, RegionBatchNorm):
            return self.norm(projected, mask)
        return projected if self.norm is None else self.norm(projected)


def rows_of_images(values: Tensor, rows: int) -> Tensor:
    """Repeat each image's values for its K text rows: `[B, ...]` to `[B * K, ...]`.

    Unlike `repeat_interleave`, K may be free in a program that is exported to ONNX.
    """
    return values[:, None].expand(-1, rows // values.shape[0], *values.shape[1:]).flatten(0, 1)


def mean_of_visible(states: Tensor, mask: Tensor | None) -> Tensor:
    """Average the visible regions of each image: `[B, R, D]` to `[B, D]`.

    Args:
        mask: `[B, R]`, True = visible; None: all are.
    """
    if mask is None:
        return states.mean(1)
    visible = mask[..., None].to(states.dtype)
    return (states * visible).sum(1) / visible.sum(1)
