"""Vision part of a captioner: a backbone whose grid cells are the regions, and views of an image."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoBackbone, AutoModel, PreTrainedConfig

from .inputs_captioning import RegionFeatures

NORMALISATIONS = (nn.modules.batchnorm._BatchNorm,)
# Images that a vision model computes at once on a CPU: the maps of more leave its caches, which costs more than the
# larger matrix products gain.
IMAGES_AT_ONCE = 4


def vision_tower_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the vision part of a two-tower configuration (CLIP, SigLIP, ...), or the configuration itself."""
    return getattr(config, "vision_config", None) or config


def grid_boxes(height: int, width: int, device: Any) -> Tensor:
    """Return the boxes `[height * width, 4]` of a grid's cells, row by row, float32 in normalised xyxy."""
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
    """Arrange the patch tokens of `[B, L, D]`, without prefix tokens, in a feature map `[B, D, h, w]`.

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
    """Return the requested attention implementation if a model class supports it, else `"eager"`.

    A CNN, for instance, has no attention to implement.
    """
    flag = ATTENTION_FLAGS.get(requested, "_supports_flash_attn" if "flash" in str(requested) else None)
    return requested if flag is None or getattr(model_class, flag, False) else "eager"


def supported_attentions(auto_class: Any, config: PreTrainedConfig, requested: Any) -> Any:
    """Return the attention implementation of a vision model, by sub-configuration if it has a backbone.

    Args:
        auto_class: the Auto class that builds it.
        config: its configuration.
        requested: see `supported_attention`.
    """
    model_attention = supported_attention(auto_class._model_mapping[type(config)], requested)
    backbone = getattr(config, "backbone_config", None)
    if backbone is None:
        return model_attention
    is_from_transformers = type(backbone) in AutoBackbone._model_mapping
    backbone_attention = (
        supported_attention(AutoBackbone._model_mapping[type(backbone)], requested)
        if is_from_transformers
        else "eager"
    )
    return {"": model_attention, "backbone_config": backbone_attention}


class VisionBackbone(nn.Module):
    """Vision model whose feature map gives the regions of an image, one per grid cell.

    The model is built from its configuration; nothing is downloaded.

    Args:
        config: a captioner's configuration with `vision_config`, `vision_feature_layer`, `vision_grid_size` and
            `freeze_vision`.
    """

    auto_class: Any = AutoModel

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.feature_layer = config.vision_feature_layer
        self.grid_size = config.vision_grid_size
        self.frozen = config.freeze_vision
        tower = vision_tower_config(config.vision_config)
        tower._attn_implementation = supported_attentions(self.auto_class, tower, tower._attn_implementation)
        self.model = self.auto_class.from_config(tower)
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
        """Compute the feature map `[B, D, h, w]` of the configured layer."""
        every_layer = self.feature_layer != -1
        outputs = self.model(pixel_values=pixel_values, output_hidden_states=every_layer)
        states = outputs.hidden_states[self.feature_layer] if every_layer else outputs.last_hidden_state
        if states.ndim == 4:
            return states.movedim(-1, 1) if self.channels_last else states  # [B, D, h, w]
        return tokens_to_map(states, pixel_values, self.patch_size)

    @property
    def channels_last(self) -> bool:
        """True if feature maps are `[B, h, w, D]`, as in some hierarchical transformers of timm."""
        return getattr(getattr(self.model, "timm_model", None), "output_fmt", "NCHW") == "NHWC"

    @property
    def patch_size(self) -> Any:
        """Side of a patch in pixels, for vision transformers."""
        timm_model = getattr(self.model, "timm_model", None)
        if timm_model is not None:
            return getattr(getattr(timm_model, "patch_embed", None), "patch_size", None)
        return getattr(self.model.config, "patch_size", None)

    def pooled(self, features: Tensor) -> list[Tensor]:
        """Return the feature map `[B, D, h, w]` pooled to each configured grid size; as it is without one."""
        if self.grid_size is None:
            return [features]
        sizes = [self.grid_size] if isinstance(self.grid_size, int) else self.grid_size
        return [nn.functional.adaptive_avg_pool2d(features, size) for size in sizes]

    @staticmethod
    def pieces(pixel_values: Tensor) -> Sequence[Tensor]:
        """Split a batch of images into smaller ones that are computed in turn; on a CPU in inference only.

        On a CPU without gradients these are a few images each, with channels last, which convolutions read fastest.
        """
        recorded = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()
        if pixel_values.device.type != "cpu" or recorded:
            return [pixel_values]
        return [piece.contiguous(memory_format=torch.channels_last) for piece in pixel_values.split(IMAGES_AT_ONCE)]

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor | None = None) -> RegionFeatures:
        """Return the cells of one or several feature maps of images `[B, C, H, W]` as regions, row by row.

        Raises:
            ValueError: a `pixel_mask` is given.
        """
        if pixel_mask is not None:
            raise ValueError(
                f"`pixel_mask` has the shape {tuple(pixel_mask.shape)}, and a grid covers the whole image: it is read "
                "by detectors only. Prepare the images with the processor of the captioner."
            )
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            pieces = [self.pooled(self.feature_map(piece)) for piece in self.pieces(pixel_values)]
            maps = pieces[0] if len(pieces) == 1 else [torch.cat(scale) for scale in zip(*pieces, strict=True)]
        return cells_of_maps(maps)


def cells_of_maps(maps: Sequence[Tensor]) -> RegionFeatures:
    """Return the cells of feature maps `[B, D, h, w]` as regions, row by row, map after map."""
    features = torch.cat([feature_map.flatten(2).transpose(1, 2) for feature_map in maps], dim=1)  # [B, R, D]
    boxes = torch.cat([grid_boxes(*feature_map.shape[-2:], features.device) for feature_map in maps])  # [R, 4]
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
    """Compute the regions of images, or of several views of each image, with a vision model.

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
