"""`hf-captioners convert`: convert a checkpoint of released code to a captioner of this library."""

import argparse

from hf_captioners.named_values import read_named_values

NAME = "convert"
HELP = "convert an authors' checkpoint to a captioner of this library"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of checkpoint and output."""
    parser.add_argument("architecture", help="architecture of the captioner, for example visualgpt")
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="file of the authors' code; nothing in it is executed"
    )
    parser.add_argument(
        "--vocab",
        metavar="FILE",
        help="the vocabulary: a word map (.json), a pickled dictionary (.pkl) or words, one per line (.txt); for "
        "VisualGPT the name or directory of the GPT-2 tokenizer. Without it no processor is written",
    )
    parser.add_argument("--output", metavar="DIR", required=True, help="new directory of the captioner")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="settings that the file does not contain, for example n_head=12 srau_threshold=0.2",
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write the comparison with the original checkpoint to this JSON file"
    )
    parser.add_argument(
        "--expected",
        metavar="FILE",
        help="for the report: a .safetensors file of the authors' code with inputs of forward(), their `logprobs` "
        "[B, T, V], and optionally `compared` [B, T], True where a position is compared",
    )


def run(args: argparse.Namespace) -> int:
    """Convert, save, and print a summary."""
    from pathlib import Path

    from hf_captioners.hub.convert.converting import build_captioner, read_released, require_new, save_captioner
    from hf_captioners.hub.convert.vocabulary import make_processor
    from hf_captioners.output_files import as_json, require_writable_folder, write_text

    if args.expected and not args.report:
        raise ValueError("`--expected` is part of the report: pass --report FILE too.")
    if args.expected and not Path(args.expected).is_file():
        raise FileNotFoundError(f"There is no file {args.expected}.")
    if args.report:
        require_writable_folder(Path(args.report).parent)
    require_new(Path(args.output))
    released = read_released(args.architecture, args.checkpoint, read_named_values(args.set, "--set"))
    model = build_captioner(released, args.checkpoint)
    processor = None if args.vocab is None else make_processor(args.architecture, released, args.vocab)
    save_captioner(model, processor, args.checkpoint, args.output)
    print(f"Wrote {len(released.weights)} weights and the configuration of {args.checkpoint} to {args.output}.")
    if released.unused:
        print(f"Left out because no forward pass uses them: {len(released.unused)} ({summary(released.unused)}).")
    if processor is None:
        print("No processor was written: pass --vocab to write one.")
    if args.report:
        from hf_captioners.hub.convert.parity_report import parity_report

        report = parity_report(released, model, args.checkpoint, args.output, args.expected)
        write_text(Path(args.report), as_json(report) + "\n")
        compared = {name: part for name, part in report.items() if "largest_difference" in part}
        print(
            f"Largest differences, see {args.report}: "
            + ", ".join(f"{name} {part['largest_difference']:.2g}" for name, part in compared.items())
        )
    return 0


def summary(keys: list[str]) -> str:
    """Return the distinct forms of keys, numbers replaced by `*`."""
    forms = {".".join("*" if part.isdigit() else part for part in key.split(".")) for key in keys}
    return ", ".join(sorted(forms))
