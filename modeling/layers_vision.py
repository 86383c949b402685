"""Inputs of captioners, regions and declared ones, with their checks, and what sees them: backbones, attributes.

Attributes are words that an image shows: scored in every region and joined by noisy-OR multiple-instance learning
(Fang et al., CVPR 2015, "From Captions to Visual Concepts and Back", section 3). The Entangled Transformer takes its
attributes from such a detector.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, TimmWrapperConfig
from transformers import initialization as init
from transformers.utils import ModelOutput

from .configuration_captioning import CaptioningConfig, input_names, mask_name

NORMALISATIONS = (nn.modules.batchnorm._BatchNorm,)
TIMM_PREFIX = "timm:"
# How far a box may lie outside of the image before it is an error; smaller excess is rounding and is clamped.
BOX_TOLERANCE = 0.01
# Names without effect on a captioner that callers pass along: `transformers` asks for outputs by this one.
IGNORED_NAMES = ("return_dict",)
# Images that a vision model computes at once on a CPU: the maps of more leave its caches, which costs more than the
# larger matrix products gain.
IMAGES_AT_ONCE = 4
# Below, softplus(z) equals its series e^z - e^2z / 2 up to rounding, and its logarithm has a series too.
SMALL_LOGIT = -15.0
# Below, 1 - e^-u equals u (1 - u / 2 + u^2 / 6) up to rounding.
SMALL_HAZARD = 1e-4
LOG_2 = 0.6931471805599453


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


def without_padding(regions: RegionFeatures) -> RegionFeatures:
    """Return the regions with zeros where the mask marks padding, so that no result depends on its content."""
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
    """Return the first rows of a batch in which an entry of `wrong` `[B, ...]` is True."""
    return wrong.reshape(len(wrong), -1).any(1).nonzero().flatten().tolist()[:10]


def _first(boxes: Tensor, wrong: Tensor) -> list[float]:
    return [round(value, 4) for value in boxes[wrong][0].tolist()]


def vision_tower_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the vision part of a two-tower configuration (CLIP, SigLIP, ...), or the configuration itself."""
    return getattr(config, "vision_config", None) or config


def grid_boxes(height: int, width: int, device: Any) -> Tensor:
    """Return the boxes `[height * width, 4]` of the cells of a grid, row by row, float32 in normalised xyxy."""
    top, left = torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")
    corners = torch.stack((left / width, top / height, (left + 1) / width, (top + 1) / height), dim=-1)
    return corners.flatten(0, 1).float()


def token_grid(num_tokens: int, height: int, width: int) -> tuple[int, int]:
    """Return the rows and columns of the grid that the tokens of a vision transformer form.

    Plain transformers have one token per patch after a few prefix tokens (class, registers); hierarchical ones halve
    the grid of patches between stages.

    Args:
        num_tokens: number of tokens.
        height, width: patches of the image.

    Raises:
        ValueError: if no grid fits.
    """
    if num_tokens >= height * width:
        return height, width
    for halvings in range(1, 8):
        rows, columns = height >> halvings, width >> halvings
        if rows * columns == num_tokens:
            return rows, columns
    raise ValueError(f"{num_tokens} tokens of the vision model do not fit an image of {height} x {width} patches.")


def tokens_to_map(tokens: Tensor, pixel_values: Tensor, patch_size: Any) -> Tensor:
    """Arrange the patch tokens of `[B, L, D]`, without prefix tokens, in a map `[B, D, h, w]`.

    Raises:
        ValueError: if the number of tokens does not fit the image, or the patch size is unknown.
    """
    if patch_size is None:
        raise ValueError("The vision model returns tokens, but its configuration has no `patch_size`.")
    patch_height, patch_width = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    patches = pixel_values.shape[-2] // patch_height, pixel_values.shape[-1] // patch_width
    rows, columns = token_grid(tokens.shape[1], *patches)
    return tokens[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))  # [B, D, h, w]


# Flags of transformers' model classes by the attention implementations that they stand for.
ATTENTION_FLAGS = {"sdpa": "_supports_sdpa", "flex_attention": "_supports_flex_attn"}


def supported_attention(model_class: Any, requested: Any) -> Any:
    """Return the attention implementation that was requested if a model class has it, else `"eager"`.

    A CNN, for instance, has no attention to implement.
    """
    flag = ATTENTION_FLAGS.get(requested, "_supports_flash_attn" if "flash" in str(requested) else None)
    return requested if flag is None or getattr(model_class, flag, False) else "eager"


class VisionBackbone(nn.Module):
    """Vision model that computes region features.

    The model is built from its configuration; nothing is downloaded.

    Args:
        config: a captioner's configuration with `vision_config`, `vision_feature_layer`, `vision_grid_size` and
            `freeze_vision`.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.feature_layer = config.vision_feature_layer
        self.grid_size = config.vision_grid_size
        self.frozen = config.freeze_vision
        tower = vision_tower_config(config.vision_config)
        model_class = AutoModel._model_mapping[type(tower)]
        tower._attn_implementation = supported_attention(model_class, tower._attn_implementation)
        self.model = AutoModel.from_config(tower)
        if self.frozen:
            self.model.requires_grad_(False)

    def train(self, mode: bool = True) -> "VisionBackbone":
        """Set training mode, except for a frozen backbone and the statistics of batch normalisation."""
        super().train(mode and not self.frozen)
        if self.frozen:  # again: loading replaces parameters, then calls `eval()`
            self.model.requires_grad_(False)
        for module in self.model.modules():
            # With batch statistics, the regions of an image would depend on the rest of its batch.
            if isinstance(module, NORMALISATIONS):
                module.eval()
        return self

    def feature_map(self, pixel_values: Tensor) -> Tensor:
        """Compute the map `[B, D, h, w]` of the configured layer."""
        every_layer = self.feature_layer != -1
        outputs = self.model(pixel_values=pixel_values, output_hidden_states=every_layer)
        states = outputs.hidden_states[self.feature_layer] if every_layer else outputs.last_hidden_state
        if states.ndim == 4:
            return states.movedim(-1, 1) if self.channels_last else states  # [B, D, h, w]
        return tokens_to_map(states, pixel_values, self.patch_size)

    @property
    def channels_last(self) -> bool:
        """Whether maps are `[B, h, w, D]`, as in some hierarchical transformers of timm."""
        return getattr(getattr(self.model, "timm_model", None), "output_fmt", "NCHW") == "NHWC"

    @property
    def patch_size(self) -> Any:
        """Side of a patch in pixels, for vision transformers."""
        timm_model = getattr(self.model, "timm_model", None)
        if timm_model is not None:
            return getattr(getattr(timm_model, "patch_embed", None), "patch_size", None)
        return getattr(self.model.config, "patch_size", None)

    def pooled(self, features: Tensor) -> list[Tensor]:
        """Return the map `[B, D, h, w]` at every scale of the configuration."""
        if self.grid_size is None:
            return [features]
        sizes = [self.grid_size] if isinstance(self.grid_size, int) else self.grid_size
        return [nn.functional.adaptive_avg_pool2d(features, size) for size in sizes]

    @staticmethod
    def pieces(pixel_values: Tensor) -> Sequence[Tensor]:
        """Split a batch into the parts that are computed in turn: few images on a CPU, without gradients."""
        recorded = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()
        if pixel_values.device.type != "cpu" or recorded:
            return [pixel_values]
        return pixel_values.split(IMAGES_AT_ONCE)

    def forward(self, pixel_values: Tensor) -> RegionFeatures:
        """Return the cells of a grid over images `[B, C, H, W]`, row by row, scale after scale."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            pieces = [self.pooled(self.feature_map(piece)) for piece in self.pieces(pixel_values)]
            maps = pieces[0] if len(pieces) == 1 else [torch.cat(scale) for scale in zip(*pieces, strict=True)]
        features = torch.cat([scale.flatten(2).transpose(1, 2) for scale in maps], dim=1)  # [B, R, D]
        boxes = torch.cat([grid_boxes(*scale.shape[-2:], features.device) for scale in maps])  # [R, 4]
        return RegionFeatures(
            region_features=features,
            region_boxes=boxes.expand(features.shape[0], -1, -1),
            region_mask=torch.ones(features.shape[:2], dtype=torch.bool, device=features.device),
        )


def regions_of_images(
    vision: nn.Module,
    pixel_values: Tensor,
    view_mask: Tensor | None,
    vision_inputs: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> RegionFeatures:
    """Return the regions that a vision part makes of images, or of several views of each image.

    Args:
        vision: the vision part; called with images `[N, C, H, W]`, it returns their regions.
        pixel_values: `[B, C, H, W]`, or views `[B, V, C, H, W]`.
        view_mask: `[B, V]`, True = a real view; None: all are.
        vision_inputs: inputs that the vision part declares, with the same first axes as the images.
        dtype: data type of the vision part.

    Returns:
        The regions; those of views one view after the other, with the number of the view in `region_views`.

    Raises:
        ValueError: images or mask have a wrong shape.
    """
    if pixel_values.ndim not in (4, 5):
        raise ValueError(
            f"`pixel_values` has the shape {tuple(pixel_values.shape)}, expected [images, channels, height, width] "
            "or [images, views, channels, height, width]. Region features go by name: `region_features=...`."
        )
    if view_mask is not None and view_mask.shape != pixel_values.shape[:-3]:
        raise ValueError(
            f"`view_mask` has the shape {tuple(view_mask.shape)}, expected (images, views) of `pixel_values` "
            f"{tuple(pixel_values.shape)}."
        )
    pixel_values = pixel_values.to(dtype)
    if pixel_values.ndim == 4:
        return vision(pixel_values, **vision_inputs)
    images_and_views = pixel_values.shape[:2]
    flat = {name: values.flatten(0, 1) for name, values in vision_inputs.items()}
    of_views = vision(pixel_values.flatten(0, 1), **flat)  # features [B * V, R, D]
    joined = {name: values.unflatten(0, images_and_views).flatten(1, 2) for name, values in of_views.items()}
    cells = of_views.region_features.shape[1]
    views = torch.arange(images_and_views[1], device=pixel_values.device).repeat_interleave(cells)
    joined["region_views"] = views.expand(images_and_views[0], -1)  # [B, V * R]
    if view_mask is not None:
        joined["region_mask"] = joined["region_mask"] & view_mask.bool().repeat_interleave(cells, dim=1)
    return RegionFeatures(**joined)


def native_image_size(model: PreTrainedModel) -> tuple[int, int]:
    """Return the input height and width of a vision model in pixels; 224 x 224 if it defines none."""
    timm_model = getattr(model, "timm_model", None)
    side = getattr(model.config, "image_size", None)
    if timm_model is not None:
        side = getattr(getattr(timm_model, "patch_embed", None), "img_size", None)
        side = side or tuple(timm_model.pretrained_cfg.get("input_size", ())[-2:])
    side = side or 224
    return (side, side) if isinstance(side, int) else tuple(side)


def load_vision_model(source: Any) -> PreTrainedModel:
    """Load a vision model with its weights.

    Args:
        source: a `PreTrainedModel`; the name or directory of a checkpoint of transformers (the vision part of a
            two-tower model is used); `"timm:ARCHITECTURE"` for the weights of timm; or `"timm:ARCHITECTURE:FILE"` for
            weights in a file.

    Raises:
        ValueError: if the checkpoint is not a vision model.
    """
    if isinstance(source, PreTrainedModel):
        tower = getattr(source, "vision_model", source)
        trunk = getattr(tower, "base_model", tower)  # without a classification head
        return trunk if isinstance(trunk, PreTrainedModel) else tower
    if str(source).startswith(TIMM_PREFIX):
        return load_timm_model(str(source).removeprefix(TIMM_PREFIX))
    config = vision_tower_config(AutoConfig.from_pretrained(source))
    model = AutoModel.from_pretrained(source, config=config, dtype=torch.float32)
    if model.main_input_name != "pixel_values":
        raise ValueError(
            f"`{source}` holds a {config.model_type!r} model, which reads `{model.main_input_name}`; a vision model "
            "reads `pixel_values`."
        )
    return model


def load_timm_model(specification: str) -> PreTrainedModel:
    """Load `ARCHITECTURE` or `ARCHITECTURE:FILE` of timm in the wrapper of transformers."""
    try:
        import timm
        from timm.models import load_checkpoint
    except ImportError as error:
        raise ImportError(f"`{TIMM_PREFIX}{specification}` needs timm: pip install timm") from error
    architecture, _, checkpoint = specification.partition(":")
    model = AutoModel.from_config(TimmWrapperConfig(architecture=architecture, num_labels=0))
    if checkpoint:
        load_checkpoint(model.timm_model, checkpoint, strict=False)
    else:
        pretrained = timm.create_model(architecture, pretrained=True, num_classes=0)
        model.timm_model.load_state_dict(pretrained.state_dict())
    return model.eval()


def load_vision_model_for(source: Any, config_fields: dict[str, Any]) -> tuple[PreTrainedModel | None, dict[str, Any]]:
    """Load the vision model of a new captioner.

    Args:
        source: see `load_vision_model`; None for a captioner of region features.
        config_fields: fields of the captioner's configuration that are known.

    Returns:
        The vision model (or None), and the fields with its configuration and its number of features.

    Raises:
        ValueError: the fields have another number of features; or see `load_vision_model`.
    """
    if source is None:
        return None, config_fields
    loaded = load_vision_model(source)
    fields = {**config_fields, "vision_config": loaded.config}
    # The number of features depends on the layer and on the kind of backbone, so it is measured with a zero image.
    probe_config = CaptioningConfig(
        vision_config=loaded.config,
        vision_feature_layer=fields.get("vision_feature_layer", -1),
        vision_grid_size=fields.get("vision_grid_size"),
    )
    probe = VisionBackbone(probe_config)
    with torch.no_grad():
        regions = probe.eval()(torch.zeros(1, 3, *native_image_size(loaded)))
    found = regions.region_features.shape[-1]
    if fields.setdefault("region_feature_size", found) != found:
        raise ValueError(
            f"`region_feature_size={fields['region_feature_size']}`, but the vision model gives {found} features "
            "per region. Omit the field: it is measured."
        )
    return loaded, fields


class Presence(NamedTuple):
    """Probabilities of words being in images, in log space: products of many factors lose all their digits.

    Args:
        log_present: log p, `[B, W]`.
        log_absent: log (1 - p), `[B, W]`.
    """

    log_present: Tensor
    log_absent: Tensor

    @property
    def probabilities(self) -> Tensor:
        """Return p, `[B, W]`."""
        return -torch.expm1(self.log_absent)


def log_softplus(logits: Tensor) -> Tensor:
    """Return log(log(1 + e^z)), which is about z for very negative logits."""
    small = logits - logits.clamp(max=SMALL_LOGIT).exp() / 2
    usual = (-nn.functional.logsigmoid(-logits.clamp(min=SMALL_LOGIT))).log()
    return torch.where(logits < SMALL_LOGIT, small, usual)


def noisy_or(logits: Tensor, mask: Tensor | None = None) -> Presence:
    """Join scores of regions: a word is absent if no region shows it, `p = 1 - prod_j (1 - sigmoid(z_j))`.

    With u = -log(1 - p) = sum_j softplus(z_j), values and gradients stay finite also where p itself would round to 0
    or 1: log p is computed from log u where u is small.

    Args:
        logits: `[B, R, W]`, scores z of W words in R regions.
        mask: `[B, R]`, True = a real region; None: all are.

    Returns:
        log p and log (1 - p), `[B, W]`, in float32 or float64.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if mask is not None:
        logits = logits.masked_fill(~mask[..., None], -torch.inf)
    hazard = -nn.functional.logsigmoid(-logits).sum(1)  # u, [B, W]
    log_hazard = torch.logsumexp(log_softplus(logits), dim=1)  # log u, [B, W]
    small = log_hazard - hazard / 2 + hazard.square() / 24
    usual = hazard.clamp(min=SMALL_HAZARD)
    # Each form is exact on its side of log 2 (Maechler, 2012, "Accurately Computing log(1 - exp(-|a|))").
    usual = torch.where(usual < LOG_2, (-torch.expm1(-usual.clamp(max=1.0))).log(), torch.log1p(-torch.exp(-usual)))
    return Presence(torch.where(hazard < SMALL_HAZARD, small, usual), -hazard)


def attribute_nll(presence: Presence, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of each word `[B, W]`.

    Args:
        presence: see `noisy_or`.
        labels: `[B, W]`, 1 where a caption of the image has the word, 0 elsewhere.
    """
    return -torch.where(labels.bool(), presence.log_present, presence.log_absent)


class WordScores(nn.Linear):
    """Linear scores of words.

    Args:
        size: width of the regions.
        words: W.
        initial_bias: first bias of every word.
    """

    def __init__(self, size: int, words: int, initial_bias: float) -> None:
        super().__init__(size, words)
        self.initial_bias = initial_bias

    def reset_parameters(self) -> None:
        """Initialise the weights by Xavier, and the biases to a value at which words are improbable."""
        init.xavier_uniform_(self.weight)
        init.constant_(self.bias, getattr(self, "initial_bias", 0.0))  # nn.Linear calls this before it is set


class AttributeNetwork(nn.Module):
    """Scores of words in every region: rectified layers and a linear one, applied to each region alone.

    On a grid of a CNN this is what fully connected layers compute when they are run as convolutions.

    Args:
        config: read are `region_feature_size`, `words`, `hidden_sizes`, `dropout` and `initial_bias`.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        sizes = [config.region_feature_size, *config.hidden_sizes]
        self.hidden = nn.ModuleList([nn.Linear(*pair) for pair in zip(sizes, sizes[1:], strict=False)])
        self.dropout = nn.Dropout(config.dropout)
        self.score = WordScores(sizes[-1], len(config.words), config.initial_bias)

    def forward(self, regions: Tensor) -> Tensor:
        """Return logits `[B, R, W]` of regions `[B, R, D]`.

        Raises:
            ValueError: the regions have another width than those that the network was made for.
        """
        expected = (self.hidden[0] if self.hidden else self.score).in_features
        if regions.shape[-1] != expected:
            raise ValueError(
                f"The regions have {regions.shape[-1]} features, the attribute detector was trained on {expected} "
                "(`detector_config.region_feature_size`). Use a detector that was trained on the features of the "
                "captioner: `hf-captioners attributes train`."
            )
        for layer in self.hidden:
            regions = self.dropout(layer(regions).relu())
        return self.score(regions)


class Attributes(NamedTuple):
    """Attributes of B images, the most probable first.

    Args:
        ids: `[B, N]` int64, numbers of words.
        mask: `[B, N]`, True = an attribute.
        probabilities: `[B, N]`.
    """

    ids: Tensor
    mask: Tensor
    probabilities: Tensor


def top_attributes(probabilities: Tensor, number: int, threshold: float) -> Attributes:
    """Choose the most probable words of each image.

    Args:
        probabilities: `[B, W]`; a negative number excludes a word.
        number: at most this many, N = min(number, W).
        threshold: least probability.
    """
    chosen, ids = probabilities.topk(min(number, probabilities.shape[-1]), dim=-1)
    return Attributes(ids, chosen >= max(threshold, 0.0), chosen)
