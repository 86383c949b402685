"""`hf-captioners convert`: convert an authors' checkpoint into a captioner of this library."""

import argparse

from hf_captioners.names import read_named_values

from .paths import check_path

NAME = "convert"
HELP = "convert an author's checkpoint into a captioner that loads anywhere"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("architecture", help="architecture, e.g. visualgpt")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="file of the authors' program; no code in it is run")
    parser.add_argument(
        "--vocab",
        metavar="FILE",
        help="vocabulary: a word map (.json), a pickled dictionary (.pkl) or one word per line (.txt); for VisualGPT "
        "the name or directory of GPT-2's tokenizer. Without it no processor is written",
    )
    parser.add_argument("--output", metavar="DIR", required=True, help="new directory of the captioner")
    parser.add_argument(
        "--set",
        dest="settings",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="values that the file does not contain, e.g. n_head=12 or srau_threshold=0.2",
    )
    parser.add_argument("--report", metavar="FILE", help="write the differences from the checkpoint to this JSON file")
    parser.add_argument(
        "--expected",
        metavar="FILE",
        help="for the report: a .safetensors file of the authors' program with inputs of forward(), `logprobs` "
        "[B, T, V] for them, and optionally `compared` [B, T], True where a position counts",
    )


def run(args: argparse.Namespace) -> int:
    """Convert the checkpoint and print a summary."""
    check_path("CHECKPOINT", args.checkpoint)
    check_path("expected", args.expected)
    settings = read_named_values(args.settings, "settings")

    from hf_captioners.hub.convert.converting import convert_checkpoint

    conversion = convert_checkpoint(
        args.architecture,
        args.checkpoint,
        args.output,
        vocabulary=args.vocab,
        settings=settings,
        report=args.report,
        expected=args.expected,
    )
    released = conversion.released
    print(f"Wrote {len(released.weights)} weights of {args.checkpoint} to {args.output}.")
    if released.unused:
        print(f"Left out, because no forward pass reads them: {len(released.unused)} ({summary(released.unused)}).")
    if conversion.processor is None:
        print("No processor was written: pass --vocab to get captions as text.")
    if conversion.report is not None:
        compared = {name: part for name, part in conversion.report.items() if "largest_difference" in part}
        print(
            f"Largest differences, see {args.report}: "
            + ", ".join(f"{name} {part['largest_difference']:.2g}" for name, part in compared.items())
        )
    return 0


def summary(keys: list[str]) -> str:
    """Return each pattern of state dict keys once, with indices replaced by `*`."""
    forms = {".".join("*" if part.isdigit() else part for part in key.split(".")) for key in keys}
    return ", ".join(sorted(forms))
