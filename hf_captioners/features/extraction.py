"""Feature extractors: grids of vision models, and queries of detectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import PIL.Image
import torch
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoModelForObjectDetection

from hf_captioners.loading import load_vision_part, reading
from hf_captioners.modeling.configuration_captioning import CaptioningConfig
from hf_captioners.modeling.layers_vision import VisionBackbone
from hf_captioners.processing.image_reading import read_image

from .feature_store import StoreDescription, StoredKind
from .region_source import Regions

# Fields of configurations that do not change the features.
UNRELATED = ("_name_or_path", "architectures", "dtype", "id2label", "label2id", "transformers_version")


class RegionExtractor(Protocol):
    """Feature extractor. `prepare` runs in the processes that decode images, `__call__` in the main process."""

    def prepare(self, images: list[PIL.Image.Image]) -> dict[str, Tensor]:
        """Return the inputs of the model for B images."""
        ...

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Regions]:
        """Return the regions of B images."""
        ...

    def description(self, kind: StoredKind) -> StoreDescription:
        """Return the description of a store of these regions."""
        ...


def weights_digest(model: nn.Module, *settings: Any) -> str:
    """Return a digest of everything that features depend on, except the image.

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
    """Return the settings of an image processor that change images."""
    return {
        name: value
        for name, value in image_processor.to_dict().items()
        if name not in ("auto_map", "processor_class", "feature_extractor_type")
    }


class GridExtractor:
    """Extractor of the grid of a vision model, equal to the vision part of a captioner.

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
        """Load a vision model, see `load_vision_model`.

        Args:
            source: name or directory of a vision model, or `timm:ARCHITECTURE[:FILE]`.
            feature_layer, grid_size: `vision_feature_layer` and `vision_grid_size` of a captioner.
            image_size: side in pixels, as in `load_vision_part`.
        """
        model, image_processor = load_vision_part(source, image_size)
        config = CaptioningConfig(
            vision_config=model.config, vision_feature_layer=feature_layer, vision_grid_size=grid_size
        )
        backbone = VisionBackbone(config)
        backbone.model.load_state_dict(model.state_dict())
        return cls(backbone, image_processor, source)

    def prepare(self, images: list[PIL.Image.Image]) -> dict[str, Tensor]:
        """Return `pixel_values` `[B, 3, H, W]`."""
        return {"pixel_values": self.image_processor(images, return_tensors="pt")["pixel_values"]}

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Regions]:
        """Return features `[R, D]` and boxes `[R, 4]` of every image; all have the same number of regions."""
        parameter = next(self.backbone.parameters())
        found = self.backbone(inputs["pixel_values"].to(parameter.device, parameter.dtype))
        features, boxes = found.region_features.float().cpu().numpy(), found.region_boxes.float().cpu().numpy()
        return [Regions(*arrays) for arrays in zip(features, boxes, strict=True)]

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
        """Return a description with vision model, layer and grid; the revision is the digest."""
        size = self.backbone.grid_size
        scales = [size] if isinstance(size, int) else size or []
        grid = " and ".join(f"{scale} x {scale}" for scale in scales) or "own"
        name = f"{self.name}, layer {self.backbone.feature_layer}, {grid} grid"
        return StoreDescription(name, self.digest, _feature_size(self), kind)


class DetectorExtractor:
    """Extractor of the best queries of a detector of the DETR family: their states, boxes and scores.

    Args:
        model: an object detector of transformers with one state and one box per query.
        image_processor: its image processor.
        name: name of the detector.
        top_k: keep at most this many regions per image, those with the best scores.
        score_threshold: keep regions with at least this score, and always the best one.

    Raises:
        ValueError: a number is outside of its range.
    """

    def __init__(
        self, model: Any, image_processor: Any, name: str, top_k: int = 50, score_threshold: float = 0.0
    ) -> None:
        if top_k < 1 or not 0 <= score_threshold <= 1:
            raise ValueError(f"`top_k` is {top_k} and `score_threshold` {score_threshold}; expected >= 1 and 0..1.")
        self.model, self.image_processor, self.name = model.eval(), image_processor, name
        self.top_k, self.score_threshold = top_k, score_threshold

    @classmethod
    def from_detector(cls, source: str, top_k: int = 50, score_threshold: float = 0.0) -> DetectorExtractor:
        """Load a detector of transformers by name or directory."""
        with reading(source):
            model = AutoModelForObjectDetection.from_pretrained(source, dtype=torch.float32)
            image_processor = AutoImageProcessor.from_pretrained(source)
        return cls(model, image_processor, source, top_k, score_threshold)

    def prepare(self, images: list[PIL.Image.Image]) -> dict[str, Tensor]:
        """Return `pixel_values`, and `pixel_mask` if images are padded."""
        return dict(self.image_processor([read_image(image) for image in images], return_tensors="pt"))

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Regions]:
        """Return states `[R, D]`, boxes `[R, 4]` in normalised xyxy and scores `[R]` of every image, best first.

        Raises:
            ValueError: the model returns no boxes or no states.
        """
        device = self.model.device
        outputs = self.model(**{name: values.to(device) for name, values in inputs.items()})
        boxes, states = getattr(outputs, "pred_boxes", None), getattr(outputs, "last_hidden_state", None)
        if boxes is None or states is None:
            raise ValueError(
                f"{self.name} ({type(self.model).__name__}) returns no query states with boxes; expected a "
                "detector of the DETR family."
            )
        states = states[:, -boxes.shape[1] :]  # [B, Q, D]; YOLOS has patches before the queries
        scores = object_scores(outputs.logits, self.model.config.num_labels)
        return [
            self._regions(*(values.float().cpu() for values in image))
            for image in zip(states, corners(boxes), scores, strict=True)
        ]

    def _regions(self, states: Tensor, boxes: Tensor, scores: Tensor) -> Regions:
        best = scores.argsort(descending=True, stable=True)[: self.top_k]
        kept = best[: max(1, int((scores[best] >= self.score_threshold).sum()))]
        return Regions(states[kept].numpy(), boxes[kept].numpy(), scores=scores[kept].numpy())

    def description(self, kind: StoredKind) -> StoreDescription:
        """Return detector and choice of queries; the revision is a digest of weights, choice and preparation."""
        name = f"{self.name}, best {self.top_k} queries of score >= {self.score_threshold:g}"
        config = {name: value for name, value in self.model.config.to_dict().items() if name not in UNRELATED}
        digest = weights_digest(
            self.model, self.top_k, self.score_threshold, config, image_settings(self.image_processor)
        )
        return StoreDescription(name, digest, _feature_size(self), kind, scores=True)


def object_scores(logits: Tensor, num_labels: int) -> Tensor:
    """Return the probability `[B, Q]` of the most probable class of each query.

    Args:
        logits: `[B, Q, classes]`; one class more than labels stands for "no object", with a softmax over all classes.
        num_labels: labels of the detector.
    """
    if logits.shape[-1] == num_labels + 1:
        return logits.softmax(-1)[..., :-1].amax(-1)
    return logits.sigmoid().amax(-1)


def corners(boxes: Tensor) -> Tensor:
    """Return boxes `[..., 4]`, given as centre and size, as x1, y1, x2, y2 clipped to the image."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1).clamp(0, 1)


def _feature_size(extractor: RegionExtractor) -> int:
    return extractor(extractor.prepare([PIL.Image.new("RGB", (64, 64))]))[0].features.shape[1]
