"""Recipe `lora`: adapter training for captioners of more than a billion parameters."""

import dataclasses
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from hf_captioners.architectures import TRANSFORMERS_CAPTIONERS
from hf_captioners.default_model import is_default
from hf_captioners.loading import adapter_settings, base_of_adapter, reading, require_peft

from .arguments import CaptioningTrainingArguments
from .few_images import AUTO, LORA_RECIPE, NONE
from .scst.arguments import SCSTArguments
from .starting import ModelArguments

MAX_WHOLE = 1_000_000_000
"""Largest number of parameters of a captioner that is trained whole by default."""
LORA: dict[str, Any] = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "linear",
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "generation_num_beams": 1,
    "generation_max_new_tokens": 256,
}


def without_weights(source: str) -> PreTrainedModel | None:
    """Return a captioner of transformers on the device `meta`, without reading weights.

    Args:
        source: directory or name; of an adapter, its captioner is returned.

    Returns:
        None: it is a captioner of this library, or code of its checkpoint.

    Raises:
        ValueError, FileNotFoundError: see `reading`.
    """
    if is_default(source):
        return None
    if (settings := adapter_settings(source)) is not None:
        source = base_of_adapter(source, settings)
    with reading(source):
        config = AutoConfig.from_pretrained(source)
        if config.model_type not in TRANSFORMERS_CAPTIONERS:
            return None
        with torch.device("meta"):
            return cast(PreTrainedModel, AutoModelForImageTextToText.from_config(config))


def with_lora(
    model: ModelArguments, training: CaptioningTrainingArguments, recipe: str
) -> tuple[ModelArguments, CaptioningTrainingArguments, str | None]:
    """Return model and training arguments with the recipe `lora`, if chosen or if the captioner is large.

    Args:
        model: the model arguments.
        training: the training arguments; those in `given` stay as they are.
        recipe: see `train_captioner`.

    Returns:
        Both, and a line that names the recipe and the reason; None if it is not taken.

    Raises:
        ImportError: peft is not installed.
        ValueError: the recipe is chosen, and there is no captioner to adapt, or the run trains on rewards.
    """
    if recipe == LORA_RECIPE:
        if model.model is None:
            raise ValueError("`recipe=lora` trains an adapter of a captioner: pass `model` too, or leave it out.")
        if isinstance(training, SCSTArguments):
            raise ValueError("`scst` and `recipe=lora` exclude each other; pass `use_peft` for rewards of an adapter.")
        reason, built = "it was chosen", without_weights(model.model)
    else:
        if recipe != AUTO or model.model is None or isinstance(training, SCSTArguments):
            return model, training, None
        built = without_weights(model.model)
        count = 0 if built is None else int(built.num_parameters())
        if count <= MAX_WHOLE:
            return model, training, None
        reason = f"the captioner has {count:,} parameters, more than {MAX_WHOLE:,}"
    require_peft(f"`recipe={LORA_RECIPE}` ({reason})")
    is_adapter = adapter_settings(str(model.model)) is not None
    settings = {**LORA, "bf16": torch.accelerator.is_available() and not training.fp16}
    settings["gradient_checkpointing"] = built is None or bool(built.supports_gradient_checkpointing)
    explicit = {name: getattr(training, name) for name in training.given if hasattr(training, name)}
    changed = CaptioningTrainingArguments(**(settings | explicit))
    changed.given = training.given
    line = f"Recipe {LORA_RECIPE}: {reason}; an adapter is trained. `recipe={NONE}` trains without it."
    return (model if is_adapter else dataclasses.replace(model, use_peft=True)), changed, line
