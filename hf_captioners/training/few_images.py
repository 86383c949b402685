"""Default training settings ("recipes") for fine-tuning a captioner on few images.

| recipe | training |
|---|---|
| `few_images` | 4 epochs of cross-entropy, then 100 steps on rewards; the saved weights keep 40 % of those before |
| `few_images_cross_entropy` | 4 epochs of cross-entropy, where rewards cannot be used |
| `lora` | 3 epochs of an adapter, for a captioner of more than a billion parameters, see `large_models` |

`auto`, the default of a run, takes one of them if fewer than 500 images train a given captioner; `none` takes none. An
argument that is given overrides just itself. Self-critical training (`SCSTArguments`) has defaults of its own, and
`auto` leaves them as they are.
"""

import copy
import os
from typing import Any

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_captioners.architectures import TRANSFORMERS_CAPTIONERS, Purpose
from hf_captioners.loading import supports
from hf_captioners.pipelines.image_captioning import IMAGE_CAPTIONERS

from .arguments import CaptioningTrainingArguments
from .scst.arguments import SCSTArguments

FEW_IMAGES = 500
AUTO, NONE = "auto", "none"
REWARDS_RECIPE, CROSS_ENTROPY_RECIPE = "few_images", "few_images_cross_entropy"
LORA_RECIPE = "lora"  # see `large_models`
RECIPE_NAMES = (AUTO, REWARDS_RECIPE, CROSS_ENTROPY_RECIPE, LORA_RECIPE, NONE)
RECIPE_HELP = (
    "Built-in settings; auto: those of lora where --model has more than a billion parameters, else those of "
    f"few_images where fewer than {FEW_IMAGES} images train it."
)
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
# Without effect in a run that evaluates nothing.
OF_EVALUATIONS = ("metric_for_best_model", "load_best_model_at_end", "early_stopping_patience")


def with_recipe(
    arguments: CaptioningTrainingArguments, recipe: str, model: Any, images: int | None = None
) -> tuple[CaptioningTrainingArguments, str | None]:
    """Return training arguments with a recipe's settings.

    Args:
        arguments: the arguments; those in `given` stay as they are.
        recipe: one of `RECIPE_NAMES`.
        model: the captioner that is trained further; None if it is built from parts.
        images: number of training images; None if it is not known.

    Returns:
        The arguments, and a line that names the recipe and the reason; None if there is no recipe.

    Raises:
        ValueError: the recipe is unknown or cannot be used here, or a given argument excludes it.
    """
    if recipe not in RECIPE_NAMES:
        raise ValueError(f"`recipe` is {recipe!r}, expected one of {', '.join(RECIPE_NAMES)}.")
    obstacle = why_no_rewards(arguments, model)
    if recipe == AUTO:
        if model is None or images is None or images >= FEW_IMAGES or isinstance(arguments, SCSTArguments):
            return arguments, None
        if obstacle is None and follows_instruction(model):
            obstacle = f"their gain is not measured for a {type(model).__name__} (`recipe={REWARDS_RECIPE}` uses them)"
        recipe = CROSS_ENTROPY_RECIPE if obstacle else REWARDS_RECIPE
        reason = f"{images:,} images, fewer than {FEW_IMAGES}, train a given captioner"
        reason += f"; no rewards, as {obstacle}" if obstacle else ""
    elif recipe == NONE:
        return arguments, None
    else:
        _require_usable(recipe, arguments, model, obstacle)
        reason = "it was chosen"
    return _merged(arguments, recipe), f"Recipe {recipe}: {reason}. `recipe=none` trains without it."


def follows_instruction(model: Any) -> bool:
    """Return whether a model is a captioner of transformers that follows instructions."""
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    return model_type in TRANSFORMERS_CAPTIONERS and model_type not in IMAGE_CAPTIONERS


def _require_usable(recipe: str, arguments: CaptioningTrainingArguments, model: Any, obstacle: str | None) -> None:
    if model is None:
        raise ValueError(f"`recipe={recipe}` trains a captioner further: pass `model` too, or leave it out.")
    if recipe == CROSS_ENTROPY_RECIPE and isinstance(arguments, SCSTArguments):
        raise ValueError(f"`scst` and `recipe={recipe}` exclude each other; give one.")
    if recipe == REWARDS_RECIPE and obstacle:
        raise ValueError(
            f"`recipe={recipe}` trains on rewards, which cannot be used here, as {obstacle}: pass "
            f"`recipe={CROSS_ENTROPY_RECIPE}`."
        )


def _merged(arguments: CaptioningTrainingArguments, recipe: str) -> CaptioningTrainingArguments:
    settings = REWARDS if recipe == REWARDS_RECIPE else CROSS_ENTROPY
    settings = {name: value for name, value in settings.items() if name not in arguments.given}
    if "num_train_epochs" in arguments.given:  # the same length in another unit, which `max_steps` would override
        settings.pop("max_steps", None)
    advice = f"the recipe {recipe} evaluates nothing while it trains: leave it out, or pass `recipe=none`"
    if "eval_strategy" not in arguments.given:
        for name in OF_EVALUATIONS:
            if name in arguments.given and getattr(arguments, name):
                raise ValueError(f"`{name}` needs evaluations, and {advice}.")
    elif "start_weight" in settings and (plan := IntervalStrategy(arguments.eval_strategy)) != IntervalStrategy.NO:
        raise ValueError(
            f"`eval_strategy={plan.value}` would not evaluate the weights that are saved, and {advice}; or pass "
            "`start_weight=0`, which saves the trained weights."
        )
    if recipe == REWARDS_RECIPE:
        explicit = {name: getattr(arguments, name) for name in arguments.given if hasattr(arguments, name)}
        return SCSTArguments(**settings, **explicit)
    changed = copy.copy(arguments)
    for name, value in settings.items():
        setattr(changed, name, value)
    return changed


def why_no_rewards(arguments: CaptioningTrainingArguments, model: Any) -> str | None:
    """Return why a captioner cannot be trained on rewards, for example sharded weights; None if it can."""
    launched = any(os.environ.get(f"ACCELERATE_USE_{name}") == "true" for name in ("FSDP", "DEEPSPEED"))
    if "scst" in arguments.given and not isinstance(arguments, SCSTArguments):
        return "`scst` is false"
    if hasattr(model, "peft_config"):
        return "an adapter is trained"
    if hasattr(model, "config") and not supports(model, Purpose.REWARDS):
        return f"{Purpose.REWARDS} is not supported for a {type(model).__name__}"
    if getattr(model, "captions_depend_on_batch", False):
        return "its captions depend on the others of their batch"
    return "its weights are sharded" if arguments.fsdp or arguments.deepspeed or launched else None
