"""`hf-captioners demo`: pretraining, fine-tuning and evaluation on drawn images, with a results page."""

import argparse
from pathlib import Path

NAME = "demo"
HELP = "train on drawn images, offline, and write a page of captions (about 5 minutes on 2 cores)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of output and seed."""
    parser.add_argument("--output_dir", default="demo", help="folder for the page and the models (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="base seed of images, weights and order (default: 0)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="about a minute: too short for a meaningful result, exit status always 0",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; return 1 if one of its claims does not hold."""
    from hf_captioners.demo.running import run_demo
    from hf_captioners.output_files import require_writable_folder

    folder = Path(args.output_dir)
    require_writable_folder(folder)
    claims = run_demo(folder, args.seed, args.quick)
    for text, holds in claims:
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {text}")
    return 0 if args.quick or all(holds for _, holds in claims) else 1
