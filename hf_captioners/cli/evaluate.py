"""`hf-captioners evaluate`: caption a data set with a model and score the captions, in one go."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .score import add_metric_arguments, check_arguments, score_and_report

if TYPE_CHECKING:
    from hf_captioners.metrics.caption_files import MatchedCaptions

NAME = "evaluate"
HELP = "caption a data set and score the captions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Model, data, decoding, metrics."""
    parser.add_argument("model", help="captioner: name or directory")
    parser.add_argument("data", help="a data set of `load_captions`, or a folder of images with captions")
    parser.add_argument("--data_dir", "--data-dir", help="folder of a named data set")
    parser.add_argument(
        "--data_options", "--data-options", nargs="+", default=[], help="options of the data set: name=value ..."
    )
    parser.add_argument("--split", default="test", help="default: test")
    parser.add_argument("--max_images", "--max-images", type=int, help="only the first so many")
    parser.add_argument("--batch_size", "--batch-size", type=int, default=16, help="images at a time")
    parser.add_argument("--num_beams", "--num-beams", type=int, help="default: the model's own setting")
    parser.add_argument("--max_new_tokens", "--max-new-tokens", type=int, help="default: the model's own setting")
    parser.add_argument("--device", help="for instance cpu or cuda:0; default: an accelerator if there is one")
    parser.add_argument("--dtype", default="auto", help="number format of the weights, for instance bfloat16")
    parser.add_argument(
        "--trust_remote_code", "--trust-remote-code", action="store_true", help="run code that the model brings along"
    )
    add_metric_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Caption and score; 1 if the data set has images without references."""
    if args.batch_size < 1:
        raise ValueError(f"`--batch_size` is {args.batch_size}, expected at least 1.")
    check_arguments(args)
    return score_and_report(_captioned(args), args)


def _captioned(args: argparse.Namespace) -> "MatchedCaptions":
    from tqdm.auto import tqdm

    from hf_captioners.data.schema import IMAGE, image_column
    from hf_captioners.metrics.caption_files import MatchedCaptions

    from .caption import load_pipeline

    rows = _rows(args)
    captioner = load_pipeline(args)
    options = {name: getattr(args, name) for name in ("num_beams", "max_new_tokens") if getattr(args, name)}
    matched = MatchedCaptions([], [], [], [], [])
    with tqdm(total=len(rows), desc="captions", unit="image", disable=None) as progress:
        for batch in _batches(rows, args.batch_size):
            images = [row[image_column(row) or IMAGE] for row in batch]
            results = captioner(images, batch_size=len(batch), **options)
            for row, best in zip(batch, results, strict=True):
                if row["captions"]:
                    matched.images.append(row["image_id"])
                    matched.predictions.append(best[0]["generated_text"])
                    matched.references.append(list(row["captions"]))
                else:
                    matched.extra.append(row["image_id"])
            progress.update(len(batch))
    if not matched.images:
        raise ValueError(f"The split {args.split!r} of {args.data} has no references to score against.")
    return matched


def _rows(args: argparse.Namespace) -> Any:
    from hf_captioners.data import load_captions
    from hf_captioners.named_values import read_named_values

    options = read_named_values(args.data_options, "--data_options")
    is_folder = args.data_dir is None and Path(args.data).is_dir()
    name, folder = ("caption_folder", args.data) if is_folder else (args.data, args.data_dir)
    rows = load_captions(name, data_dir=folder, split=args.split, **options)
    if args.max_images is not None and args.max_images < len(rows):
        print(f"only the first {args.max_images:,} of {len(rows):,} images", file=sys.stderr)
        rows = rows.select(range(args.max_images))
    return rows


def _batches(rows: Any, size: int) -> Iterator[list[dict[str, Any]]]:
    for first in range(0, len(rows), size):
        yield [rows[place] for place in range(first, min(first + size, len(rows)))]
