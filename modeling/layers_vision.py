"""Images to regions: the grid of a timm backbone or of a vision model of transformers, and where to find one."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, TimmWrapperConfig
from transformers.utils import ModelOutput

NORMALISATIONS = (nn.modules.batchnorm._BatchNorm,)
TIMM_PREFIX = "timm:"


@dataclass
class RegionFeatures(ModelOutput):
    """What the vision part gives to the rest of a captioner.

    Args:
        region_features: `[B, R, D]`.
        region_boxes: `[B, R, 4]`, x1, y1, x2, y2 of every cell as shares of width and height.
        region_mask: `[B, R]`, True = a real region; all True for a grid.
    """

    region_features: Tensor | None = None
    region_boxes: Tensor | None = None
    region_mask: Tensor | None = None


def vision_tower_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The vision half of a two-tower configuration (CLIP, SigLIP, ...); any other configuration as it is."""
    return getattr(config, "vision_config", None) or config


def grid_boxes(height: int, width: int, device: Any, dtype: torch.dtype) -> Tensor:
    """Boxes `[height * width, 4]` of the cells of a grid, row by row, in normalised xyxy."""
    top, left = torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")
    corners = torch.stack((left / width, top / height, (left + 1) / width, (top + 1) / height), dim=-1)
    return corners.flatten(0, 1).to(dtype)


def token_grid(num_tokens: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of the grid that a transformer's tokens form.

    Plain transformers keep one token a patch behind a few prefix tokens (class, registers); hierarchical ones halve
    the grid of patches between stages.

    Args:
        num_tokens: tokens in all. height, width: patches of the image.

    Raises:
        ValueError: no grid fits.
    """
    if num_tokens >= height * width:
        return height, width
    for halvings in range(1, 8):
        rows, columns = height >> halvings, width >> halvings
        if rows * columns == num_tokens:
            return rows, columns
    raise ValueError(f"{num_tokens} tokens of the vision model do not fit an image of {height} x {width} patches.")


def tokens_to_map(tokens: Tensor, pixel_values: Tensor, patch_size: Any) -> Tensor:
    """Patch tokens `[B, L, D]` of a vision transformer, without its prefix tokens, as a map `[B, D, h, w]`.

    Raises:
        ValueError: the number of tokens does not fit the image, or the patch size is unknown.
    """
    if patch_size is None:
        raise ValueError("The vision model returns tokens, but its configuration has no `patch_size`.")
    patch_height, patch_width = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    patches = pixel_values.shape[-2] // patch_height, pixel_values.shape[-1] // patch_width
    rows, columns = token_grid(tokens.shape[1], *patches)
    return tokens[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


class VisionBackbone(nn.Module):
    """A vision model as a source of regions.

    Args:
        config: a captioner's configuration; read are `vision_config`, `vision_feature_layer`, `vision_grid_size` and
            `freeze_vision`. The model is built from the configuration alone: nothing is downloaded.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.feature_layer = config.vision_feature_layer
        self.grid_size = config.vision_grid_size
        self.frozen = config.freeze_vision
        self.model = AutoModel.from_config(vision_tower_config(config.vision_config))
        if self.frozen:
            self.model.requires_grad_(False)

    def train(self, mode: bool = True) -> "VisionBackbone":
        """Training mode, except for a frozen backbone and for the statistics of batch normalisation."""
        super().train(mode and not self.frozen)
        if self.frozen:  # here too: loading a checkpoint makes new parameters, and then calls `eval()`
            self.model.requires_grad_(False)
        for module in self.model.modules():
            if isinstance(module, NORMALISATIONS):
                module.eval()
        return self

    def feature_map(self, pixel_values: Tensor) -> Tensor:
        """The chosen layer as a map `[B, D, h, w]`."""
        every_layer = self.feature_layer != -1
        outputs = self.model(pixel_values=pixel_values, output_hidden_states=every_layer)
        states = outputs.hidden_states[self.feature_layer] if every_layer else outputs.last_hidden_state
        if states.ndim == 4:
            return states.movedim(-1, 1) if self.channels_last else states
        return tokens_to_map(states, pixel_values, self.patch_size)

    @property
    def channels_last(self) -> bool:
        """Whether maps come as `[B, h, w, D]`, as from some hierarchical transformers of timm."""
        return getattr(getattr(self.model, "timm_model", None), "output_fmt", "NCHW") == "NHWC"

    @property
    def patch_size(self) -> Any:
        """Side of a patch in pixels, for vision transformers."""
        timm_model = getattr(self.model, "timm_model", None)
        if timm_model is not None:
            return getattr(getattr(timm_model, "patch_embed", None), "patch_size", None)
        return getattr(self.model.config, "patch_size", None)

    def forward(self, pixel_values: Tensor) -> RegionFeatures:
        """Images `[B, C, H, W]` to the cells of a grid, row by row."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = self.feature_map(pixel_values)
            if self.grid_size is not None:
                features = nn.functional.adaptive_avg_pool2d(features, self.grid_size)
        batch, _, height, width = features.shape
        boxes = grid_boxes(height, width, features.device, features.dtype)
        return RegionFeatures(
            region_features=features.flatten(2).transpose(1, 2),  # [B, h * w, D]
            region_boxes=boxes.expand(batch, -1, -1),
            region_mask=torch.ones(batch, height * width, dtype=torch.bool, device=features.device),
        )


def native_image_size(model: PreTrainedModel) -> tuple[int, int]:
    """Height and width in pixels that a vision model is made for; 224 x 224 when it does not say."""
    timm_model = getattr(model, "timm_model", None)
    side = getattr(model.config, "image_size", None)
    if timm_model is not None:
        side = getattr(getattr(timm_model, "patch_embed", None), "img_size", None)
        side = side or tuple(timm_model.pretrained_cfg.get("input_size", ())[-2:])
    side = side or 224
    return (side, side) if isinstance(side, int) else tuple(side)


def load_vision_model(source: Any) -> PreTrainedModel:
    """A vision model with its weights.

    Args:
        source: a `PreTrainedModel`, or the name or directory of a checkpoint of transformers (of a two-tower model
            the vision half is taken); or `"timm:ARCHITECTURE"` for timm's own weights, or
            `"timm:ARCHITECTURE:FILE"` for weights in a file.

    Raises:
        ValueError: the checkpoint is no vision model.
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
    """A timm model in the wrapper of transformers, from `ARCHITECTURE` or `ARCHITECTURE:FILE`."""
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
