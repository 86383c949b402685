"""`hf-captioners caption`: captions for an image, a folder or a list of images."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NAME = "caption"
HELP = "caption an image, a folder or a list of images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Inputs, model, decoding and output."""
    parser.add_argument("inputs", nargs="+", help="images, folders, or .txt lists of paths")
    parser.add_argument("--model", required=True, help="captioner: name or directory")
    parser.add_argument(
        "--output", help="file to write: .jsonl, .csv, .txt, .json (COCO results); default: the screen"
    )
    parser.add_argument("--batch_size", "--batch-size", type=int, default=16, help="images at a time")
    parser.add_argument("--num_beams", "--num-beams", type=int, help="default: the model's own setting")
    parser.add_argument("--max_new_tokens", "--max-new-tokens", type=int, help="default: the model's own setting")
    parser.add_argument("--prompt", default="", help="text that captions begin with")
    parser.add_argument("--device", help="for instance cpu or cuda:0; default: an accelerator if there is one")
    parser.add_argument("--dtype", default="auto", help="number format of the weights, for instance bfloat16")
    parser.add_argument("--shard", help="i/n: only part i of n of the images")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.add_argument(
        "--trust_remote_code", "--trust-remote-code", action="store_true", help="run code that the model brings along"
    )


def run(args: argparse.Namespace) -> int:
    """Caption all images; 1 if some could not be read."""
    from hf_captioners.captioning.caption_files import CaptionFile, check_coco_ids
    from hf_captioners.captioning.image_list import find_images, shard_of

    if args.batch_size < 1:
        raise ValueError(f"`--batch_size` is {args.batch_size}, expected at least 1.")
    if args.output is None and (args.resume or args.overwrite):
        raise ValueError("`--resume` and `--overwrite` need `--output`.")
    images = shard_of(find_images(args.inputs), args.shard)
    if args.output is None:
        return _print_captions(args, images)
    output = Path(args.output)
    if output.suffix.lower() == ".json":
        check_coco_ids(images)
    settings = {name: getattr(args, name) for name in ("model", "num_beams", "max_new_tokens", "prompt")}
    file = CaptionFile(output, settings, args.resume, args.overwrite)
    try:
        left = [image for image in images if image not in file.done]
        unreadable = _caption_into(file, left, args)
        file.finish()
    finally:
        file.close()
    print(f"{len(images) - len(unreadable):,} captions are in {output}.", file=sys.stderr)
    return _report(unreadable)


def _print_captions(args: argparse.Namespace, images: Sequence[str]) -> int:
    unreadable: list[tuple[str, str]] = []
    for records, faults in caption_batches(args, images):
        for record in records:
            print(record["caption"] if len(images) == 1 else f"{record['image']}\t{record['caption']}")
        unreadable += faults
    return _report(unreadable)


def _caption_into(file: Any, images: Sequence[str], args: argparse.Namespace) -> list[tuple[str, str]]:
    """Caption images into a file, with progress; returns those that cannot be read, with the reason."""
    from tqdm.auto import tqdm

    unreadable: list[tuple[str, str]] = []
    if not images:
        return unreadable
    with tqdm(total=len(images), desc="captions", unit="image", disable=None) as progress:
        for records, faults in caption_batches(args, images):
            file.add(records)
            unreadable += faults
            progress.update(len(records) + len(faults))
    return unreadable


def _report(unreadable: Sequence[tuple[str, str]]) -> int:
    for _, reason in unreadable:
        print(f"not captioned: {reason}", file=sys.stderr)
    if unreadable:
        print(f"{len(unreadable):,} image(s) could not be read.", file=sys.stderr)
    return 1 if unreadable else 0


def caption_batches(
    args: argparse.Namespace, images: Sequence[str]
) -> Iterator[tuple[list[dict[str, Any]], list[tuple[str, str]]]]:
    """Records of each batch of images, and those images of it that cannot be read."""
    captioner = load_pipeline(args)
    options = {name: getattr(args, name) for name in ("num_beams", "max_new_tokens") if getattr(args, name)}
    if args.prompt:
        options["prompt"] = args.prompt
    for first in range(0, len(images), args.batch_size):
        read, faults = read_images(images[first : first + args.batch_size])
        results = captioner(list(read.values()), batch_size=len(read), return_scores=True, **options) if read else []
        yield (
            [
                {"image": name, "caption": best[0]["generated_text"], "score": best[0]["score"]}
                for name, best in zip(read, results, strict=True)
            ],
            faults,
        )


def read_images(paths: Sequence[str]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Decode images, or the views of studies; returns what was read, and what was not with the reason."""
    from hf_captioners.captioning.image_list import VIEW_SEPARATOR
    from hf_captioners.processing.image_reading import read_image

    read: dict[str, Any] = {}
    faults: list[tuple[str, str]] = []
    for path in paths:
        try:
            views = [read_image(view) for view in path.split(VIEW_SEPARATOR)]
            read[path] = views if len(views) > 1 else views[0]
        except (OSError, ValueError) as error:
            faults.append((path, str(error)))
    return read, faults


def load_pipeline(args: argparse.Namespace) -> Any:
    """The captioning pipeline of a model.

    Raises:
        ValueError: the model is no captioner.
        OSError: it cannot be found or read.
    """
    from hf_captioners.loading import load_captioner
    from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

    model, processor = load_captioner(args.model, dtype=args.dtype, trust_remote_code=args.trust_remote_code)
    return ImageCaptioningPipeline(model=model, processor=processor, device=args.device)
