"""Caption text files (`--sidecar`) on the command line: arguments, confirmation and reports."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_captioners.captioning.sidecar_plan import SidecarPlan
    from hf_captioners.captioning.sidecars import SidecarFiles

OF_SIDECARS = ("overwrite_generated", "skip_existing", "append", "prepend", "yes")  # flags that need `--sidecar`
SHOWN = 10  # text files that are named one by one


def add_sidecar_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that tell what happens to an image that has a text file already."""
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace outputs that exist")
    for name, text in (
        ("overwrite_generated", "replace only text files that a captioner wrote and nobody changed (--sidecar)"),
        ("skip_existing", "leave out images that have a text file (--sidecar)"),
        ("append", "add the captions at the end of text files that exist (--sidecar)"),
        ("prepend", "add the captions at the beginning of text files that exist (--sidecar)"),
    ):
        existing.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--yes",
        action="store_true",
        help="replace text files that people wrote or changed without asking (--overwrite)",
    )


def confirmed_plan(args: argparse.Namespace, images: list[str], mode: str, typed: list[Path]) -> "SidecarPlan":
    """Return the plan of images to caption, after the user agrees to replace human-written texts."""
    from hf_captioners.captioning.sidecar_plan import plan_sidecars

    plan = plan_sidecars(images, args.sidecar, mode, typed)
    confirm_replacement(plan, args.yes)
    return plan


def mode_of(args: argparse.Namespace) -> str:
    """Return the mode for existing text files, see `SidecarFiles`.

    Raises:
        ValueError: `--yes` was typed without `--overwrite`.
    """
    from hf_captioners.captioning import sidecars

    if args.yes and not args.overwrite:
        raise ValueError("`--yes` answers the question of `--overwrite`: give both.")
    return next((name for name in sidecars.MODES if getattr(args, name)), sidecars.REFUSE)


def is_resumed(args: argparse.Namespace, folder: Path, mode: str) -> bool:
    """Return whether an interrupted job is to be resumed.

    Raises:
        ValueError: there is none, and a job that had finished would add its captions again.
    """
    from hf_captioners.captioning import sidecars

    resumed = sidecars.is_interrupted(folder, args.sidecar, args.shard) and args.resume
    if args.resume and not resumed and mode in sidecars.ADDING:
        raise ValueError(
            f"`--resume`: there is no interrupted run in {folder}. It is finished, or it was never begun; leave "
            "--resume out to begin one."
        )
    return bool(resumed)


def confirm_replacement(plan: "SidecarPlan", agreed: bool) -> None:
    """List human-written text files to be replaced, and ask for confirmation in a terminal.

    Raises:
        ValueError: there are some, nothing was agreed, and there is no terminal or the answer is no.
    """
    from hf_captioners.output_files import printable

    if agreed or not plan.changed:
        return
    for path in plan.changed[:SHOWN]:
        print(f"written or changed by somebody: {printable(str(path))}", file=sys.stderr)
    if len(plan.changed) > SHOWN:
        print(f"... and {len(plan.changed) - SHOWN:,} more", file=sys.stderr)
    count = f"{len(plan.changed):,} text file(s) have words that no captioner wrote"
    if not sys.stdin.isatty():
        raise ValueError(f"{count}. Pass `--overwrite_generated` to keep them, or `--yes` to replace them.")
    print(f"{count}. Replace them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ValueError("Nothing was replaced. Pass `--overwrite_generated` to keep the words of people.")


def left_out(plan: "SidecarPlan", mode: str) -> str:
    """Return sentences about skipped images."""
    from hf_captioners.captioning.sidecars import SKIP

    kept = f" {len(plan.kept):,} image(s) were reviewed already, see metadata.jsonl." if plan.kept else ""
    if not plan.existing:
        return kept
    reason = "had one." if mode == SKIP else "text file(s) were written or changed by somebody, and are kept."
    return f"{kept} {len(plan.existing):,} {reason}"


def written(files: "SidecarFiles", images: int, folder: Path) -> str:
    """Return a sentence about the progress of an interrupted job."""
    return f"{len(files.done):,} of {images:,} images are done; their text files are in {folder}."
