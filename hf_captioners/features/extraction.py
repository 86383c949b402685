"""Feature extractors: grid cells of vision models, and queries of detectors, as regions of images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import PIL.Image
import torch
from torch import Tensor, nn

from hf_captioners.loading import load_vision_part
from hf_captioners.modeling.configuration_captioning import DETECTORS, CaptioningConfig
from hf_captioners.modeling.layers_detector import VisionDetector
from hf_captioners.modeling.layers_vision import VisionBackbone
from hf_captioners.modeling.loading_vision import region_size_of

from .feature_store import StoreDescription, StoredKind
from .folding import fold_batch_norms
from .region_source import Regions

# Fields of configurations that do not change the features.
UNRELATED = ("_name_or_path", "architectures", "dtype", "id2label", "label2id", "transformers_version")


class RegionExtractor(Protocol):
    """Interface of feature extractors. `prepare` runs in worker processes, `__call__` in the main process."""

    def prepare(self, images: list[PIL.Image.Image]) -> dict[str, Tensor]:
        """Convert B images to inputs of the vision model."""
        ...

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Regions]:
        """Compute the regions of B images from the prepared inputs."""
        ...

    def description(self, kind: StoredKind) -> StoreDescription:
        """Return the description of a feature store of this extractor's regions."""
        ...


def weights_digest(model: nn.Module, *settings: Any) -> str:
    """Return a digest of all that determines features beside the image: weights, settings and image preparation.

    Args:
        model: the digest includes its weights, except those of a pooler, which regions do not pass.
        *settings: further values, serialisable as JSON.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.state_dict().items()):
        if "pooler" not in name:
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def image_settings(image_processor: Any) -> dict[str, Any]:
    """Return the image processor settings that affect the prepared image."""
    return {
        name: value
        for name, value in image_processor.to_dict().items()
        if name not in ("auto_map", "processor_class", "feature_extractor_type")
        and (name, value) != ("size_divisor", None)  # stores of earlier versions do not know it
    }


class GridExtractor:
    """Extractor of a vision model's grid cells, with the same results as the vision part of a captioner.

    Args:
        backbone: the vision part.
        image_processor: its image processor.
        name: name of the vision model.

    Examples:
        >>> import PIL.Image
        >>> from transformers import ViTConfig, ViTImageProcessor, ViTModel
        >>> from hf_captioners.features.extraction import GridExtractor
        >>> settings = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 8}
        >>> ViTModel(ViTConfig(hidden_size=16, image_size=32, **settings)).save_pretrained("vit")
        >>> _ = ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained("vit")
        >>> extractor = GridExtractor.from_vision_model("vit", grid_size=2)
        >>> (regions,) = extractor(extractor.prepare([PIL.Image.new("RGB", (80, 60))]))
        >>> regions.features.shape, regions.boxes.shape
        ((4, 16), (4, 4))
    """

    def __init__(self, backbone: VisionBackbone, image_processor: Any, name: str) -> None:
        self.backbone, self.image_processor, self.name = backbone.eval(), image_processor, name

    @classmethod
    def from_vision_model(
        cls,
        source: str,
        feature_layer: int = -1,
        grid_size: int | list[int] | None = None,
        image_size: int | None = None,
    ) -> GridExtractor:
        """Load a vision model by name, see `load_vision_model`.

        Args:
            source: name or directory of a vision model, or `timm:ARCHITECTURE[:FILE]`.
            feature_layer, grid_size: `vision_feature_layer` and `vision_grid_size` of a captioner.
            image_size: side in pixels, as in `load_vision_part`.
        """
        model, image_processor = load_vision_part(source, image_size)
        if model.config.model_type in DETECTORS:
            raise ValueError(
                f"{source} is a {model.config.model_type!r} detector, whose tokens are no cells of a grid. Pass "
                "`detector` for its queries."
            )
        config = CaptioningConfig(
            vision_config=model.config, vision_feature_layer=feature_layer, vision_grid_size=grid_size
        )
        backbone = VisionBackbone(config)
        backbone.model.load_state_dict(model.state_dict())
        return cls(backbone, image_processor, source)

    def prepare(self, images: list[PIL.Image.Image]) -> dict[str, Tensor]:
        """Return `pixel_values` `[B, 3, H, W]`, and `pixel_mask` `[B, H, W]` if images are padded."""
        return dict(self.image_processor(images, return_tensors="pt"))

    def fold_batch_norms(self) -> None:
        """Merge batch norms into convolutions on a CPU, for speed; the model must have no other use."""
        if next(self.backbone.parameters()).device.type != "cpu":
            return
        assert self.digest, "cached before the weights change"
        example = self.prepare([PIL.Image.effect_noise((64, 64), 50).convert("RGB")])["pixel_values"]
        fold_batch_norms(self.backbone.model, lambda: self.backbone(example).region_features)

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Regions]:
        """Return features `[R, D]` and boxes `[R, 4]` of every image; all have the same number of regions."""
        parameter = next(self.backbone.parameters())
        regions = self.backbone(inputs["pixel_values"].to(parameter.device, parameter.dtype))
        features, boxes = regions.region_features.float().cpu().numpy(), regions.region_boxes.float().cpu().numpy()
        return [Regions(*arrays) for arrays in zip(features, boxes, strict=True)]

    @property
    def config_fields(self) -> dict[str, Any]:
        """Fields of a captioner's configuration that describe this vision part."""
        part = self.backbone
        fields = {"vision_config": part.model.config, "vision_grid_size": part.grid_size}
        return fields | {"vision_feature_layer": part.feature_layer}

    @cached_property
    def digest(self) -> str:
        """Digest of weights, layer, grid and image preparation."""
        config = self.backbone.model.config.to_dict()
        config = {name: value for name, value in config.items() if name not in UNRELATED}
        settings = image_settings(self.image_processor)
        return weights_digest(
            self.backbone.model, self.backbone.feature_layer, self.backbone.grid_size, config, settings
        )

    def description(self, kind: StoredKind) -> StoreDescription:
        """Return a store's description: vision model, layer and grid; its revision is the digest."""
        size = self.backbone.grid_size
        scales = [size] if isinstance(size, int) else size or []
        grid = " and ".join(f"{scale} x {scale}" for scale in scales) or "own"
        name = f"{self.name}, layer {self.backbone.feature_layer}, {grid} grid"
        return StoreDescription(name, self.digest, _feature_size(self), kind)


class DetectorExtractor(GridExtractor):
    """Extractor of a detector's best queries, with the same results as the vision part of a captioner.

    Args:
        backbone: the vision part.
        image_processor: its image processor.
        name: name of the detector.
    """

    backbone: VisionDetector

    @classmethod
    def from_detector(
        cls, source: str, grid_size: int | list[int] | None = None, image_size: int | None = None, **choice: Any
    ) -> DetectorExtractor:
        """Load a detector of transformers by name.

        Args:
            source: name or directory.
            grid_size: cells of its encoder beside the queries, see `CaptioningConfig`.
            image_size: side in pixels of the square that images are stretched to. Default: its own preparation.
            **choice: `max_regions`, `min_regions`, `score_threshold` and `nms_threshold`: `vision_max_regions` and so
                on of a captioner.

        Raises:
            ValueError: the model is no detector whose queries can be regions, or a number is outside of its range.
        """
        model, image_processor = load_vision_part(source, image_size)
        if model.config.model_type not in DETECTORS:
            raise ValueError(
                f"{source} is a {model.config.model_type!r} model, expected a detector: one of "
                f"{', '.join(DETECTORS)}. For the grid of a vision model pass `vision_model`."
            )
        fields = {f"vision_{name}": value for name, value in choice.items() if value is not None}
        backbone = VisionDetector(CaptioningConfig(vision_config=model.config, vision_grid_size=grid_size, **fields))
        backbone.model.load_state_dict(model.state_dict())
        return cls(backbone, image_processor, source)

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Regions]:
        """Return features `[R, D]`, boxes `[R, 4]` and scores `[R]` of each image's detected regions, best first."""
        parameter = next(self.backbone.parameters())
        moved = {name: values.to(parameter.device) for name, values in inputs.items()}
        moved["pixel_values"] = moved["pixel_values"].to(parameter.dtype)
        detected = self.backbone.detect(**moved)
        arrays = [detected[f"region_{name}"].cpu() for name in ("features", "boxes", "scores", "mask")]
        return [
            Regions(features[mask].float().numpy(), boxes[mask].numpy(), scores=scores[mask].numpy())
            for features, boxes, scores, mask in zip(*arrays, strict=True)
        ]

    @property
    def config_fields(self) -> dict[str, Any]:
        """Fields of a captioner's configuration that describe this vision part."""
        part = self.backbone
        numbers = {"vision_max_regions": part.most, "vision_min_regions": part.least}
        thresholds = {"vision_score_threshold": part.score_threshold, "vision_nms_threshold": part.nms_threshold}
        return super().config_fields | numbers | thresholds

    @cached_property
    def digest(self) -> str:
        """Digest of weights, selection of queries and image preparation."""
        part = self.backbone
        choice = (part.most, part.least, float(part.score_threshold), part.nms_threshold, part.grid_size)
        config = without_unrelated(part.model.config.to_dict())
        return weights_digest(part.model, choice, config, image_settings(self.image_processor))

    def description(self, kind: StoredKind) -> StoreDescription:
        """Return a store's description: detector and selection of queries; its revision is the digest."""
        part = self.backbone
        kept = f"best {part.most} queries" if part.least == 1 else f"best {part.least} to {part.most} queries"
        others = "" if part.nms_threshold is None else f", overlaps <= {part.nms_threshold:g}"
        others += "" if part.grid_size is None else f", cells {part.grid_size}"
        name = f"{self.name}, {kept} of score >= {part.score_threshold:g}{others}"
        return StoreDescription(name, self.digest, region_size_of(part.model, {}), kind, scores=True)


def without_unrelated(config: Any) -> Any:
    """Drop, at any depth, configuration fields that do not affect features."""
    if not isinstance(config, dict):
        return config
    return {name: without_unrelated(value) for name, value in config.items() if name not in UNRELATED}


def extractor_of(backbone: VisionBackbone, image_processor: Any, name: str) -> GridExtractor:
    """Return the feature extractor that consists of this vision part and image preparation.

    Args:
        backbone: the vision part of a captioner.
        image_processor: its image processor.
        name: name of the vision model.
    """
    kind = DetectorExtractor if isinstance(backbone, VisionDetector) else GridExtractor
    return kind(backbone, image_processor, name)


def _feature_size(extractor: GridExtractor) -> int:
    return extractor(extractor.prepare([PIL.Image.new("RGB", (64, 64))]))[0].features.shape[1]
