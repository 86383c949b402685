"""`hf-captioners train`: a captioner from a folder of pictures with captions."""

import argparse
import dataclasses
from typing import Any

NAME = "train"
HELP = "train a captioner on your own pictures and captions"
DATA_SET_DEFAULTS = ("generation_max_new_tokens", "generation_num_beams")


def parent_parsers() -> list[argparse.ArgumentParser]:
    """Arguments of the starting point, the data and the training run."""
    from transformers import HfArgumentParser

    return [HfArgumentParser(argument_types(), add_help=False, allow_abbrev=False)]


def argument_types() -> tuple[type, ...]:
    """The dataclasses that arguments are read into."""
    from hf_captioners.training.arguments import CaptioningTrainingArguments
    from hf_captioners.training.starting import StartingPoint

    from .train_data import TrainingData

    return StartingPoint, TrainingData, CaptioningTrainingArguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What only the command line knows."""
    # None unless typed: a data set may have defaults of its own.
    parser.set_defaults(**dict.fromkeys(DATA_SET_DEFAULTS))
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last complete checkpoint in --output_dir, if any"
    )
    parser.epilog = "A YAML file of these arguments may be given first: hf-captioners train recipe.yaml [--NAME VALUE]"


def run(args: argparse.Namespace) -> int:
    """Load, train, save; a summary on stdout."""
    from .output_files import only_run_in, require_writable_folder

    start_kind, data_kind, training_kind = argument_types()
    data = data_kind(**_typed(args, data_kind))
    start = start_kind(**_typed(args, start_kind))
    training = training_kind(**(data.generation_arguments | _typed(args, training_kind)))
    require_writable_folder(training.output_dir)
    with only_run_in(training.output_dir, training.process_index == 0):
        return _train(args, start, data, training)


def _typed(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(kind) if field.init}
    return {name: value for name, value in values.items() if value is not None or name not in DATA_SET_DEFAULTS}


def _train(args: argparse.Namespace, start: Any, data: Any, training: Any) -> int:
    from transformers import set_seed

    from hf_captioners.training import CaptioningTrainer, last_complete_checkpoint
    from hf_captioners.training.starting import start_captioner

    from .train_data import fit_to_features, load_training_data

    checkpoint = last_complete_checkpoint(training.output_dir)
    if checkpoint is not None and not args.resume:
        raise FileExistsError(
            f"{training.output_dir} holds a run already ({checkpoint}). Pass --resume to go on with it, or another "
            "--output_dir."
        )
    train_rows, validation_rows = load_training_data(data, training.seed)
    fit_to_features(start, data)
    set_seed(training.seed)
    captions = (caption for captions in train_rows["captions"] for caption in captions)
    model, processor = start_captioner(start, captions)
    trainer = CaptioningTrainer(
        model, training, train_dataset=train_rows, eval_dataset=validation_rows, processing_class=processor
    )
    if args.resume:
        print(f"Going on from {checkpoint}." if checkpoint else "There is no complete checkpoint: starting anew.")
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    trainer.save_metrics("train", result.metrics)
    print(summary(trainer, training))
    return 0


def summary(trainer: Any, training: Any) -> str:
    """What came out, and what to type next."""
    lines = [f"Saved the captioner in {training.output_dir}."]
    key = training.best_metric_key
    evaluated = [entry for entry in trainer.state.log_history if key in entry]
    if evaluated:
        choose = max if training.greater_is_better else min
        best = choose(evaluated, key=lambda entry: entry[key])
        figures = ", ".join(
            f"{name} {best[f'eval_{name}']:.4f}" for name in ("cider_d", "bleu_4", "loss") if f"eval_{name}" in best
        )
        lines.append(f"Best evaluation, at epoch {best['epoch']:g}: {figures}.")
    lines.append(f"Caption with it: hf-captioners caption PICTURES --model {training.output_dir}")
    return "\n".join(lines)
