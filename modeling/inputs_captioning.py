"""Inputs of a captioner: the names that it declares, and the checks of regions, masks and boxes."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from .configuration_captioning import input_names, mask_name
from .layers_vision import RegionFeatures

# How far a box may lie outside of the image before it is an error; smaller excess is rounding and is clamped.
BOX_TOLERANCE = 0.01
# Names without effect on a captioner that callers pass along: `transformers` asks for outputs by this one.
IGNORED_NAMES = ("return_dict",)


def declare_inputs(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """Return a forward method whose signature names further inputs, which it receives in its `**inputs`.

    `generate()` and the Trainer of transformers read the signature of `forward` to find out which inputs a model has.

    Args:
        function: a method with a parameter `**inputs`.
        names: keyword arguments to add to its signature, each with the default None.
    """

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    *listed, rest = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Tensor | None)
        for name in names
        if name not in signature.parameters
    ]
    forward.__signature__ = signature.replace(parameters=[*listed, *added, rest])  # type: ignore[attr-defined]
    return forward


def read_inputs(given: Mapping[str, Any], declared: Mapping[str, str], owner: Any) -> dict[str, Any]:
    """Return the declared inputs among the keyword arguments that a forward method got.

    Args:
        given: keyword arguments that are not in the method's own signature.
        declared: names and layouts, as in `CaptioningConfig.encoder_inputs`.
        owner: the module that was called, for the message.

    Raises:
        TypeError: a name is unknown and its value is not None; the message has the nearest name.
    """
    names = input_names(declared)
    unknown = [
        name for name, value in given.items() if name not in names and name not in IGNORED_NAMES and value is not None
    ]
    if unknown:
        known = [name for name in inspect.signature(owner.forward).parameters if name != "inputs"]
        nearest = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean `{nearest[0]}`?" if nearest else f"it reads {', '.join(f'`{name}`' for name in known)}."
        raise TypeError(f"`{unknown[0]}` is not an input of {type(owner).__name__}; {hint}")
    return {name: given[name] for name in names if given.get(name) is not None}


def check_inputs(inputs: Mapping[str, Tensor], declared: Mapping[str, str], regions: RegionFeatures) -> None:
    """Raise a `ValueError` if a declared input has another number of images or regions than the regions."""
    assert regions.region_features is not None
    images, count = regions.region_features.shape[:2]
    leading = {"ids": (images,), "vector": (images,), "region": (images, count), "relation": (images, count, count)}
    for name, layout in declared.items():
        for keyword in (name, mask_name(name)) if layout == "ids" else (name,):
            value, expected = inputs.get(keyword), leading.get(layout, ())
            if value is not None and tuple(value.shape[: len(expected)]) != expected:
                axes = ", ".join(("images", "regions", "regions")[: len(expected)])
                raise ValueError(
                    f"`{keyword}` has the shape {tuple(value.shape)}, expected {expected} ({axes}) as its first axes."
                )
            if layout == "ids" and keyword == name and value is not None and value.is_floating_point():
                raise ValueError(f"`{name}` has the type {value.dtype}, expected integer ids.")


def check_regions(regions: RegionFeatures, feature_size: int) -> RegionFeatures:
    """Check region features, masks, boxes and views, and clamp boxes that leave the image by rounding.

    Args:
        regions: see `RegionFeatures`.
        feature_size: the width of features that the model reads.

    Returns:
        The regions, with boxes in float32 and within 0..1.

    Raises:
        ValueError: a shape or a value is wrong. In a compiled graph only shapes are checked.
    """
    check_shapes(regions, feature_size)
    boxes = regions.region_boxes
    if boxes is not None:
        boxes = boxes.float()
    if not torch.compiler.is_compiling():  # a compiled graph cannot branch on values
        check_values(regions, boxes)
    if boxes is None:
        return regions
    return RegionFeatures(**dict(regions.items()) | {"region_boxes": boxes.clamp(0.0, 1.0)})


def check_shapes(regions: RegionFeatures, feature_size: int) -> None:
    """Raise a `ValueError` if a shape of the regions is wrong."""
    features, mask, boxes = regions.region_features, regions.region_mask, regions.region_boxes
    if features.ndim != 3:
        raise ValueError(
            f"`region_features` has the shape {tuple(features.shape)}, expected [images, regions, features]."
        )
    if features.shape[-1] != feature_size:
        raise ValueError(
            f"`region_features` has {features.shape[-1]} features per region, the checkpoint was trained on "
            f"{feature_size} (`config.region_feature_size`). Extract features with the same backbone, or build the "
            f"model with `region_feature_size={features.shape[-1]}`."
        )
    if features.shape[1] == 0:
        raise ValueError(f"`region_features` has zero regions (shape {tuple(features.shape)}); an image needs one.")
    if mask is not None and mask.shape != features.shape[:2]:
        raise ValueError(
            f"`region_mask` has the shape {tuple(mask.shape)}, expected {tuple(features.shape[:2])} "
            "(images, regions; True = a real region)."
        )
    if boxes is not None and boxes.shape != (*features.shape[:2], 4):
        raise ValueError(
            f"`region_boxes` has the shape {tuple(boxes.shape)}, expected {(*features.shape[:2], 4)} "
            "(normalised xyxy)."
        )
    views = regions.region_views
    if views is not None and views.shape != features.shape[:2]:
        raise ValueError(
            f"`region_views` has the shape {tuple(views.shape)}, expected {tuple(features.shape[:2])} "
            "(images, regions; the number of the view that a region is in)."
        )


def check_values(regions: RegionFeatures, boxes: Tensor | None) -> None:
    """Raise a `ValueError` if features are not finite, a mask hides everything, or a visible region's box is wrong."""
    features, mask = regions.region_features, regions.region_mask
    if not torch.isfinite(features).all():
        raise ValueError(
            "`region_features` holds NaN or infinite values in row(s) "
            f"{_rows(~torch.isfinite(features))} of the batch."
        )
    if mask is not None and not mask.any(dim=1).all():
        raise ValueError(
            f"`region_mask` hides every region of row(s) {_rows(~mask.any(dim=1))} of the batch; an image needs one."
        )
    if boxes is None:
        return
    visible = boxes.new_ones(boxes.shape[:2], dtype=torch.bool) if mask is None else mask
    broken = visible & ~torch.isfinite(boxes).all(-1)
    if broken.any():
        raise ValueError(f"`region_boxes` holds NaN or infinite values in row(s) {_rows(broken)} of the batch.")
    outside = visible & ((boxes < -BOX_TOLERANCE) | (boxes > 1 + BOX_TOLERANCE)).any(-1)
    if outside.any():
        raise ValueError(
            f"`region_boxes` leaves the image in row(s) {_rows(outside)} of the batch: {_first(boxes, outside)}, "
            "expected x1, y1, x2, y2 in 0..1. Divide boxes in pixels by the image's size: "
            "boxes / [width, height, width, height]."
        )
    turned = visible & (boxes[..., 2:] < boxes[..., :2]).any(-1)
    if turned.any():
        raise ValueError(
            f"`region_boxes` has x2 < x1 or y2 < y1 in row(s) {_rows(turned)} of the batch: {_first(boxes, turned)}. "
            "If your boxes are x, y, width, height, add the first two to the last two."
        )


def _rows(wrong: Tensor) -> list[int]:
    """Return the first rows of a batch in which an entry of `wrong` `[B, ...]` is True."""
    return wrong.reshape(len(wrong), -1).any(1).nonzero().flatten().tolist()[:10]


def _first(boxes: Tensor, wrong: Tensor) -> list[float]:
    return [round(value, 4) for value in boxes[wrong][0].tolist()]
