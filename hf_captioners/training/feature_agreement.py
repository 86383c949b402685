"""Stored features belong to one extractor: a captioner that was trained on others refuses them."""

from typing import Any

from transformers import PreTrainedModel

from hf_captioners.data.feature_store import FeatureStore, OtherExtractorError

from .feature_cache import vision_part


def require_own_features(model: PreTrainedModel, processor: Any, store: FeatureStore) -> None:
    """Refuse features that a captioner cannot use, and let it remember those that it is trained on.

    A captioner with a vision part takes the features of that part only, so that it can caption pictures afterwards.
    One without takes any, once: its configuration (`region_extractor`) says which.

    Args:
        model: a captioner of this library.
        processor: its processor.
        store: what it is to be trained on.

    Raises:
        OtherExtractorError: the store is of another extractor.
        ValueError: the features have another size, or the captioner reads none.
    """
    config, found = model.config, store.description
    if not hasattr(model, "get_region_features"):
        raise ValueError(f"A {type(model).__name__} reads pictures only; stored features are for this library's own.")
    if config.vision_config is not None:
        own = vision_part(model, processor)
        if own.digest != found.revision:
            raise OtherExtractorError(
                f"{store.name} has features of {found.extractor} (revision {found.revision[:16]}), which are not "
                f"those of this captioner's vision part with its picture preparation (revision {own.digest[:16]}). "
                "Extract them with the same vision model, layer, grid and picture size, or train a captioner without "
                "vision model on them."
            )
    if config.region_extractor is not None:
        found.check_extractor(config.region_extractor["name"], config.region_extractor["revision"])
    if found.feature_size != config.region_feature_size:
        raise ValueError(
            f"{store.name} has {found.feature_size} features a region, the captioner reads "
            f"{config.region_feature_size} (`region_feature_size`)."
        )
    config.region_extractor = {"name": found.extractor, "revision": found.revision}
