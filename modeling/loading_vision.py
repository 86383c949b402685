"""Loading of pretrained vision models, of which new captioners are built: backbones and detectors."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForObjectDetection, PreTrainedConfig, PreTrainedModel

from .configuration_captioning import DETECTORS, CaptioningConfig
from .layers_vision import VisionBackbone, vision_tower_config

TIMM_PREFIX = "timm:"


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
