"""`hf-captioners export`: export a captioner to a folder that needs no torch."""

import argparse

from .paths import check_source

NAME = "export"
HELP = "export a captioner to ONNX, which captions without torch and transformers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help="directory or name of a captioner, or `default`")
    parser.add_argument("--output_dir", metavar="DIR", required=True, help="new folder of the exported captioner")
    parser.add_argument(
        "--weights",
        default="float32",
        help="float32, or int8: matrices as 8-bit integers, which are smaller and faster",
    )
    parser.add_argument("--opset", type=int, default=18, help="version of the operators of ONNX; default: 18")


def run(args: argparse.Namespace) -> int:
    """Export the captioner, compare it with the original, and print the written files."""
    check_source("MODEL", args.model)

    from hf_captioners.onnx import export_captioner

    exported = export_captioner(args.model, args.output_dir, opset=args.opset, weights=args.weights)
    print(
        f"Wrote {exported.folder} ({exported.size / 1e6:,.1f} MB). Its logits differ by at most "
        f"{exported.largest_difference:.1e} from those of the captioner."
    )
    print(f"Try it: python {exported.folder}/onnx_captioner.py photo.jpg")
    return 0
