"""Vision part of a captioner that is a detector: its best queries are the regions."""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForObjectDetection
from transformers.utils import ModelOutput

from .configuration_captioning import queries_field
from .inputs_captioning import DetectedRegions, RegionFeatures
from .layers_vision import VisionBackbone, cells_of_maps, tokens_to_map

# Parts of detectors that the states of queries do not depend on: heads of classes and boxes, what proposes and scores
# queries (boxes are passed on between layers without gradients), and what training alone adds. In every family.
DETECTION_HEADS = (
    *("class_embed", "bbox_embed", "class_labels_classifier", "bbox_predictor", "pre_bbox_head", "lqe_layers"),
    *("enc_output", "enc_output_norm", "enc_score_head", "enc_bbox_head", "enc_out_class_embed", "enc_out_bbox_embed"),
    *("denoising_class_embed", "mask_token"),
)


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
