"""Table rows that evaluate the runs of other rows together, and the arguments of `hf-captioners evaluate` for them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .recipe import Recipe, as_arguments

# Arguments of a recipe that an evaluation has under another name or the same one.
EVALUATION_NAMES = {
    "data_dir": "data_dir",
    "train_dir": "data_dir",
    "data_options": "data_options",
    "features": "features",
    "test_split": "split",
    "test_metrics": "metrics",
    "test_tokenizer": "tokenizer",
    "generation_num_beams": "num_beams",
    "generation_max_new_tokens": "max_new_tokens",
    "per_device_eval_batch_size": "batch_size",
}
# Others that an evaluation has as a value without a name, or as a flag.
FLAGS = {"dataset", "use_cpu", "shuffled_control", "follow_links"}


def require_evaluation_arguments(recipe: Recipe) -> None:
    """Check that a table row that combines trained captioners has no training arguments.

    Raises:
        ValueError: it has one.
    """
    unused = [name for name in recipe.arguments if name not in {*EVALUATION_NAMES, *FLAGS}]
    if unused:
        raise ValueError(
            f"{recipe.path} combines other rows, so `{unused[0]}` has no effect: it belongs to their recipes."
        )


def typed_evaluation(arguments: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    """Return command line arguments of `hf-captioners evaluate` that evaluate captioners together.

    Args:
        arguments: arguments of training, of which those of data, test and generation apply.
        models: folders of the captioners.

    Raises:
        ValueError: the captioners read attributes from the captions, which an evaluation does not do.
    """
    # Not at the top: names are checked before anything heavy is imported.
    from hf_captioners.data.loading import generation_defaults
    from hf_captioners.training.arguments import CaptioningTrainingArguments
    from hf_captioners.training.data_arguments import DataArguments

    if arguments.get("attributes") is not None:
        raise ValueError(
            f"`attributes={arguments['attributes']}` does not apply to a row that combines others; leave it out."
        )
    of_training = {field.name: field.default for field in dataclasses.fields(CaptioningTrainingArguments)}
    dataset = str(arguments.get("dataset", DataArguments.dataset))
    defaults = {name: of_training[name] for name in ("generation_num_beams", "generation_max_new_tokens")}
    defaults |= {f"generation_{name}": value for name, value in generation_defaults(dataset).items()}
    first, *others = models
    typed = [first, dataset]
    for model in others:
        typed += ["--ensemble", model]
    for name, value in {**defaults, **arguments}.items():
        if name in EVALUATION_NAMES and value is not None:
            typed += [f"--{EVALUATION_NAMES[name]}", *as_arguments(name, value)[1:]]
    typed += ["--device", "cpu"] if arguments.get("use_cpu") else []
    typed += ["--shuffled_control"] if arguments.get("shuffled_control") else []
    typed += ["--follow_links"] if arguments.get("follow_links") else []
    return [*typed, "--output", f"{arguments['output_dir']}/test_results.json"]
