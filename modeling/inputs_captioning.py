"""Inputs of captioners: regions, and inputs that a configuration declares; their names and checks of their values."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

# What `CaptioningEncoder.get_region_features` reads of images, beside the inputs that a configuration declares.
REGION_INPUTS = ("pixel_values", "region_features", "region_boxes", "region_mask", "view_mask", "region_views")
# What belongs to images, not to rows of text; inputs that a configuration declares for images are added.
IMAGE_INPUTS = (*REGION_INPUTS, "encoder_outputs")
# Names without effect on a captioner that callers pass along: `transformers` asks for outputs by this one.
IGNORED_NAMES = ("return_dict",)
# How far a box may lie outside of the image before it is an error; smaller excess is rounding and is clamped.
BOX_TOLERANCE = 0.01


def mask_name(name: str) -> str:
    """Return the name of the mask that belongs to an input of ids: `attribute_mask` for `attribute_ids`."""
    return f"{name.removesuffix('_ids')}_mask"


def input_names(inputs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keyword arguments of declared inputs: their names, and the masks of inputs of ids."""
    names: list[str] = []
    for name, layout in inputs.items():
        names += [name, mask_name(name)] if layout == "ids" else [name]
    return tuple(names)


def declare_inputs(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """Return a copy of a forward method whose signature lists further inputs, which it receives in its `**inputs`.

    `generate()` and the Trainer of transformers read the signature of `forward` to find out which inputs a model has.
    The method is a copy with a signature of its own, and not a wrapper, which would be one more frame of every call.

    Args:
        function: a method with a parameter `**inputs`, or what this function returned for a base class.
        names: keyword arguments to add to its signature, each with the default None.
    """
    function = getattr(function, "undeclared", function)
    signature = inspect.signature(function)
    *listed, keywords = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Tensor | None")
        for name in names
        if name not in signature.parameters
    ]
    declared: Any = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    functools.update_wrapper(declared, function).__kwdefaults__ = function.__kwdefaults__
    declared.__signature__ = signature.replace(parameters=[*listed, *added, keywords])
    declared.undeclared = function
    return declared


def read_inputs(given: Mapping[str, Any], owner: Any) -> dict[str, Any]:
    """Return the region inputs and the declared inputs among a forward method's keyword arguments; reject others.

    Args:
        given: keyword arguments that are not in the method's own signature.
        owner: the model that was called; its `declared_inputs()` are names and layouts.

    Raises:
        TypeError: a name is unknown and its value is not None; the message has the nearest name.
    """
    names = REGION_INPUTS + input_names(owner.declared_inputs())
    unknown = [
        name for name, value in given.items() if name not in names and name not in IGNORED_NAMES and value is not None
    ]
    if unknown:
        valid_names = [name for name in inspect.signature(owner.forward).parameters if name != "inputs"]
        nearest = get_close_matches(unknown[0], valid_names, n=1)
        listed = ", ".join(f"`{name}`" for name in valid_names)
        hint = f"did you mean `{nearest[0]}`?" if nearest else f"it reads {listed}."
        raise TypeError(f"`{unknown[0]}` is not an input of {type(owner).__name__}; {hint}")
    return {name: given[name] for name in names if given.get(name) is not None}


@dataclass
class RegionFeatures(ModelOutput):
    """Region features of B images.

    Args:
        region_features: `[B, R, D]`.
        region_boxes: `[B, R, 4]` float32, x1, y1, x2, y2 of every cell as shares of width and height of its view.
            Boxes stay in float32 in models of any precision: comparisons between them change with rounding.
        region_mask: `[B, R]`, True = a real region; all True for a grid.
        region_views: `[B, R]` int64, the view (image) of a study that each region is in; None: there is one view.
            Boxes of different views cannot be compared.
    """

    region_features: Tensor | None = None
    region_boxes: Tensor | None = None
    region_mask: Tensor | None = None
    region_views: Tensor | None = None


@dataclass
class DetectedRegions(RegionFeatures):
    """Regions of B images from a detector: features, boxes, scores and labels of its queries, then cells of a grid.

    Args:
        region_scores: `[B, R]` float32, the probability of the most probable class; 0 for cells.
        region_labels: `[B, R]` int64, that class, whose name is in `id2label` of the detector; -1 for cells.
    """

    region_scores: Tensor | None = None
    region_labels: Tensor | None = None


def check_inputs(inputs: Mapping[str, Tensor], declared: Mapping[str, str], regions: RegionFeatures) -> None:
    """Raise a `ValueError` if a declared input differs from the regions in the number of images or regions."""
    assert regions.region_features is not None
    images, count = regions.region_features.shape[:2]
    leading = {"ids": (images,), "vector": (images,), "region": (images, count), "relation": (images, count, count)}
    for name, layout in declared.items():
        for keyword in (name, mask_name(name)) if layout == "ids" else (name,):
            value, expected = inputs.get(keyword), leading.get(layout, ())
            if value is not None and not isinstance(value, Tensor):
                raise ValueError(
                    f"`{keyword}` is a {type(value).__name__}, expected a tensor. The processor makes it: "
                    f"processor(images=..., {name}=...)."
                )
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
    """Raise a `ValueError` if features, mask, boxes or views of the regions have a wrong shape."""
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
    visible = torch.ones_like(features[..., 0], dtype=torch.bool) if mask is None else mask
    # A sum reads the features once; it is also infinite if finite features are very large.
    right = torch.isfinite(features.sum()) & visible.any(dim=1).all()
    if boxes is not None:
        inside = ((boxes >= -BOX_TOLERANCE) & (boxes <= 1 + BOX_TOLERANCE)).all(-1)
        right &= (~visible | inside & (boxes[..., 2:] >= boxes[..., :2]).all(-1)).all()
    if right:  # the only value that a GPU is waited for
        return
    if not torch.isfinite(features).all():
        raise ValueError(
            f"`region_features` holds NaN or infinite values in row(s) {_rows(~features.isfinite())} of the batch."
        )
    if not visible.any(dim=1).all():
        raise ValueError(
            f"`region_mask` hides every region of row(s) {_rows(~visible.any(1))} of the batch; an image needs one."
        )
    if boxes is None:
        return
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


def without_padding(regions: RegionFeatures) -> RegionFeatures:
    """Return the regions with features and boxes of padding set to 0, so that no result depends on them."""
    mask, shape = regions.region_mask, regions.region_features.shape[:2]
    if mask is None or mask.shape != shape:
        return regions
    padding, changed = ~mask[..., None], dict(regions.items())
    for name in ("region_features", "region_boxes"):
        values = changed.get(name)
        if values is not None and values.shape[:2] == shape:
            changed[name] = values.masked_fill(padding, 0.0)
    return RegionFeatures(**changed)


def _rows(wrong: Tensor) -> list[int]:
    """Return the numbers of the first 10 rows of a batch in which an entry of `wrong` `[B, ...]` is True."""
    return wrong.reshape(len(wrong), -1).any(1).nonzero().flatten().tolist()[:10]


def _first(boxes: Tensor, wrong: Tensor) -> list[float]:
    return [round(value, 4) for value in boxes[wrong][0].tolist()]


def visible_tokens(config: Any, input_ids: Tensor) -> Tensor | None:
    """Return the token mask that `config.token_mask_rule` derives from token ids; None if masks are explicit.

    Args:
        config: a captioner's configuration.
        input_ids: `[B * K, T]` from the first token on.

    Returns:
        `[B * K, T]` int64, 1 = visible; None if masks are explicit.
    """
    if config.token_mask_rule == "pad_id":
        return (input_ids != config.pad_token_id).long()
    if config.token_mask_rule == "after_end":
        is_end = torch.isin(input_ids, torch.tensor(config.eos_token_id, device=input_ids.device))
        is_end[:, 0] = False  # the begin token may have the id of the end token
        return (is_end.cumsum(-1) - is_end.long() == 0).long()
    return None
