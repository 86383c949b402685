"""`hf-captioners calibrate`: calibrate a captioner's confidence and store the calibration."""

import argparse
import sys
from pathlib import Path
from typing import Any

from .caption import (
    add_model_arguments,
    check_supported,
    choose_typed_backend,
    generation_options,
    load_packed_model,
)
from .evaluate import add_strict_argument, report_left_out
from .parsing import add_data_options_argument, add_links_argument, data_options_of, positive
from .paths import check_model_and_device, check_path

NAME = "calibrate"
HELP = "measure how sure a captioner is of its words, on images that it was not trained on"
DEFAULT_SAMPLES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of model, data and decoding."""
    parser.add_argument("model", metavar="MODEL", help="directory of a captioner, or `default`: the installed one")
    parser.add_argument("data", help="name of a data set of `load_captions`, or a folder of images with captions")
    parser.add_argument("--data_dir", help="folder of a named data set")
    add_data_options_argument(parser)
    add_links_argument(parser)
    parser.add_argument("--split", default="validation", help="default: validation; no split that it was trained on")
    parser.add_argument(
        "--rows",
        choices=("all", "even", "odd"),
        default="all",
        help="calibrate on all rows of the split, or on the even or odd ones, so that the others can measure it",
    )
    parser.add_argument("--max_images", type=positive, help="caption at most this many images")
    parser.add_argument(
        "--samples",
        type=int,
        default=DEFAULT_SAMPLES,
        metavar="N",
        help="captions that are sampled for each image, for `caption --confidence samples`; default: "
        f"{DEFAULT_SAMPLES}, 0: none",
    )
    add_strict_argument(parser)
    add_model_arguments(parser)


def check_samples(samples: int) -> None:
    """Check the number of sampled captions.

    Raises:
        ValueError: it is out of range.
    """
    if not 0 <= samples <= 100:
        raise ValueError(f"`--samples` is {samples}, expected 0 to 100.")


def run(args: argparse.Namespace) -> int:
    """Caption, calibrate and store; with `--strict`, return 1 if images are unreadable."""
    check_samples(args.samples)
    options = data_options_of(args)
    check_path("data_dir", args.data_dir, folder=True)
    check_model_and_device(args.model, args.device)
    args.weights = None

    from hf_captioners.captioning.calibrating import calibrate, folder_of, rows_of, store
    from hf_captioners.captioning.data_set import load_split
    from hf_captioners.data.readable import unusable_images
    from hf_captioners.data.report import DataReport
    from hf_captioners.hub.cards import write_generated_card
    from hf_captioners.output_files import require_writable_folder

    args.model = [args.model]
    choose_typed_backend(args)
    check_supported(args)
    captioning = generation_options(args)
    problems = DataReport()
    rows = rows_of(load_split(args.data, args.data_dir, args.split, options, problems), args.rows)
    if args.max_images is not None:
        rows = rows.select(range(min(args.max_images, len(rows))))
    pipeline = load_packed_model(args)
    folder = folder_of(pipeline)
    require_writable_folder(folder)
    data: dict[str, Any] = {"name": Path(args.data).resolve().name, "split": args.split, "rows": args.rows}
    calibration = calibrate(pipeline, rows, data, args.samples, args.batch_size, **captioning)
    print(table(calibration))
    for path in store(calibration, folder, write_generated_card):
        print(f"Wrote {path}.", file=sys.stderr)
    return report_left_out(unusable_images(problems), args.strict)


def table(calibration: Any) -> str:
    """Return the cross-validated measures as lines of text."""
    data, report = calibration.data, calibration.report
    first = next(iter(report.values()))
    lines = [
        f"{data['images']:,} images, {data['words']:,} content words, of which {first['right_words']:.3f} are in a "
        f"reference; captions with right words only: {first['right_captions']:.3f}",
        "by cross-validation, with 95 % intervals:",
    ]
    for kind, figures in report.items():
        lines.append(f"{kind.replace('_', ' ')}:")
        for name, measures in figures.items():
            if isinstance(measures, dict):
                low, high = measures["interval"]
                lines.append(f"  {name.replace('_', ' '):<28}{measures['value']:7.3f}  ({low:.3f} to {high:.3f})")
    return "\n".join(lines)
