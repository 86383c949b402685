"""`hf-captioners download-images`: download the images of Conceptual Captions."""

import argparse
import sys
from pathlib import Path

from .paths import check_path

NAME = "download-images"
HELP = "download the images of a split of Conceptual Captions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of data, limits and output."""
    parser.add_argument("--data_dir", required=True, help="folder of the files of captions and addresses")
    parser.add_argument("--split", required=True, choices=("train", "validation"), help="the split")
    parser.add_argument("--output", help="folder of the images; default: the split's folder in --data_dir")
    parser.add_argument("--workers", type=int, default=32, help="images at the same time; default: 32")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds per image and try; default: 10")
    parser.add_argument("--retries", type=int, default=1, help="further tries after a timeout; default: 1")
    parser.add_argument("--max_bytes", type=int, default=16 * 2**20, help="largest image; default: 16 MiB")
    parser.add_argument("--retry_failed", action="store_true", help="retry images that failed in an earlier call")
    parser.add_argument(
        "--allow_skipped",
        action="store_true",
        help="exit with status 0 although images could not be downloaded; default: 1",
    )


def run(args: argparse.Namespace) -> int:
    """Download all missing images; return 1 if some cannot be downloaded."""
    check_path("data_dir", args.data_dir, folder=True)

    from hf_captioners.data.conceptual_captions import images_to_fetch
    from hf_captioners.data.image_download import LOG_FILE, SHOWN_FAILURES, DownloadSettings, download_images
    from hf_captioners.data.report import DataReport
    from hf_captioners.output_files import printable, require_writable_folder

    folder = Path(args.output or Path(args.data_dir, args.split))
    settings = DownloadSettings(
        workers=args.workers, timeout=args.timeout, retries=args.retries, max_bytes=args.max_bytes
    )
    malformed = DataReport()
    images = images_to_fetch(args.data_dir, args.split, report=malformed)
    require_writable_folder(folder)
    report = download_images(images, folder, settings, args.retry_failed)
    for problem in malformed.problems[:SHOWN_FAILURES]:
        print(f"not downloaded: {printable(str(problem))}", file=sys.stderr)
    for name, outcome in report.failed.items():
        print(f"not downloaded: {printable(name)}: {outcome}", file=sys.stderr)
    failures = report.failures + len(malformed.problems)
    if failures:
        print(
            f"{failures:,} image(s) could not be downloaded; {folder / LOG_FILE} has the outcome of each address.",
            file=sys.stderr,
        )
    print(report.summary())
    return 1 if failures and not args.allow_skipped else 0
