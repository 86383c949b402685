"""`hf-captioners review`: local page for correcting and keeping the captions of a folder."""

import argparse

from .data_messages import with_option_flags
from .parsing import add_data_options_argument, add_links_argument, data_options_of
from .paths import check_path

NAME = "review"
HELP = "look at the captions of a folder, correct and keep them, on a local page"
EXAMPLES = """examples:
  hf-captioners caption photos --sidecar
  hf-captioners review photos
  hf-captioners train --model my_captioner --train_dir photos"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the folder and the page."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="folder of images; captions are kept in its metadata.jsonl, into which those of another table, or of "
        "COCO's folder, are copied at first",
    )
    parser.add_argument(
        "--unpack",
        metavar="FOLDER",
        help="write the images of tar or Parquet shards or a saved data set here first",
    )
    add_data_options_argument(parser, "options of the table that is copied, for example encoding=cp1252")
    parser.add_argument(
        "--captions", metavar="FILE", help="captions to begin with, as `hf-captioners caption` writes them"
    )
    parser.add_argument(
        "--sidecar", default="txt", metavar="ENDING", help="ending of text files beside the images (default: txt)"
    )
    parser.add_argument(
        "--no_sidecars", action="store_true", help="leave the text files beside the images as a captioner wrote them"
    )
    add_links_argument(parser)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")


def run(args: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    if not 0 <= args.port < 2**16:
        raise ValueError(f"`--port` is {args.port}, expected a number from 0 to 65535.")
    options = data_options_of(args)
    check_path("DIR", args.folder)

    from hf_captioners.captioning.sidecars import checked_ending
    from hf_captioners.review.conversion import convert, unpack
    from hf_captioners.review.drafts import Drafts
    from hf_captioners.review.server import serve
    from hf_captioners.review.table import ReviewTable
    from hf_captioners.review.text_files import TextFiles

    if args.unpack is not None:
        print(unpack(args.folder, args.unpack, options))
        args.folder, options = args.unpack, {}
    args.folder, copied = convert(args.folder, options)
    if copied is not None:
        print(with_option_flags(copied))
    table = ReviewTable(args.folder, args.captions, checked_ending(args.sidecar), args.follow_links)
    print(f"{args.folder}: {len(table.images):,} images, {len(table.rows()):,} with kept captions.")
    count = 0 if args.no_sidecars else TextFiles(table).count()
    if count:
        print(f"Captions that you keep also go to text files of a captioner: {count:,} (--no_sidecars: none).")
    serve(table, args.port, text_files=not args.no_sidecars)
    stored, drafts = table.stored(), Drafts(table.folder).by_name
    kept, rejected = (sum(getattr(row, name) for row in stored.values()) for name in ("kept", "rejected"))
    more = f" {rejected:,} are rejected." if rejected else ""
    more += f" {len(drafts):,} drafts are not kept yet; they are there when you start again." if drafts else ""
    print(f"{kept:,} of {len(table.images):,} images have captions in {table.path}.{more}")
    if kept:
        print(f"Train on them: hf-captioners train --model CAPTIONER --train_dir {args.folder}")
    return 0
