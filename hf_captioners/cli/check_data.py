"""`hf-captioners check-data DIR`: check a data set and report bad rows."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

from .data_messages import with_option_flags
from .parsing import add_data_options_argument, add_links_argument, data_options_of
from .paths import check_path

if TYPE_CHECKING:
    from hf_captioners.data.report import Problem

NAME = "check-data"
HELP = "check a folder of captioned images or a named data set and report wrong rows"
NOTHING_WRONG, ROWS_ARE_WRONG, UNREADABLE = 0, 1, 2
UNCAPTIONED = "image without caption"  # no fault: a folder that is not reviewed as a whole has such images


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("data_dir", metavar="DIR", help="folder of the data set; or a table, a shard")
    parser.add_argument(
        "--dataset", default="caption_folder", metavar="NAME", help="name of the data set; default: caption_folder"
    )
    add_data_options_argument(parser)
    add_links_argument(parser)
    parser.add_argument(
        "--show", type=int, default=50, metavar="N", help="number of problems to print; default: 50, 0: all"
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")


def severity(problem: Problem) -> int:
    """Return the sort key of a problem: errors that stop loading first, then dropped rows, then warnings."""
    order = (
        *("unreadable table", "mixed types", "malformed row", "missing image", "unreadable image"),
        *("missing caption", "image in two splits"),
    )
    return order.index(problem.kind) if problem.kind in order else len(order)


def run(args: argparse.Namespace) -> int:
    """Check a data set and print a report.

    Returns:
        0 if there are no problems, 1 if rows are wrong, 2 if the data set cannot be read.
    """
    from hf_captioners.output_files import printable

    try:
        options = data_options_of(args)
        check_path("DIR", args.data_dir, folder=args.dataset != "caption_folder")

        from hf_captioners.data.checking import check_dataset

        check = check_dataset(args.dataset, args.data_dir, **options)
    except (ValueError, OSError) as error:
        print(with_option_flags(str(error), {"dataset": "--dataset"}), file=sys.stderr)
        return UNREADABLE
    report = check.report
    faults = [problem for problem in report.problems if problem.kind != UNCAPTIONED]
    if args.json:
        print(json.dumps(json.loads(report.to_json()), indent=2))
    else:
        shown = sorted(report.problems if args.show == 0 else faults, key=severity)[: args.show or None]
        for problem in shown:
            print(printable(with_option_flags(str(problem))))
        if len(faults) > len(shown):
            print(f"... and {len(faults) - len(shown):,} more (--show 0 shows all)")
        print(with_option_flags("\n".join(check.lines())))
        if uncaptioned := [problem for problem in report.problems if problem.kind == UNCAPTIONED]:
            first = printable(str(uncaptioned[0].file))
            print(f"{len(uncaptioned):,} image(s) have no captions yet, such as {first} (--show 0 lists them).")
        counts = ", ".join(f"{count:,} x {kind}" for kind, count in Counter(one.kind.value for one in faults).items())
        print(f"Wrong: {counts}." if counts else f"Nothing {'else ' if uncaptioned else ''}is wrong.")
    return ROWS_ARE_WRONG if faults else NOTHING_WRONG
