"""`hf-captioners extract-features`: compute and store the region features of a data set.

Several processes (`accelerate launch -m hf_captioners.cli extract-features ...`) share the images of a split. Each
writes shards of its own and resumes by itself after an interruption.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .caption import add_image_arguments, set_pixel_limit
from .parsing import add_data_options_argument, add_links_argument, data_options_of, positive
from .paths import check_path, check_source

if TYPE_CHECKING:
    from hf_captioners.data.report import DataReport
    from hf_captioners.features.extraction import RegionExtractor

NAME = "extract-features"
HELP = "compute region features of a data set with a vision model or a detector, to train on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of data, model and output."""
    parser.add_argument("--dataset", default="caption_folder", help="name of the data set; default: caption_folder")
    parser.add_argument("--data_dir", help="folder of the data set")
    add_data_options_argument(parser)
    add_links_argument(parser)
    parser.add_argument("--split", nargs="*", metavar="NAME", help="splits to extract; default: all")
    parser.add_argument("--output", required=True, help="folder to write, with one feature store per split")
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument("--vision_model", help="grid features of a vision model (name, directory, timm:ARCHITECTURE)")
    models.add_argument("--detector", help="queries of a detector of the DETR family (name or directory)")
    grid = parser.add_argument_group("with both, as in training")
    grid.add_argument(
        "--vision_feature_layer",
        type=int,
        default=-1,
        metavar="N",
        help="layer of --vision_model; default: the last",
    )
    grid.add_argument(
        "--vision_grid_size",
        type=int,
        nargs="+",
        metavar="N",
        help="pool to N x N cells, with a detector beside its queries; several values give several scales",
    )
    grid.add_argument(
        "--image_size",
        type=int,
        metavar="PIXELS",
        help="side of the centre crop, of a detector of the whole image",
    )
    queries = parser.add_argument_group("with --detector")
    queries.add_argument(
        "--top_k",
        type=int,
        metavar="N",
        help="most detections per image; default: 50, or all if the detector has fewer",
    )
    queries.add_argument("--min_regions", type=int, default=1, metavar="N", help="least detections; default: 1")
    queries.add_argument(
        "--score_threshold",
        type=float,
        default=0.0,
        help="lowest score that is kept beyond --min_regions; default: 0",
    )
    queries.add_argument(
        "--nms_threshold",
        type=float,
        metavar="IOU",
        help="leave out detections that overlap a better one by more than this; default: none",
    )
    parser.add_argument(
        "--kind", choices=("float32", "float16", "int8"), default="float16", help="data type; default: float16"
    )
    parser.add_argument("--batch_size", type=positive, default=8, help="rows per batch, for each process; default: 8")
    parser.add_argument("--workers", type=int, default=0, help="processes that read images, for each process")
    add_image_arguments(parser)
    parser.add_argument("--use_cpu", action="store_true", help="compute on the CPU")


def run(args: argparse.Namespace) -> int:
    """Compute all missing features; return 1 if some images are unreadable."""
    options = data_options_of(args)
    check_path("data_dir", args.data_dir, folder=args.dataset != "caption_folder")
    for name in ("detector", "vision_model"):
        if getattr(args, name) is not None:
            check_source(name, getattr(args, name))

    from accelerate import PartialState

    from hf_captioners.data import load_captions
    from hf_captioners.data.report import DataReport
    from hf_captioners.features.data_set import extract_split, unique_images
    from hf_captioners.output_files import require_writable_folder

    require_writable_folder(args.output)
    set_pixel_limit(args.max_image_pixels)
    state = PartialState(cpu=args.use_cpu)
    reports = {split: DataReport() for split in args.split or (None,)}
    extractor = _extractor(args, state.device)
    with state.main_process_first():  # one process prepares the data set
        splits: Any = {
            split: load_captions(args.dataset, args.data_dir, split, report=report, **options)
            for split, report in reports.items()
        }
    splits = splits.get(None, splits)
    unread = dict.fromkeys(row for report in reports.values() for row in unread_images(report))
    skipped = list(unread) if state.is_main_process else []
    for split in splits:
        rows, folder, faults = unique_images(splits[split]), Path(args.output, split), dict[str, str]()
        computed, error = extract_split(
            rows, extractor, folder, args.kind, args.batch_size, args.workers, state, skipped=faults
        )
        skipped += faults.values()
        if state.is_main_process:
            by = "" if state.num_processes == 1 else " by this process"
            rounding = f"; largest rounding error {error:.2g}" if computed and args.kind != "float32" else ""
            print(f"{split}: {computed:,} of {len(rows):,} images computed{by}, in {folder}{rounding}")
    return _report(skipped, args.allow_skipped)


def unread_images(report: "DataReport") -> list[str]:
    """Return the rows that were dropped because of missing or unreadable images."""
    from hf_captioners.data.report import ProblemKind

    kinds = (ProblemKind.MISSING_IMAGE, ProblemKind.UNREADABLE_IMAGE, ProblemKind.MALFORMED_ROW)
    return [str(problem) for problem in report.problems if problem.dropped and problem.kind in kinds]


def _report(skipped: list[str], allow_skipped: bool) -> int:
    """Print the images without features; return the exit status."""
    from hf_captioners.output_files import printable

    for reason in skipped:
        print(f"not extracted: {printable(reason)}", file=sys.stderr)
    if skipped:
        print(f"{len(skipped):,} image(s) could not be read.", file=sys.stderr)
    return 1 if skipped and not allow_skipped else 0


def _extractor(args: argparse.Namespace, device: Any) -> "RegionExtractor":
    from hf_captioners.features.extraction import DetectorExtractor, GridExtractor

    scales = args.vision_grid_size
    scales = scales[0] if scales is not None and len(scales) == 1 else scales
    if args.detector is not None:
        detector = DetectorExtractor.from_detector(
            args.detector,
            scales,
            args.image_size,
            max_regions=args.top_k,
            min_regions=args.min_regions,
            score_threshold=args.score_threshold,
            nms_threshold=args.nms_threshold,
        )
        detector.backbone.to(device)
        return detector
    grid = GridExtractor.from_vision_model(args.vision_model, args.vision_feature_layer, scales, args.image_size)
    grid.backbone.to(device)
    grid.fold_batch_norms()
    return grid
