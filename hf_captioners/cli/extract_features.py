"""`hf-captioners extract-features`: compute the regions of all images of a data set once, into feature stores.

Several processes (`accelerate launch -m hf_captioners.cli extract-features ...`) share the images of a split, and
each writes shards of its own: nothing travels between them, and each goes on by itself after a kill.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.named_values import read_named_values

if TYPE_CHECKING:
    from hf_captioners.features.extraction import RegionExtractor

NAME = "extract-features"
HELP = "compute region features of a data set with a vision model or a detector, to train on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Data, model, and how features are computed and kept."""
    parser.add_argument("--dataset", default="caption_folder", help="name of the data set's form")
    parser.add_argument("--data_dir", "--data-dir", help="folder of the data set")
    parser.add_argument(
        "--data_options", "--data-options", nargs="*", default=[], metavar="NAME=VALUE", help="options of the data set"
    )
    parser.add_argument("--split", nargs="*", metavar="NAME", help="splits; default: all")
    parser.add_argument("--output", required=True, help="folder to write: one feature store for each split")
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--vision_model", "--vision-model", help="the grid of a vision model (name, directory, timm:ARCHITECTURE)"
    )
    models.add_argument("--detector", help="the queries of a detector of the DETR family (name or directory)")
    grid = parser.add_argument_group("with --vision_model, as in training")
    grid.add_argument("--vision_feature_layer", "--vision-feature-layer", type=int, default=-1, metavar="N")
    grid.add_argument("--vision_grid_size", "--vision-grid-size", type=int, metavar="N", help="pool to N x N cells")
    grid.add_argument("--image_size", "--image-size", type=int, metavar="PIXELS", help="middle square of this side")
    queries = parser.add_argument_group("with --detector")
    queries.add_argument("--top_k", "--top-k", type=int, default=50, metavar="N", help="keep the N best (default: 50)")
    queries.add_argument(
        "--score_threshold", "--score-threshold", type=float, default=0.0, help="keep scores from here on"
    )
    parser.add_argument("--kind", choices=("float32", "float16", "int8"), default="float16", help="number format")
    parser.add_argument("--batch_size", "--batch-size", type=int, default=8, help="rows at a time, each process")
    parser.add_argument("--workers", type=int, default=0, help="processes that read images, each process")
    parser.add_argument("--cpu", action="store_true", help="leave accelerators alone")


def run(args: argparse.Namespace) -> int:
    """Compute what is missing."""
    from accelerate import PartialState

    from hf_captioners.data import load_captions
    from hf_captioners.output_files import require_writable_folder

    if args.batch_size < 1:
        raise ValueError(f"`--batch_size` is {args.batch_size}, expected at least 1.")
    require_writable_folder(args.output)
    state = PartialState(cpu=args.cpu)
    with state.main_process_first():  # one process builds the data set
        splits = load_captions(
            args.dataset, data_dir=args.data_dir, **read_named_values(args.data_options, "--data_options")
        )
    unknown = sorted(set(args.split or ()) - set(splits))
    if unknown:
        raise ValueError(f"The data set has no split {', '.join(unknown)}; there are {', '.join(splits)}.")
    extractor = _extractor(args, state.device)
    for split in args.split or splits:
        said = _extract_split(args, state, extractor, split, _once_each(splits[split]))
        if state.is_main_process:
            print(said)
    return 0


def _extractor(args: argparse.Namespace, device: Any) -> "RegionExtractor":
    from hf_captioners.features.extraction import DetectorExtractor, GridExtractor

    if args.detector is not None:
        detector = DetectorExtractor.from_detector(args.detector, args.top_k, args.score_threshold)
        detector.model.to(device)
        return detector
    grid = GridExtractor.from_vision_model(
        args.vision_model, args.vision_feature_layer, args.vision_grid_size, args.image_size
    )
    grid.backbone.to(device)
    return grid


def _once_each(rows: Any) -> Any:
    """One row for each image, where a data set has several (a row for each caption)."""
    first: dict[str, int] = {}
    for row, image_id in enumerate(rows["image_id"]):
        first.setdefault(image_id, row)
    return rows if len(first) == len(rows) else rows.select(first.values())


def _extract_split(args: argparse.Namespace, state: Any, extractor: "RegionExtractor", split: str, rows: Any) -> str:
    """Extract, and say what this process has done."""
    from hf_captioners.features.feature_store_writer import FeatureStoreWriter
    from hf_captioners.features.regions_column import store_regions

    own = rows.shard(state.num_processes, state.process_index)
    folder, description = Path(args.output, split), extractor.description(args.kind)
    with state.main_process_first():  # one process makes the store
        writer = FeatureStoreWriter(folder, description, state.process_index)
    with writer:
        computed = store_regions(own, extractor, writer, args.batch_size, extractor.prepare, args.workers)
    state.wait_for_everyone()
    mine = "" if state.num_processes == 1 else " by this process"
    error = f"; largest rounding error {writer.largest_error:.2g}" if computed and args.kind != "float32" else ""
    return f"{split}: {computed:,} of {len(rows):,} images computed{mine}, in {folder}{error}"
