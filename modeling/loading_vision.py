"""Finding the weights of a vision model by name, directory or timm architecture."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel, TimmWrapperConfig

from .layers_vision import vision_tower_config

TIMM_PREFIX = "timm:"


def load_vision_model(source: Any) -> PreTrainedModel:
    """A vision model with its weights.

    Args:
        source: a `PreTrainedModel`; or the name or directory of a checkpoint of transformers (of a two-tower model
            the vision half is taken); or `"timm:ARCHITECTURE"` for timm's own weights, or
            `"timm:ARCHITECTURE:FILE"` for weights in a file.

    Raises:
        ValueError: the checkpoint is no vision model.
    """
    if isinstance(source, PreTrainedModel):
        return source
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
    import timm
    from timm.models import load_checkpoint

    architecture, _, checkpoint = specification.partition(":")
    model = AutoModel.from_config(TimmWrapperConfig(architecture=architecture, num_labels=0))
    if checkpoint:
        load_checkpoint(model.timm_model, checkpoint, strict=False)
    else:
        pretrained = timm.create_model(architecture, pretrained=True, num_classes=0)
        model.timm_model.load_state_dict(pretrained.state_dict())
    return model.eval()
