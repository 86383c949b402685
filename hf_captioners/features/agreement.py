"""Checks that stored features and a captioner belong to the same feature extractor."""

from typing import Any

from transformers import PreTrainedModel

from .cache import vision_part
from .extraction import GridExtractor
from .feature_store import FeatureStore, OtherExtractorError
from .region_source import Regions, RegionSource


def require_own_features(model: PreTrainedModel, processor: Any, source: RegionSource) -> None:
    """Raise an error if a captioner cannot use stored features; record their extractor in its configuration.

    A captioner with a vision part accepts the features of that part only, so that it can caption images afterwards.
    One without a vision part accepts any extractor the first time, and records it in its configuration
    (`region_extractor`).

    Args:
        model: a captioner of this library.
        processor: its processor.
        source: the regions that it is to be trained on. Only a feature store names its extractor.

    Raises:
        OtherExtractorError: the features come from a different or an unknown extractor.
        ValueError: the features have a different size or lack boxes that the captioner needs, or it reads no features.
    """
    config, description = model.config, source.description if isinstance(source, FeatureStore) else None
    if not hasattr(model, "get_region_features"):
        raise ValueError(
            f"A {type(model).__name__} reads images only; stored features need a captioner of this library."
        )
    if config.vision_config is not None:
        vision = vision_part(model, processor)
        if description is None or vision.digest != description.revision:
            whose = (
                f"{description.extractor} (revision {description.revision[:16]})"
                if description
                else "an unknown extractor"
            )
            raise OtherExtractorError(
                f"{source.name} has features of {whose}, which are not those of this captioner's vision part with its "
                f"image preparation (revision {vision.digest[:16]}). Extract them with the same vision model, layer, "
                "grid and image size, or train a captioner without a vision model on them."
            )
    if description is not None and config.region_extractor is not None:
        description.check_extractor(config.region_extractor["name"], config.region_extractor["revision"])
    if source.feature_size != config.region_feature_size:
        raise ValueError(
            f"{source.name} has {source.feature_size} features per region, the captioner reads "
            f"{config.region_feature_size} (`region_feature_size`)."
        )
    if config.needs_region_boxes and not has_boxes_or_relations(config, source[next(iter(source))]):
        raise ValueError(
            f"{source.name} has no boxes, and {config.needs_region_boxes}. Extract features with boxes, or pass the "
            "sizes of the images to the reader, so that it can normalise them."
        )
    if description is not None:
        config.region_extractor = {"name": description.extractor, "revision": description.revision}


def attach_extractor(model: Any, processor: Any, extractor: GridExtractor) -> Any:
    """Return a captioner of stored features together with their vision model, so that it captions images.

    Args:
        model: a captioner of this library without a vision part, which was trained on a feature store.
        processor: its processor, which receives the image preparation of the extractor.
        extractor: `DetectorExtractor.from_detector(...)` or `GridExtractor.from_vision_model(...)` with the choices of
            the store.

    Returns:
        The captioner, in evaluation mode.

    Raises:
        OtherExtractorError: the captioner was trained on features of a different or an unknown extractor.
        ValueError: it has a vision part already.

    Example:
        ```python
        from hf_captioners.features.agreement import attach_extractor
        from hf_captioners.features.extraction import DetectorExtractor
        from hf_captioners.loading import load_captioner

        model, processor = load_captioner("on_detections")
        extractor = DetectorExtractor.from_detector("facebook/detr-resnet-50", max_regions=50, score_threshold=0.1)
        model = attach_extractor(model, processor, extractor)
        model.save_pretrained("captioner")
        processor.save_pretrained("captioner")
        ```
    """
    config = model.config
    if config.vision_config is not None:
        raise ValueError(f"The captioner has a {config.vision_config.model_type!r} vision part already.")
    trained_on = config.region_extractor or {"name": "an unknown extractor", "revision": "unknown"}
    if trained_on["revision"] != extractor.digest:
        raise OtherExtractorError(
            f"The captioner was trained on features of {trained_on['name']} (revision {trained_on['revision'][:16]}), "
            f"and this extractor has the revision {extractor.digest[:16]}. Load the same vision model with the same "
            "choice of regions and image size."
        )
    attached = type(model)(type(config).from_dict(config.to_dict() | extractor.config_fields))
    weights = {f"model.encoder.vision.{name}": weight for name, weight in extractor.backbone.state_dict().items()}
    attached.load_state_dict(model.state_dict() | weights)
    attached.generation_config = model.generation_config
    processor.image_processor = extractor.image_processor
    return attached.to(model.device, model.dtype).eval()


def has_boxes_or_relations(config: Any, regions: Regions) -> bool:
    """Return True if an image's regions have boxes, or the spatial relations that replace them."""
    reads_relations = "relation" in config.encoder_inputs.values()
    return regions.boxes is not None or (reads_relations and regions.relations is not None)
