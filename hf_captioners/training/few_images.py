"""What training a captioner further on a few images does where nothing else was asked for."""

import copy
import os
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from .arguments import CaptioningTrainingArguments
from .scst.arguments import SCSTArguments

FEW_IMAGES = 500
# The last weights are saved: a tenth of a few images is too little to choose the best evaluation by.
NO_EVALUATION = {
    "eval_strategy": IntervalStrategy.NO,
    "save_strategy": SaveStrategy.NO,
    "load_best_model_at_end": False,
}
CROSS_ENTROPY: dict[str, Any] = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "linear",
    "num_train_epochs": 4.0,
    **NO_EVALUATION,
}
# `benchmarks/correction_loop.py` measures these.
REWARDS: dict[str, Any] = {
    "scst_after_epochs": 4.0,
    "cross_entropy_learning_rate": 3e-4,
    "learning_rate": 6e-5,
    "lr_scheduler_type": "linear",
    "max_steps": 100,
    "per_device_train_batch_size": 10,
    "sampling": "beams",
    "sample_with_dropout": True,
    "start_weight": 0.4,
    **NO_EVALUATION,
}
OWN_PLAN = {"max_steps", "eval_strategy", "save_strategy", "load_best_model_at_end", "metric_for_best_model"}


def for_few_images(
    arguments: CaptioningTrainingArguments, chosen: Collection[str], model: Any
) -> CaptioningTrainingArguments:
    """Return the arguments of a training that goes on from a captioner with fewer than `FEW_IMAGES` images.

    Args:
        arguments: the arguments with their usual defaults.
        chosen: names of the arguments that stay as they are. One of them that says how long to train or what to keep
            leaves all others as they are too.
        model: the captioner.

    Returns:
        Arguments of self-critical training after cross-entropy; where `chosen` has one of these settings or `"scst"`,
        or where the captioner cannot be trained so, a copy for a short training with cross-entropy. The arguments
        themselves if there is a plan of one's own, or self-critical training.
    """
    if isinstance(arguments, SCSTArguments) or OWN_PLAN & set(chosen):
        return arguments
    if not {"scst", *REWARDS, *CROSS_ENTROPY} & set(chosen) and can_be_rewarded(arguments, model):
        kept = {one.name: getattr(arguments, one.name) for one in fields(arguments) if one.init and one.name in chosen}
        return SCSTArguments(**kept, **REWARDS)
    changed = copy.copy(arguments)
    for name, value in CROSS_ENTROPY.items():
        if name not in chosen:
            setattr(changed, name, value)
    return changed


def can_be_rewarded(arguments: CaptioningTrainingArguments, model: Any) -> bool:
    """Return whether the settings `REWARDS` can train a captioner: a whole one, whose captions need no others."""
    launched = [os.environ.get(f"ACCELERATE_USE_{name}") == "true" for name in ("FSDP", "DEEPSPEED")]
    return not (
        hasattr(model, "peft_config")
        or getattr(model, "captions_depend_on_batch", False)
        or arguments.fsdp
        or arguments.deepspeed
        or any(launched)
    )
