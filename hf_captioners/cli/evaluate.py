"""`hf-captioners evaluate`: caption a data set with a model and score the captions."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.output_files import require_writable_folder

from .caption import (
    add_ensemble_argument,
    add_instruction_argument,
    add_model_arguments,
    add_weights_argument,
    check_supported,
    generation_options,
    load_packed_model,
    models_of_ensemble,
    with_typed_seed,
)
from .parsing import add_data_options_argument, add_links_argument, data_options_of, positive
from .paths import check_model_and_device, check_path
from .score import add_metric_arguments, metric_settings, report

if TYPE_CHECKING:
    from hf_captioners.data.report import Problem

NAME = "evaluate"
HELP = "caption a data set and score the captions"
HELD_OUT = "held_out"  # see `hf_captioners.data.held_out`
SEPARATOR = "+"  # between the captioners of an ensemble
SHOWN = 50  # rows that are printed one by one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of model, data, generation and metrics."""
    parser.add_argument("model", help="captioner: name or directory, or `default`: the installed one")
    parser.add_argument(
        "--model",
        dest="more_models",
        action="append",
        default=[],
        help=argparse.SUPPRESS,  # the old name of `--ensemble`
    )
    add_ensemble_argument(parser)
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="OTHER",
        help="compare with another captioner on the same images, may be repeated: name or directory, the folder of an "
        "exported one, an ensemble NAME+NAME, or a file of captions",
    )
    parser.add_argument(
        "--page", metavar="FILE", help="with --against: write images with the captions of each captioner as .html"
    )
    add_weights_argument(parser)
    parser.add_argument(
        "data", help="name of a data set of `load_captions`, or a folder of images with captions, a table, shards"
    )
    parser.add_argument("--data_dir", help="folder of a named data set")
    add_data_options_argument(parser)
    add_links_argument(parser)
    parser.add_argument(
        "--split",
        default="test",
        help="default: test; held_out: the images that the training of the captioner held out at random",
    )
    parser.add_argument(
        "--features",
        help="region features instead of images: the output of extract-features, or a TSV, HDF5 or folder of "
        "bottom-up features",
    )
    parser.add_argument("--max_images", type=positive, help="caption at most this many images")
    add_strict_argument(parser)
    add_instruction_argument(parser)
    add_model_arguments(parser)
    add_metric_arguments(parser)


def add_strict_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--strict`: unreadable images cause exit status 1."""
    parser.add_argument(
        "--strict", action="store_true", help="exit status 1 if images were left out because they cannot be read"
    )


def report_left_out(problems: "Sequence[Problem]", strict: bool) -> int:
    """Print rows dropped because of unreadable images; return 1 if there are any and `strict` is set."""
    for problem in problems[:SHOWN]:
        print(f"left out: {problem}", file=sys.stderr)
    if len(problems) > SHOWN:
        print(f"... and {len(problems) - SHOWN:,} more: hf-captioners check-data lists them all", file=sys.stderr)
    if problems:
        print(f"{len(problems):,} row(s) were left out: their images are missing or unreadable.", file=sys.stderr)
    return 1 if problems and strict else 0


def check_comparison(args: argparse.Namespace) -> None:
    """Check the arguments for comparing captioners.

    Raises:
        ValueError: they do not go together, or name a captioner twice.
        FileNotFoundError: the folder of a file does not exist.
    """
    if args.page is not None and not args.against:
        raise ValueError("`--page` is about a comparison: give `--against`.")
    if not args.against:
        return
    if args.per_image is not None or args.features is not None:
        raise ValueError("`--against` compares captions of images: leave out `--per_image` and `--features`.")
    if args.earlier_scores is not None:
        raise ValueError("`--earlier_scores` is about one captioner: leave it out with `--against`.")
    if args.processor:
        raise ValueError("`--processor` is about one captioner: leave it out with `--against`.")
    names = [SEPARATOR.join(args.model), *args.against]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"`--against` is {twice!r}, which is compared already.")
    for name in names:
        if not Path(name).exists():
            check_model_and_device(name.split(SEPARATOR))
    if args.page is not None:
        require_writable_folder(Path(args.page).parent)


def compare(args: argparse.Namespace, rows: Any, settings: Any, options: dict[str, Any]) -> int:
    """Compare the captioner with others, and write the requested files."""
    from hf_captioners.captioning.comparison import Comparison, system_of, without_trained
    from hf_captioners.output_files import as_json, write_text

    first = SEPARATOR.join(args.model)
    rows, notes = without_trained([first, *args.against], rows)
    names = ("device", "dtype", "trust_remote_code", "packed_weights", "device_map")
    loading = {name: getattr(args, name) for name in names}
    systems = [
        system_of(source, rows, args.batch_size, options, args.seed, weights=weights, **loading)
        for source, weights in [(first, args.weights), *((source, None) for source in args.against)]
    ]
    for system in systems:
        system.training = notes[system.name]
    comparison = Comparison(systems, settings)
    figures = as_json(comparison.figures)
    print(figures if args.format == "json" else comparison.table())
    if args.output:
        write_text(Path(args.output), figures + "\n")
    if args.page:
        write_text(Path(args.page), comparison.page(rows))
    return 0


def run(args: argparse.Namespace) -> int:
    """Caption and score; return 1 if images lack references or, with `--strict`, are unreadable."""
    args.model = models_of_ensemble([args.model, *args.more_models], args.ensemble)
    check_comparison(args)
    options = data_options_of(args)
    is_held_out = args.split == HELD_OUT
    check_path("data_dir", args.data_dir, folder=True)
    check_path("features", args.features)
    check_model_and_device(None if args.against else args.model, args.device)
    settings = metric_settings(args)

    from hf_captioners.captioning.comparison import MIN_IMAGES, too_few
    from hf_captioners.captioning.data_set import caption_data_set, load_split
    from hf_captioners.captioning.generation_options import options_of_evaluation
    from hf_captioners.captioning.scoring import score_groups, score_matched
    from hf_captioners.data.held_out import HeldOut
    from hf_captioners.data.loading import scored_by
    from hf_captioners.data.readable import unusable_images
    from hf_captioners.data.report import DataReport

    check_supported(args)
    captioning = generation_options(args)
    problems = DataReport()
    held_out = HeldOut.load(args.model[0], args.follow_links) if is_held_out else None
    split = "train" if is_held_out else args.split
    rows = load_split(args.data, args.data_dir, split, options, problems, args.features)
    if held_out is not None:
        rows = held_out.of(rows)
    if args.max_images is not None and args.max_images < len(rows):
        print(f"only the first {args.max_images:,} of {len(rows):,} images", file=sys.stderr)
        rows = rows.select(range(args.max_images))
    if args.against:
        status = compare(args, rows, settings, captioning)
        return max(status, report_left_out(unusable_images(problems), args.strict))
    pipeline = load_packed_model(args)
    generation = with_typed_seed(pipeline, options_of_evaluation(pipeline, captioning), args.seed)
    scores = score_matched(caption_data_set(pipeline, rows, args.batch_size, **generation), settings)
    scores.metrics.update({name: value for name, value in generation.items() if name == "seed"})
    if (column := scored_by(args.data)) is not None:
        groups = dict(zip(rows["image_id"], rows[column], strict=True))
        scores.metrics["groups"] = score_groups(scores.matched, groups, settings)
    if getattr(pipeline, "instructed", None) is not None:
        scores.metrics["instruction"] = pipeline.instructed.settings(args.instruction)["instruction"]
        scores.metrics["unverified"] = pipeline.is_unverified
    status = report(scores, args)
    if len(scores.matched.images) < MIN_IMAGES:
        print(too_few(len(scores.matched.images)), file=sys.stderr)
    return max(status, report_left_out(unusable_images(problems), args.strict))
