"""`hf-captioners trim-vocabulary`: reduce a captioner's vocabulary to the tokens that captions need."""

import argparse
from pathlib import Path

from hf_captioners.output_files import require_new_folder

from .paths import check_path, check_source

NAME = "trim-vocabulary"
HELP = "make a smaller captioner that has only the tokens of the given captions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of captioner, captions and output."""
    parser.add_argument("model", metavar="MODEL", help="directory or name of a captioner, or `default`")
    parser.add_argument(
        "--captions",
        nargs="+",
        metavar="FILE",
        required=True,
        help="captions whose tokens are kept, usually those of the training images: COCO .json, .jsonl, .csv, .txt, "
        "or a folder with metadata.jsonl",
    )
    parser.add_argument("--output", metavar="DIR", required=True, help="new directory of the smaller captioner")


def run(args: argparse.Namespace) -> int:
    """Write the smaller captioner and print the new sizes."""
    check_source("MODEL", args.model)
    for path in args.captions:
        check_path("captions", path)
    require_new_folder(Path(args.output))

    from hf_captioners.hub.trimming import write_trimmed_captioner

    written = write_trimmed_captioner(args.model, args.captions, args.output)
    tokens, parameters = written.tokens, written.parameters
    print(
        f"Wrote {written.folder}: {tokens[1]:,} of {tokens[0]:,} tokens, those of {written.captions:,} captions, and "
        f"{parameters[1]:,} of {parameters[0]:,} parameters."
    )
    print("Measure it: hf-captioners evaluate " + f"{written.folder} DATA")
    return 0
