"""`hf-captioners evaluate`: caption a data set with a model and score the captions."""

import argparse
import sys

from hf_captioners.named_values import read_named_values

from .caption import add_model_arguments, generation_options, load_model
from .score import add_metric_arguments, metric_settings, report

NAME = "evaluate"
HELP = "caption a data set and score the captions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of model, data, generation and metrics."""
    parser.add_argument("model", help="captioner: name or directory")
    parser.add_argument("data", help="name of a data set of `load_captions`, or a folder of images with captions")
    parser.add_argument("--data_dir", "--data-dir", help="folder of a named data set")
    parser.add_argument(
        "--data_options", "--data-options", nargs="+", default=[], help="options of the data set: name=value ..."
    )
    parser.add_argument("--split", default="test", help="default: test")
    parser.add_argument("--max_images", "--max-images", type=int, help="caption at most this many images")
    add_model_arguments(parser)
    add_metric_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Caption and score; 1 if the data set has images without references."""
    from hf_captioners.captioning.batches import require_batch_size
    from hf_captioners.captioning.data_set import caption_data_set, load_split
    from hf_captioners.captioning.scoring import score_matched

    require_batch_size(args.batch_size)
    settings = metric_settings(args)
    options = read_named_values(args.data_options, "--data_options")
    rows = load_split(args.data, args.data_dir, args.split, options)
    if args.max_images is not None and args.max_images < len(rows):
        print(f"only the first {args.max_images:,} of {len(rows):,} images", file=sys.stderr)
        rows = rows.select(range(args.max_images))
    matched = caption_data_set(load_model(args), rows, args.batch_size, **generation_options(args))
    return report(score_matched(matched, settings), args)
