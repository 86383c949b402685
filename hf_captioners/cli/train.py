"""`hf-captioners train`: train a captioner on a folder of images with captions, or on a named data set."""

import argparse
import functools
import sys
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hf_captioners.reproduce.recipe import NULL, Recipe, merge_arguments

from .evaluate import add_strict_argument, report_left_out

if TYPE_CHECKING:
    from hf_captioners.training.running import TrainingResult

NAME = "train"
HELP = "train a captioner on your own images and captions"
# Arguments of this command alone; all others are fields of the dataclasses.
OWN = ("recipes", "regime", "reproduces", "resume", "strict")


def parent_parsers() -> list[argparse.ArgumentParser]:
    """Return a parser of the arguments of model, data, training and test; `null` is None where None is allowed."""
    from transformers import HfArgumentParser

    from hf_captioners.reproduce.reading import argument_types, field_types

    kinds = argument_types(self_critical=True)
    hints = {name: hint for kind in kinds for name, hint in field_types(kind).items()}
    parser = HfArgumentParser(kinds, add_help=False, allow_abbrev=False)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # only what is typed overrides a recipe; the dataclasses have defaults
        action.required = False  # a recipe may give it
        if type(None) in typing.get_args(hints[action.dest]) and callable(action.type) and not action.choices:
            action.type = _or_null(action.type)
    return [parser]


def _or_null(read: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(read)
    def read_or_null(text: str) -> Any:
        return None if text == NULL else read(text)

    return read_or_null


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only the command line has."""
    from transformers.hf_argparser import string_to_bool

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
        "--scst",
        type=string_to_bool,
        nargs="?",
        const=True,
        default=argparse.SUPPRESS,
        help="self-critical training: train on rewards of sampled captions",
    )
    parser.add_argument(
        "--reproduces",
        nargs=2,
        metavar=("RECIPE", "REGIME"),
        help="show the published row of this recipe and regime in the card, beside the metrics of --test_split",
    )
    add_strict_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train a captioner and print a summary; 1 if training diverged, or with `--strict` if images are unreadable."""
    from hf_captioners.reproduce.reading import read_arguments
    from hf_captioners.training.divergence import DivergenceError
    from hf_captioners.training.running import checkpoint_to_resume, train_captioner

    recipes = [Recipe.load(path) for path in args.recipes]
    if args.regime is not None and not recipes:
        raise ValueError(f"`--regime {args.regime}` needs a recipe: hf-captioners train RECIPE.yaml --regime NAME.")
    for recipe in recipes:
        if recipe.published is not None and recipe.published.combines:
            raise ValueError(
                f"{recipe.path} combines runs of other rows and is not trained itself: hf-captioners reproduce "
                f"{recipe.published.paper} --table {recipe.published.table} --row {recipe.published.row!r}"
            )
    parts = [recipe.with_regime(args.regime if recipe is recipes[0] else None) for recipe in recipes]
    typed = {name: value for name, value in vars(args).items() if name not in OWN}
    arguments = read_arguments(merge_arguments(*parts, typed))
    reproduces = args.reproduces or ((recipes[0].path, args.regime) if args.regime is not None else None)
    comparison = Recipe.load(reproduces[0]).comparison(reproduces[1]) if reproduces else None
    resume = args.resume or arguments.training.resume_from_checkpoint is not None
    checkpoint = checkpoint_to_resume(arguments.training, resume)
    if resume:
        print(f"Resuming from {checkpoint}." if checkpoint else "No complete checkpoint: starting from the beginning.")
    try:
        result = train_captioner(*arguments, resume=resume, reproduces=comparison)
    except DivergenceError as error:
        print(f"hf-captioners train: error: {error}", file=sys.stderr)
        return 1
    print(summary(result))
    return report_left_out(arguments.data.left_out, args.strict)


def summary(result: "TrainingResult") -> str:
    """Return the lines that are printed after training."""
    output_dir = result.trainer.args.output_dir
    had_finished = f"The run in {output_dir} had finished: nothing was trained. For more, pass a larger "
    had_finished += "`--max_steps` or `--num_train_epochs`."
    lines = [had_finished if result.had_finished else f"Saved the captioner in {output_dir}."]
    best = result.best_evaluation
    if best is not None:
        metrics = ", ".join(
            f"{name} {best[f'eval_{name}']:.4f}" for name in ("cider_d", "bleu_4", "loss") if f"eval_{name}" in best
        )
        when = f"at epoch {best['epoch']:g}" if best["step"] else "of the initial model, not improved by training"
        lines.append(f"Best evaluation, {when}: {metrics}.")
    lines.append(f"Caption with it: hf-captioners caption IMAGES --model {output_dir}")
    return "\n".join(lines)
