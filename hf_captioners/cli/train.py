"""`hf-captioners train`: train a captioner on a folder of images with captions, or on a named data set."""

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.reproduce.recipe import Recipe
from hf_captioners.training.packages import require_packages
from hf_captioners.training.parser import add_training_flags, argument_list, merge_arguments, read_arguments

from .cross_validation import CrossValidation, offer
from .evaluate import add_strict_argument, report_left_out
from .interruption import deferred, note_at_interruption
from .parsing import add_allow_code, with_dashes
from .paths import check_training_paths

if TYPE_CHECKING:
    from hf_captioners.training.arguments import CaptioningTrainingArguments
    from hf_captioners.training.running import TrainingResult

NAME = "train"
HELP = "train a captioner on your own images and captions"
# Arguments of this command alone; all others are fields of the dataclasses.
COMMAND_FLAGS = ("recipes", "regime", "reproduces", "no_comparison", "folds", "resume", "strict", "allow_code")
FEW: Mapping[str, Sequence[str]] = {
    "data": ("train_dir", "validation_dir", "dataset", "data_dir", "data_options"),
    "captioner": ("language_model", "vision_model", "architecture", "model", "model_config"),
    "training": (
        *("output_dir", "num_train_epochs", "max_steps", "learning_rate", "per_device_train_batch_size"),
        *("early_stopping_patience", "bf16", "scst", "recipe", "folds"),
    ),
    "run": ("resume", "seed", "help_all", "help"),
}
EXAMPLES = """examples:
  hf-captioners train --train_dir my_images --language_model gpt2 --vision_model facebook/dinov2-small \
      --output_dir my_captioner
  hf-captioners train --architecture show_attend_tell --train_dir my_images --vision_model timm:resnet50.a1_in1k \
      --output_dir my_lstm
  hf-captioners train --model my_captioner --train_dir my_images --scst --output_dir my_rewarded_captioner
  hf-captioners train recipe.yaml --num_train_epochs 3

`--help_all` shows all flags, with every argument of transformers' Seq2SeqTrainer."""
COMPARISON_PAGE = "comparison.html"
FLAGS = {name: f"--{name}" for name in (*argument_list(), "resume")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all arguments of a training, and the flags that only the command line has."""
    parser.usage = "hf-captioners train [RECIPE.yaml ...] [--NAME VALUE ...]"
    parser.add_argument(
        "recipes",
        nargs="*",
        metavar="RECIPE",
        help="YAML files of the arguments below, before all other arguments; later files override earlier ones, and "
        "what is typed overrides them all. A path that does not exist is looked up in the recipes of the package, "
        "for example show_attend_tell/flickr8k_soft.yaml",
    )
    parser.add_argument("--regime", help="regime of the first recipe, for example 1%%; the card shows its row")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume from the last complete checkpoint in --output_dir, if any, or from --resume_from_checkpoint",
    )
    parser.add_argument(
        "--reproduces",
        nargs=2,
        metavar=("RECIPE", "REGIME"),
        help="show the published row of this recipe and regime in the card, beside the metrics of --test_split",
    )
    parser.add_argument(
        "--no_comparison",
        action="store_true",
        help="do not caption the held-out images with the captioner of --model and with the trained one at the end",
    )
    parser.add_argument(
        "--folds",
        type=int,
        metavar="N",
        help="cross-validation: train N times, each time without a part of the images, which is then captioned; print "
        "figures over all images; and train the captioner on all of them at the end",
    )
    add_allow_code(parser)
    add_strict_argument(parser)
    add_training_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Train a captioner and print a summary; return 1 after divergence or, with `--strict`, unreadable images."""
    recipes = [Recipe.load(path, args.allow_code) for path in args.recipes]
    if args.regime is not None and not recipes:
        raise ValueError(f"`--regime {args.regime}` needs a recipe: hf-captioners train RECIPE.yaml --regime NAME.")
    for recipe in recipes:
        if recipe.published is not None and recipe.published.combines:
            raise ValueError(
                f"{recipe.path} combines runs of other rows and is not trained itself: hf-captioners reproduce "
                f"{recipe.published.paper} --table {recipe.published.table} --row {recipe.published.row!r}"
            )
    parts = [recipe.with_regime(args.regime if recipe is recipes[0] else None) for recipe in recipes]
    typed = {name: value for name, value in vars(args).items() if name not in COMMAND_FLAGS}
    values = merge_arguments(*parts, typed)
    reproduces = args.reproduces or ((recipes[0].path, args.regime) if args.regime is not None else None)
    comparison = Recipe.load(reproduces[0], args.allow_code).comparison(reproduces[1]) if reproduces else None
    check_training_paths(values)
    require_packages(values)

    from hf_captioners.training.callbacks import CheckpointAtInterruption
    from hf_captioners.training.health import DivergenceError
    from hf_captioners.training.running import train_captioner

    arguments = read_arguments(values)
    resume = args.resume or arguments.training.resume_from_checkpoint is not None
    checkpoint = CheckpointAtInterruption()
    validation: CrossValidation | None = None

    def take(interruption: KeyboardInterrupt) -> bool:
        is_taken = checkpoint.end_by(interruption)
        if is_taken:
            with suppress(OSError):  # the terminal is closed
                say("Interrupted: a checkpoint is written after this step. Interrupt again to end without it.")
        return is_taken

    def progress_note() -> str:
        parts = "" if validation is None else f"{validation.done} of {args.folds} parts are captioned. "
        return parts + resume_note(arguments.training)

    started = time.monotonic()
    try:
        with note_at_interruption(progress_note), deferred(take):
            if args.folds is not None:
                validation = CrossValidation(values, args.folds, args.resume, say)
                arguments = validation.arguments
                result = validation.run([checkpoint], comparison)
            else:
                result = train_captioner(
                    *arguments, resume=resume, reproduces=comparison, say=say, callbacks=[checkpoint]
                )
    except DivergenceError as error:
        print(f"hf-captioners train: error: {with_dashes(str(error), FLAGS)}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - started
    print("\n".join(summary(result, args.folds is not None)))
    if result.trainer.is_world_process_zero():
        for line in figures_of(args, arguments, result, validation, seconds):
            print(line)
    print(caption_command(result))
    return report_left_out(arguments.data.left_out, args.strict)


def figures_of(
    args: argparse.Namespace,
    arguments: Any,
    result: "TrainingResult",
    validation: CrossValidation | None,
    seconds: float,
) -> Iterator[str]:
    """Yield lines about captions of held-out images.

    Args:
        args: as typed.
        arguments: see `read_arguments`.
        result: the trained captioner.
        validation: the cross-validation, if there was one.
        seconds: that the training took.
    """
    from hf_captioners.captioning.comparison import MIN_IMAGES, too_few

    if validation is not None:
        yield validation.report()
        return
    rows: Any = result.trainer.eval_dataset
    held_out = arguments.data.held_out
    count = len(rows) if hasattr(rows, "__len__") and not isinstance(rows, Mapping) else MIN_IMAGES
    compared = None
    if held_out is not None and arguments.model.model is not None and not args.no_comparison:
        compared = compare_with_start(arguments, result)
        yield from [] if compared is None else [compared]
    if compared is None and result.best_evaluation is not None and count < MIN_IMAGES:
        yield too_few(count)
    elif compared is None and held_out is not None and arguments.data.train_dir is not None:
        output, folder = arguments.training.output_dir, arguments.data.train_dir
        yield f"Score it on held-out images: hf-captioners evaluate {output} {folder} --split held_out"
    if held_out is not None and (line := offer(result, images_of(result) + count, seconds)) is not None:
        yield line


def images_of(result: "TrainingResult") -> int:
    """Return the number of training images."""
    pairs: Any = result.trainer.train_dataset
    return len(getattr(pairs, "images", pairs))


def compare_with_start(arguments: Any, result: "TrainingResult") -> str | None:
    """Compare the captioner with its initial captioner on held-out images unknown to both.

    Args:
        arguments: see `read_arguments`.
        result: the trained captioner.

    Returns:
        Lines about it; None if there are too few images.
    """
    from hf_captioners.captioning.comparison import Comparison, system_of, without_trained
    from hf_captioners.captioning.scoring import MetricSettings
    from hf_captioners.output_files import write_text

    training = arguments.training
    sources = [str(training.output_dir), arguments.model.model]
    try:
        rows, notes = without_trained(sources, result.trainer.eval_dataset)
    except ValueError:
        return f"There is no comparison: {sources[1]} was trained on each image that was held out now."
    if len(rows) < 2:
        return None
    loading: dict[str, Any] = {"device": "cpu"} if training.use_cpu else {}
    systems = [system_of(source, rows, training.per_device_eval_batch_size, {}, **loading) for source in sources]
    for system in systems:
        system.training = notes[system.name]
    comparison = Comparison(systems, MetricSettings(training.eval_metrics, training.caption_tokenizer))
    page = Path(sources[0], COMPARISON_PAGE)
    write_text(page, comparison.page(rows))
    return f"\nOn held-out images:\n{comparison.table()}\nThe captions side by side: {page}"


def resume_note(training: "CaptioningTrainingArguments") -> str:
    """Return a sentence about the checkpoint from which an interrupted run can resume."""
    from hf_captioners.training.running import last_checkpoint

    checkpoint = last_checkpoint(training)
    return "There is no checkpoint yet." if checkpoint is None else f"The last checkpoint is {checkpoint}."


def say(line: str) -> None:
    """Print a line without breaking a progress bar."""
    from tqdm.auto import tqdm

    tqdm.write(with_dashes(line, FLAGS))


def summary(result: "TrainingResult", is_of_all: bool = False) -> list[str]:
    """Return the lines printed after training.

    Args:
        result: the trained captioner.
        is_of_all: whether it was trained on all images, after a cross-validation.
    """
    output_dir = result.trainer.args.output_dir
    had_finished = f"The run in {output_dir} had finished: nothing was trained. For more, pass a larger "
    had_finished += "`--max_steps` or `--num_train_epochs`."
    lines = [had_finished if result.had_finished else f"Saved the captioner in {output_dir}."]
    best = result.best_evaluation
    if is_of_all:
        lines.append(f"It was trained on all {images_of(result):,} images; the figures are those of the parts.")
    elif best is not None:
        metrics = ", ".join(
            f"{name} {best[f'eval_{name}']:.4f}" for name in ("cider_d", "bleu_4", "loss") if f"eval_{name}" in best
        )
        when = f"at epoch {best['epoch']:g}" if best["step"] else "of the initial model, not improved by training"
        lines.append(f"Best evaluation, {when}: {metrics}.")
    if result.test_metrics is not None:
        figures = ", ".join(
            f"{name} {result.test_metrics[name]:.4f}" for name in result.test_metrics.conditions["variants"]
        )
        lines.append(f"Test: {figures}.")
    return lines


def caption_command(result: "TrainingResult") -> str:
    """Return a line with the command for captioning with the trained captioner."""
    instruction = result.trainer.args.instruction
    flag = "" if instruction is None else f" --instruction {shlex.quote(instruction)}"
    return f"Caption with it: hf-captioners caption IMAGES --model {result.trainer.args.output_dir}{flag}"
