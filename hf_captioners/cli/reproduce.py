"""`hf-captioners reproduce`: run the recipes of a published table with several seeds, compare with the paper."""

import argparse
import random
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_captioners.reproduce.recipe import RECIPES, Recipe
from hf_captioners.training.parser import add_training_flags, merge_arguments

from .parsing import add_allow_code

if TYPE_CHECKING:
    from hf_captioners.reproduce.runs import Run

NAME = "reproduce"
HELP = "run the recipes of a published table and print mean and deviation beside the published metrics"
# Arguments of this command alone; all others are training arguments, which override those of the recipes.
FEW = {
    "which runs": ("paper", "table", "row", "regime", "seeds", "verify", "recipes"),
    "with what": ("data_dir", "features", "settings", "output_dir", "launcher", "dry_run", "help_all", "help"),
}
COMMAND_FLAGS = {"paper", "table", "row", "regime", "recipes", "seeds", "verify", "launcher", "dry_run"}
COMMAND_FLAGS |= {"settings", "output_dir", "seed", "allow_code"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose rows and runs."""
    parser.usage = "hf-captioners reproduce PAPER [--NAME VALUE ...]"
    parser.add_argument("paper", help="short name of the paper or study, for example visualgpt, zodiac, eta, low_data")
    parser.add_argument("--table", help="number of the table; default: all")
    parser.add_argument("--row", help="only rows whose name contains this text")
    parser.add_argument("--regime", help="only this regime, for example 1%%")
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="default: the recipes of the package")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of the recipe")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="train three random cells with new seeds, and print whether their figures lie in the 95 %% prediction "
        "interval of those that were measured before",
    )
    parser.add_argument(
        "--with",
        dest="settings",
        metavar="FILE",
        nargs="+",
        default=[],
        help="YAML files of training arguments that override those of the recipes, for example paths of this machine",
    )
    add_allow_code(parser)
    parser.add_argument("--launcher", default=sys.executable, help='for example "accelerate launch"')
    parser.add_argument("--dry_run", action="store_true", help="only print the commands")
    add_training_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run all unfinished recipes and print the table; return 1 if a run failed."""
    from hf_captioners.reproduce.runs import FAILED, find_recipes, plan_runs
    from hf_captioners.reproduce.verification import compare_with_measured, draw_cells

    settings = [Recipe.load(path, args.allow_code).arguments for path in args.settings]
    chosen = {name: value for name, value in vars(args).items() if name not in COMMAND_FLAGS}
    overrides = merge_arguments(*settings, chosen)
    output = Path(getattr(args, "output_dir", None) or Path("runs", "reproduce", args.paper))
    recipes = find_recipes(args.recipes, args.paper, args.table, args.row, args.allow_code)
    if args.verify and args.seeds:
        raise ValueError("`verify` draws its own seeds: leave out `seeds`.")
    if args.verify:
        output /= "verified"
        runs = draw_cells(recipes, output, random.Random())
    else:
        runs = plan_runs(recipes, output, args.regime, args.seeds)
    if args.dry_run:
        for one in runs:
            print(shlex.join(["hf-captioners", one.command, *one.typed(overrides)]))
        return 0

    from hf_captioners.reproduce.executing import execute_runs
    from hf_captioners.training.parser import read_arguments
    from hf_captioners.training.starting import check_fields

    for one in (run for run in runs if not run.members):  # the others train nothing
        check_fields(read_arguments(one.arguments(overrides)).model)

    def announce(number: int, one: "Run") -> None:
        print(f"[{number}/{len(runs)}] {', '.join(one.names.values())}, seed {one.seed}", flush=True)

    failed = False
    verified = []
    for one, result in execute_runs(runs, output, overrides, shlex.split(args.launcher), args.recipes, announce):
        print(f"    {result['status']} {result.get('error') or ''}".rstrip(), flush=True)
        failed |= result["status"] == FAILED
        verified += [(one, *compared) for compared in compare_with_measured(one, result.get("figures", {}))]
    if args.verify:
        print_verification(verified)
    else:
        print((output / "results.md").read_text(encoding="utf-8"))
    return int(failed)


def print_verification(compared: "Sequence[tuple[Run, str, float, float, float, bool]]") -> None:
    """Print which figures lie in their prediction intervals."""
    for run, metric, value, low, high, inside in compared:
        where = "inside" if inside else "OUTSIDE"
        print(
            f"{run.names['row']}, {run.regime}, seed {run.seed}: {metric} {value:.1f} is {where} the interval "
            f"{low:.1f} to {high:.1f}"
        )
    count = sum(row[-1] for row in compared)
    print(f"{count} of {len(compared)} figures lie in the 95 % prediction interval of the measured runs.")
