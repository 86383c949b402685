"""`hf-captioners caption`: caption an image, a folder or a list of images."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_captioners.captioning.batches import UnreadableImage

NAME = "caption"
HELP = "caption an image, a folder or a list of images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of inputs, model, generation and output."""
    parser.add_argument("inputs", nargs="+", help="images, folders, or .txt lists of paths")
    parser.add_argument(
        "--model",
        required=True,
        action="append",
        help="captioner: name or directory; typed several times, the captioners choose every word together",
    )
    add_weights_argument(parser)
    parser.add_argument(
        "--output", help="file to write: .jsonl, .csv, .txt, .json (COCO results); default: standard output"
    )
    parser.add_argument("--prompt", default="", help="text that every caption begins with")
    parser.add_argument("--shard", help="i/n: only part i of n of the images, for several machines")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that read the next images while the model works; default: all processors but one, at most 8",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    add_image_arguments(parser)
    add_model_arguments(parser)


def add_weights_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument of the weights of an ensemble."""
    parser.add_argument(
        "--weights",
        nargs="+",
        type=float,
        metavar="W",
        help="weights of the captioners of an ensemble; default: equal",
    )


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of images that cannot be read."""
    parser.add_argument(
        "--allow_skipped",
        "--allow-skipped",
        action="store_true",
        help="exit with status 0 although images could not be read; default: 1",
    )
    parser.add_argument(
        "--max_image_pixels",
        "--max-image-pixels",
        type=int,
        metavar="N",
        help="refuse images with more pixels; default: 178,956,970",
    )


def set_pixel_limit(pixels: int | None) -> None:
    """Set Pillow's limit of pixels, if one was typed.

    Raises:
        ValueError: it is below 1.
    """
    if pixels is None:
        return
    if pixels < 1:
        raise ValueError(f"`--max_image_pixels` is {pixels}, expected at least 1.")
    import PIL.Image

    PIL.Image.MAX_IMAGE_PIXELS = (pixels + 1) // 2  # Pillow warns above it, and refuses above twice as many


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of loading a captioner and of generation."""
    parser.add_argument("--batch_size", "--batch-size", type=int, default=16, help="images per batch; default: 16")
    parser.add_argument("--num_beams", "--num-beams", type=int, help="default: generation configuration of the model")
    parser.add_argument(
        "--max_new_tokens", "--max-new-tokens", type=int, help="default: generation configuration of the model"
    )
    parser.add_argument("--device", help="for example cpu or cuda:0; default: an accelerator if there is one")
    parser.add_argument("--dtype", default="auto", help="data type of the weights, for example bfloat16")
    parser.add_argument(
        "--trust_remote_code",
        "--trust-remote-code",
        action="store_true",
        help="run code from the repository of the model",
    )


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the generation settings that were typed."""
    names = ("num_beams", "max_new_tokens", "prompt")
    return {name: value for name in names if (value := getattr(args, name, None))}


def load_model(args: argparse.Namespace) -> Any:
    """Load the pipeline of the model that was typed."""
    from hf_captioners.captioning.batches import load_pipeline, require_batch_size

    require_batch_size(args.batch_size)
    return load_pipeline(args.model, args.device, args.dtype, args.trust_remote_code, args.weights)


def run(args: argparse.Namespace) -> int:
    """Caption all images; 1 if some cannot be read."""
    from hf_captioners.captioning.batches import caption_batches, caption_into_file, job_settings, require_batch_size
    from hf_captioners.captioning.caption_files import CaptionFile, check_coco_ids, require_free_output
    from hf_captioners.captioning.image_list import find_images, shard_of
    from hf_captioners.captioning.read_ahead import workers_for
    from hf_captioners.output_files import quoted_name

    require_batch_size(args.batch_size)
    set_pixel_limit(args.max_image_pixels)
    if args.output is None and (args.resume or args.overwrite):
        raise ValueError("`--resume` and `--overwrite` need `--output`.")
    images = shard_of(find_images(args.inputs), args.shard)
    workers = workers_for(math.ceil(len(images) / args.batch_size), args.workers)
    options = generation_options(args)
    unreadable: list[UnreadableImage] = []
    if args.output is None:
        for batch in caption_batches(load_model(args), images, args.batch_size, workers, **options):
            for record in batch.records:
                print(
                    record["caption"] if len(images) == 1 else f"{quoted_name(record['image'])}\t{record['caption']}"
                )
            unreadable += batch.unreadable
        return report(unreadable, args.allow_skipped)
    output = Path(args.output)
    require_free_output(output, args.resume, args.overwrite)
    if output.suffix.lower() == ".json":
        check_coco_ids(images)
    pipeline = load_model(args)
    with CaptionFile(
        output, job_settings(pipeline, images, args.shard, **options), args.resume, args.overwrite
    ) as file:
        unreadable = caption_into_file(file, pipeline, images, args.batch_size, workers, **options)
    print(f"Wrote {len(images) - len(unreadable):,} captions to {output}.", file=sys.stderr)
    return report(unreadable, args.allow_skipped)


def report(unreadable: "Sequence[UnreadableImage]", allow_skipped: bool = False) -> int:
    """Print images that cannot be read; return the exit status."""
    from hf_captioners.output_files import printable

    for image in unreadable:
        print(f"not captioned: {printable(image.reason)}", file=sys.stderr)
    if unreadable:
        print(f"{len(unreadable):,} image(s) could not be read.", file=sys.stderr)
    return 1 if unreadable and not allow_skipped else 0
