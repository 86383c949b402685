"""Vision models that compute regions of images: backbones (grid cells), detectors (queries), and their loading."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoModel,
    AutoModelForObjectDetection,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import ModelOutput

from .configuration_captioning import DETECTORS, CaptioningConfig, queries_field
from .inputs_captioning import DetectedRegions, RegionFeatures

NORMALISATIONS = (nn.modules.batchnorm._BatchNorm,)
TIMM_PREFIX = "timm:"
# Images that a vision model computes at once on a CPU: the maps of more leave its caches, which costs more than the
# larger matrix products gain.
IMAGES_AT_ONCE = 4
# Parts of detectors that the states of queries do not depend on: heads of classes and boxes, what proposes and scores
# queries (boxes are passed on between layers without gradients), and what training alone adds. In every family.
DETECTION_HEADS = (
    *("class_embed", "bbox_embed", "class_labels_classifier", "bbox_predictor", "pre_bbox_head", "lqe_layers"),
    *("enc_output", "enc_output_norm", "enc_score_head", "enc_bbox_head", "enc_out_class_embed", "enc_out_bbox_embed"),
    *("denoising_class_embed", "mask_token"),
)


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


class VisionDetector(VisionBackbone):
    """Detector of transformers whose best queries are the regions: hidden states, boxes and scores.

    It stays in evaluation mode in training too: groups of queries, queries with noise and dropout belong to the loss
    of detection. Gradients reach its states; heads that the states do not depend on stay frozen.

    Args:
        config: a captioner's configuration with a detector as `vision_config`, `vision_max_regions`,
            `vision_min_regions`, `vision_score_threshold`, `vision_nms_threshold`, `vision_grid_size` and
            `freeze_vision`.
    """

    auto_class = AutoModelForObjectDetection
    _no_split_modules = ("VisionDetector",)  # `post_init` of the captioner collects it, as it does the tied weights

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        tied = self.model.all_tied_weights_keys  # heads of several layers
        self.all_tied_weights_keys = {f"model.{name}": f"model.{source}" for name, source in tied.items()}
        self.queries = getattr(config.vision_config, queries_field(config.vision_config))
        self.most, self.least = config.vision_max_regions, config.vision_min_regions
        self.score_threshold, self.nms_threshold = config.vision_score_threshold, config.vision_nms_threshold
        self.train(self.training)

    def train(self, mode: bool = True) -> "VisionDetector":
        """Set training mode; the detector stays in evaluation mode, and its heads get no gradients."""
        super().train(mode)
        self.model.eval()
        for name, parameter in self.model.named_parameters():
            if any(part in DETECTION_HEADS for part in name.split(".")):
                parameter.requires_grad_(False)
        return self

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor | None = None) -> RegionFeatures:
        """Return the regions of images `[B, C, H, W]`, see `detect`."""
        regions = self.detect(pixel_values, pixel_mask)
        names = ("region_features", "region_boxes", "region_mask")
        return RegionFeatures(**{name: regions[name] for name in names})

    def detect(self, pixel_values: Tensor, pixel_mask: Tensor | None = None) -> DetectedRegions:
        """Return the highest-scoring queries as regions, best first, then grid cells if configured.

        Every image is computed without its padding, with those of its size, so that its regions do not depend on the
        rest of the batch, and boxes relate to the image.

        Args:
            pixel_values: `[B, C, H, W]`.
            pixel_mask: `[B, H, W]`, 1 at the pixels of the image, 0 at the padding below and to the right of it; None:
                there is no padding. An image without pixels (padding of a batch of views) counts as a whole one.

        Raises:
            ValueError: the mask has another shape, or padding is to be exported.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            rows, parts = [], []
            for of_size, images in self.by_size(pixel_values, pixel_mask):
                rows.append(of_size)
                parts += [self.regions(piece) for piece in self.pieces(images)]
            if len(parts) == 1:
                return parts[0]
            joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        order = torch.cat(rows).argsort()
        return DetectedRegions(**{name: values[order] for name, values in joined.items()})

    def by_size(self, pixel_values: Tensor, pixel_mask: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Group images by their size without padding: (row numbers, cropped images `[N, C, h, w]`) for each size."""
        every = torch.arange(pixel_values.shape[0], device=pixel_values.device)
        if pixel_mask is None:
            return [(every, pixel_values)]
        expected = (pixel_values.shape[0], *pixel_values.shape[-2:])
        if tuple(pixel_mask.shape) != expected:
            raise ValueError(
                f"`pixel_mask` has the shape {tuple(pixel_mask.shape)}, expected {expected} (images, height, width of "
                "`pixel_values`)."
            )
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            raise ValueError(
                "Images with a `pixel_mask` have different sizes, which one exported graph cannot compute. Prepare "
                'squares without padding: processor.image_processor.size = {"height": 640, "width": 640} and '
                "processor.image_processor.do_pad = False."
            )
        sizes = torch.stack([pixel_mask.bool().any(axis).sum(1) for axis in (2, 1)], dim=1)  # [B, 2]
        whole = sizes.new_tensor(pixel_values.shape[-2:])
        sizes = torch.where(sizes.prod(1, keepdim=True) > 0, sizes, whole)
        groups = []
        for height, width in sizes.unique(dim=0).tolist():
            of_size = every[(sizes[:, 0] == height) & (sizes[:, 1] == width)]
            groups.append((of_size, pixel_values[of_size, :, :height, :width]))
        return groups

    def regions(self, pixel_values: Tensor) -> DetectedRegions:
        """Return the regions of unpadded images `[B, C, H, W]`."""
        outputs = self.model(pixel_values=pixel_values)
        states = outputs.last_hidden_state[:, -self.queries :]  # [B, Q, D]; YOLOS has patches before the queries
        scores, labels = class_scores(outputs.logits.detach(), self.model.config.num_labels).max(-1)  # [B, Q]
        boxes = corners(outputs.pred_boxes.detach().float())  # [B, Q, 4]
        ranked = scores
        if self.nms_threshold is not None:
            order = scores.argsort(dim=1, descending=True)
            kept = not_suppressed(boxes.gather(1, order[..., None].expand_as(boxes)), self.nms_threshold)
            ranked = scores.masked_fill(~kept.gather(1, order.argsort(dim=1)), -1.0)
        best, chosen = ranked.topk(self.most, dim=1)  # [B, R]
        rank = torch.arange(self.most, device=best.device)
        mask = (best >= 0) & ((best >= self.score_threshold) | (rank < self.least))
        regions = DetectedRegions(
            region_features=states.gather(1, chosen[..., None].expand(-1, -1, states.shape[-1])),
            region_boxes=boxes.clamp(0.0, 1.0).gather(1, chosen[..., None].expand(-1, -1, 4)),
            region_mask=mask,
            region_scores=best.clamp(min=0.0),
            region_labels=labels.gather(1, chosen),
        )
        return regions if self.grid_size is None else self.with_cells(regions, self.encoder_map(outputs, pixel_values))

    def with_cells(self, regions: DetectedRegions, features: Tensor) -> DetectedRegions:
        """Append the grid cells of a feature map `[B, D, h, w]` to the regions, at every configured grid size."""
        grid = cells_of_maps(self.pooled(features))
        shape = grid.region_features.shape[:2]
        cells = DetectedRegions(
            **dict(grid.items()),
            region_scores=regions.region_scores.new_zeros(shape),
            region_labels=regions.region_labels.new_full(shape, -1),
        )
        return DetectedRegions(**{name: torch.cat((values, cells[name]), dim=1) for name, values in regions.items()})

    def encoder_map(self, outputs: ModelOutput, pixel_values: Tensor) -> Tensor:
        """Return the finest feature map `[B, D, h, w]` of the detector's encoder.

        Raises:
            ValueError: the detector returns none.
        """
        if self.model.config.model_type == "yolos":
            return tokens_to_map(outputs.last_hidden_state[:, : -self.queries], pixel_values, self.patch_size)
        states = outputs.get("encoder_last_hidden_state")
        if states is None:
            raise ValueError(
                f"`vision_grid_size` is {self.grid_size}, and a {self.model.config.model_type!r} detector returns no "
                "map beside its queries: leave it out."
            )
        if isinstance(states, (list, tuple)):
            return states[0]
        rows, columns = finest_level(states.shape[1], *pixel_values.shape[-2:])
        return states[:, : rows * columns].transpose(1, 2).unflatten(2, (rows, columns))


def finest_level(tokens: int, height: int, width: int) -> tuple[int, int]:
    """Return height and width of an encoder's finest feature map, from its number of tokens over all maps.

    A map halves image or map before it, with the odd line kept.

    Args:
        tokens: tokens of all maps.
        height, width: of the image in pixels.

    Raises:
        ValueError: no such maps have this number of tokens.
    """
    for halvings in range(2, 7):
        first = -(-height // 2**halvings), -(-width // 2**halvings)
        total, (rows, columns) = 0, first
        for _ in range(5):
            total += rows * columns
            if total == tokens:
                return first
            rows, columns = -(-rows // 2), -(-columns // 2)
    raise ValueError(f"{tokens} tokens of the detector's encoder do not fit an image of {height} x {width} pixels.")


def class_scores(logits: Tensor, num_labels: int) -> Tensor:
    """Return class probabilities `[B, Q, classes]` of each query in float32, without "no object".

    Args:
        logits: `[B, Q, classes]`; one class more than labels stands for "no object", with a softmax over all classes.
        num_labels: labels of the detector.
    """
    if logits.shape[-1] == num_labels + 1:
        return logits.float().softmax(-1)[..., :-1]
    return logits.float().sigmoid()


def corners(boxes: Tensor) -> Tensor:
    """Convert boxes `[..., 4]` from centre and size to x1, y1, x2, y2."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1)


def not_suppressed(boxes: Tensor, threshold: float) -> Tensor:
    """Return a bool mask `[B, Q]` of the boxes that greedy non-maximum suppression keeps.

    Args:
        boxes: `[B, Q, 4]`, corners, the best first.
        threshold: a kept box suppresses those after it whose intersection over union with it is larger.
    """
    low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
    high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)  # [B, Q, Q]
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    union = areas[:, :, None] + areas[:, None] - shared
    overlaps = shared > threshold * union
    kept = torch.ones_like(areas, dtype=torch.bool)
    later = torch.arange(boxes.shape[1], device=boxes.device)
    for index in range(boxes.shape[1]):
        kept = kept & ~(overlaps[:, index] & kept[:, index : index + 1] & (later > index))
    return kept


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

    Returns:
        The model; of a detector, the whole with its heads.

    Raises:
        ValueError: if the checkpoint is not a vision model, or a detector that lacks queries or heads.
    """
    if isinstance(source, PreTrainedModel):
        if source.config.model_type in DETECTORS:
            return require_detection_heads(source)
        tower = getattr(source, "vision_model", source)
        trunk = getattr(tower, "base_model", tower)  # without a classification head
        return trunk if isinstance(trunk, PreTrainedModel) else tower
    if str(source).startswith(TIMM_PREFIX):
        return load_timm_model(str(source).removeprefix(TIMM_PREFIX))
    config = vision_config_of(source)
    if type(config) in AutoModelForObjectDetection._model_mapping:
        return load_detector_model(source, config.model_type)
    return AutoModel.from_pretrained(source, config=config, dtype=torch.float32)


def vision_config_of(source: Any) -> PreTrainedConfig:
    """Return the configuration of a vision model, or of the vision part of a two-tower model.

    Raises:
        ValueError: the checkpoint, a name or directory, is not a vision model.
    """
    config = vision_tower_config(AutoConfig.from_pretrained(source))
    model_class = AutoModel._model_mapping.get(type(config), None)
    reads = getattr(model_class, "main_input_name", "pixel_values")
    if reads != "pixel_values":
        raise ValueError(
            f"`{source}` holds a {config.model_type!r} model, which reads `{reads}`; a vision model reads "
            "`pixel_values`."
        )
    return config


def load_detector_model(source: Any, model_type: str) -> PreTrainedModel:
    """Load a detector of transformers with its heads.

    Args:
        source: name or directory.
        model_type: its type.

    Raises:
        ValueError: its family has no queries with states, or its checkpoint lacks weights.
    """
    if model_type not in DETECTORS:
        raise ValueError(
            f"`{source}` is a {model_type!r} model, which has no queries with states and boxes that could be regions; "
            f"expected one of {', '.join(DETECTORS)}."
        )
    model, loading = AutoModelForObjectDetection.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(
            f"`{source}` lacks {len(missing)} weights of a {model_type!r} detector, such as {missing[0]}: expected a "
            "checkpoint that detects objects, with heads for classes and boxes."
        )
    return model


def require_detection_heads(model: PreTrainedModel) -> PreTrainedModel:
    """Return a detector; raise an error if its checkpoint lacks the detection heads.

    Raises:
        ValueError: it is a trunk without heads, or has other heads.
    """
    expected = AutoModelForObjectDetection._model_mapping[type(model.config)]
    if not isinstance(model, expected):
        raise ValueError(
            f"The vision model is a {type(model).__name__}, which returns no boxes and scores; expected a "
            f"{expected.__name__}."
        )
    return model


def load_timm_model(specification: str) -> PreTrainedModel:
    """Load a timm model by `ARCHITECTURE` or `ARCHITECTURE:FILE`, in the wrapper of transformers."""
    try:
        import timm
        from timm.models import load_checkpoint
    except ImportError as error:
        raise ImportError(f"`{TIMM_PREFIX}{specification}` needs timm: pip install timm") from error
    architecture, _, checkpoint = specification.partition(":")
    model = AutoModel.from_config(AutoConfig.for_model("timm_wrapper", architecture=architecture, num_labels=0))
    if checkpoint:
        load_checkpoint(model.timm_model, checkpoint, strict=False)
    else:
        pretrained = timm.create_model(architecture, pretrained=True, num_classes=0)
        model.timm_model.load_state_dict(pretrained.state_dict())
        model.config._name_or_path = pretrained.pretrained_cfg.get("hf_hub_id") or ""  # where the weights are from
    return model.eval()


def region_size_of(model: PreTrainedModel, fields: Mapping[str, Any]) -> int:
    """Return the number of features per region that a vision model computes.

    Args:
        model: the vision model.
        fields: `vision_feature_layer` and `vision_grid_size` of the captioner, if they are given.
    """
    config = model.config
    if config.model_type in DETECTORS:
        return getattr(config, "d_model", None) or config.hidden_size
    # The number depends on the layer and on the kind of backbone, so it is measured with a zero image.
    probe_config = CaptioningConfig(
        vision_config=config,
        vision_feature_layer=fields.get("vision_feature_layer", -1),
        vision_grid_size=fields.get("vision_grid_size"),
    )
    probe = VisionBackbone(probe_config)
    with torch.no_grad():
        regions = probe.eval()(torch.zeros(1, 3, *native_image_size(model)))
    return regions.region_features.shape[-1]


def load_vision_model_for(source: Any, config_fields: dict[str, Any]) -> tuple[PreTrainedModel | None, dict[str, Any]]:
    """Load the vision model of a new captioner; return it with the configuration fields that it determines.

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
    region_size = region_size_of(loaded, fields)
    if fields.setdefault("region_feature_size", region_size) != region_size:
        raise ValueError(
            f"`region_feature_size={fields['region_feature_size']}`, but the vision model gives {region_size} "
            "features per region. Omit the field: it is measured."
        )
    return loaded, fields
