"""What training a captioner further on a few images does where nothing else was asked for."""

import copy
from collections.abc import Collection

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from .arguments import CaptioningTrainingArguments
from .scst_arguments import SCSTArguments

FEW_IMAGES = 500
# `benchmarks/correction_loop.py` measures them. The last weights are saved: a tenth of a few images is too little to
# choose the best evaluation by.
SETTINGS = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "linear",
    "num_train_epochs": 4.0,
    "eval_strategy": IntervalStrategy.NO,
    "save_strategy": SaveStrategy.NO,
    "load_best_model_at_end": False,
}

OWN_PLAN = {"max_steps", "eval_strategy", "save_strategy", "load_best_model_at_end", "metric_for_best_model"}


def for_few_images(arguments: CaptioningTrainingArguments, chosen: Collection[str]) -> CaptioningTrainingArguments:
    """Return the arguments of a training that goes on from a captioner with fewer than `FEW_IMAGES` images.

    Args:
        arguments: the arguments with their usual defaults.
        chosen: names of the arguments that stay as they are. One of them that says how long to train or what to keep
            leaves all others as they are too.

    Returns:
        A changed copy, or the arguments themselves; those of self-critical training are not changed.
    """
    if isinstance(arguments, SCSTArguments) or OWN_PLAN & set(chosen):
        return arguments
    changed = copy.copy(arguments)
    for name, value in SETTINGS.items():
        if name not in chosen:
            setattr(changed, name, value)
    return changed
