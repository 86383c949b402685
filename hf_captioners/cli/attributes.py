"""`hf-captioners attributes train | detect | evaluate`: attribute detectors, for captioners such as ETA."""

import argparse
import sys
from pathlib import Path
from typing import Any

from .caption import add_image_arguments, report, set_pixel_limit
from .parsing import add_data_options_argument, add_links_argument, positive
from .paths import check_device, check_path, check_source

NAME = "attributes"
HELP = "train, use and evaluate a detector of the words that captions of an image are likely to have"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands train, detect and evaluate."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="train | detect | evaluate")
    options: dict[str, Any] = {"allow_abbrev": False}
    add_train_arguments(actions.add_parser("train", help="train a detector on captioned images", **options))
    add_detect_arguments(actions.add_parser("detect", help="write words and probabilities per image", **options))
    add_evaluate_arguments(actions.add_parser("evaluate", help="compare with the words of captions", **options))


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a captioned data set."""
    parser.add_argument("--dataset", default="caption_folder", help="name of the data set; default: caption_folder")
    parser.add_argument("--data_dir", help="folder of the data set")
    add_data_options_argument(parser)
    add_links_argument(parser)
    parser.add_argument("--features", help="stored features instead of images: the output of extract-features")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of data, model size and training."""
    add_data_arguments(parser)
    parser.add_argument("--output_dir", required=True, help="folder of the detector")
    parser.add_argument("--vision_model", help="vision model, where no stored features are given")
    parser.add_argument("--image_size", type=int, metavar="PIXELS", help="side of the centre crop")
    parser.add_argument("--vision_grid_size", type=int, metavar="N", help="pool to N x N cells")
    parser.add_argument(
        "--validation_share",
        type=float,
        default=0.1,
        help="share of training images to hold out if there is no validation split; default: 0.1",
    )
    parser.add_argument("--num_words", type=int, default=1000, help="the most frequent words; default: 1000")
    parser.add_argument("--hidden_sizes", type=int, nargs="*", default=[], help="layers before the scores")
    parser.add_argument("--dropout", type=float, default=0.5, help="rate after these layers; default: 0.5")
    parser.add_argument("--num_train_epochs", type=float, default=10, help="default: 10")
    parser.add_argument("--batch_size", type=positive, default=32, help="images per step; default: 32")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="default: 1e-3")
    parser.add_argument("--max_steps", type=int, default=-1, help="stop after this many steps")
    parser.add_argument("--seed", type=int, default=42, help="default: 42")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")
    parser.add_argument("--use_cpu", action="store_true", help="train on the CPU")


def add_detect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of inputs, detector and output."""
    parser.add_argument("inputs", nargs="*", help="images, folders, or .txt lists of paths")
    parser.add_argument("--features", help="stored features instead of images")
    add_detector_arguments(parser)
    parser.add_argument("--output", help="file to write (.jsonl); default: standard output")
    parser.add_argument("--top_k", type=int, default=10, help="words per image; default: 10")
    parser.add_argument("--threshold", type=float, default=0.0, help="least probability of a word; default: 0")
    parser.add_argument("--shard", help="i/n: only part i of n of the images, for several machines")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    add_image_arguments(parser)


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of data and detector."""
    add_data_arguments(parser)
    add_detector_arguments(parser)
    parser.add_argument("--split", default="validation", help="default: validation")
    parser.add_argument("--top_k", type=int, default=10, help="likeliest words; default: 10")
    parser.add_argument("--output", help="JSON file to write")


def add_detector_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a trained detector."""
    parser.add_argument("--detector", required=True, help="attribute detector: name or directory")
    parser.add_argument("--batch_size", type=positive, default=16, help="images per batch; default: 16")
    parser.add_argument("--device", help="for example cuda:0; default: the CPU")


def run(args: argparse.Namespace) -> int:
    """Check the paths and run the chosen subcommand."""
    if args.action != "detect":
        check_path("data_dir", args.data_dir, folder=True)
    check_path("features", args.features)
    if args.action == "train":
        if args.features is not None and args.vision_model is not None:
            raise ValueError("`--features` and `--vision_model` exclude each other; give one.")
        if args.vision_model is not None:
            check_source("vision_model", args.vision_model)
    else:
        for path in getattr(args, "inputs", ()):
            check_path("inputs", path)
        check_source("detector", args.detector)
        check_device(args.device)
    return {"train": train, "detect": detect, "evaluate": evaluate}[args.action](args)


def train(args: argparse.Namespace) -> int:
    """Train a detector and print its metrics."""
    from hf_captioners.training.attribute_detector import (
        AttributeDetectorArguments,
        attribute_training_arguments,
        train_attribute_detector,
    )
    from hf_captioners.training.data_arguments import DataArguments

    data = DataArguments(
        dataset=args.dataset,
        data_dir=args.data_dir,
        data_options=args.data_options,
        follow_links=args.follow_links,
        features=args.features,
        validation_share=args.validation_share,
    )
    sizes = ("vision_model", "image_size", "vision_grid_size", "num_words", "hidden_sizes", "dropout")
    training = attribute_training_arguments(
        args.output_dir,
        num_train_epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        seed=args.seed,
        use_cpu=args.use_cpu,
    )
    detector = AttributeDetectorArguments(**{name: getattr(args, name) for name in sizes})
    show(train_attribute_detector(detector, data, training, args.resume, say=print))
    print(f"Saved in {args.output_dir}.")
    return 0


def detect(args: argparse.Namespace) -> int:
    """Detect the attributes of all images; return 1 if some are unreadable."""
    from hf_captioners.captioning.attributes import (
        detect_into_file,
        detection_batches,
        detection_settings,
        load_attribute_detector,
        require_extractor,
        require_jsonl,
    )
    from hf_captioners.captioning.caption_files import CaptionFile, require_free_output
    from hf_captioners.captioning.image_list import find_images, shard_of
    from hf_captioners.features.formats import open_regions
    from hf_captioners.output_files import quoted_name

    if (args.features is None) == (not args.inputs):
        raise ValueError("Pass images, or `--features` with stored features, and not both.")
    if args.top_k < 1 or not 0 <= args.threshold <= 1:
        raise ValueError(
            f"`--top_k` is {args.top_k} and `--threshold` {args.threshold}; expected at least 1, and 0..1."
        )
    if args.output is None and (args.resume or args.overwrite):
        raise ValueError("`--resume` and `--overwrite` need `--output`.")
    set_pixel_limit(args.max_image_pixels)
    source = None if args.features is None else open_regions(args.features)
    if args.features is not None and source is None:
        raise FileNotFoundError(f"{args.features} has no stored features, expected a folder of extract-features.")
    names = shard_of(find_images(args.inputs) if source is None else list(source), args.shard)
    output = None if args.output is None else Path(args.output)
    if output is not None:
        require_jsonl(output)
        require_free_output(output, args.resume, args.overwrite)
    detector = load_attribute_detector(args.detector, args.device)
    if source is not None:
        require_extractor(detector, source)
    options = {"top_k": args.top_k, "threshold": args.threshold}
    if output is None:
        unreadable = []
        for records, faults in detection_batches(detector, names, source, args.batch_size, **options):
            for record in records:
                pairs = zip(record["attributes"], record["probabilities"], strict=True)
                print(f"{quoted_name(record['image'])}\t{' '.join(f'{word}:{value:.3f}' for word, value in pairs)}")
            unreadable += faults
        return report(unreadable, args.allow_skipped)
    settings = detection_settings(detector, names, shard=args.shard, **options)
    with CaptionFile(output, settings, args.resume, args.overwrite) as file:
        unreadable = detect_into_file(file, detector, names, source, args.batch_size, **options)
    print(f"Wrote the attributes of {len(names) - len(unreadable):,} images to {output}.", file=sys.stderr)
    return report(unreadable, args.allow_skipped)


def evaluate(args: argparse.Namespace) -> int:
    """Print the metrics of a detector on captioned images."""
    import numpy as np

    from hf_captioners.captioning.attributes import load_attribute_detector, require_extractor
    from hf_captioners.metrics.retrieved_words import word_metrics
    from hf_captioners.output_files import as_json, write_text
    from hf_captioners.training.attribute_detector import LabelledImages
    from hf_captioners.training.data_arguments import DataArguments

    data = DataArguments(
        dataset=args.dataset,
        data_dir=args.data_dir,
        data_options=args.data_options,
        follow_links=args.follow_links,
        features=args.features,
    )
    detector = load_attribute_detector(args.detector, args.device)
    if args.features is not None:
        require_extractor(detector, data.regions_of(args.split))
    elif detector.model.vision is None:
        raise ValueError("This attribute detector was trained on stored features: pass `--features`.")
    images = LabelledImages(data.test_rows(args.split), detector.model.config.words, detector.image_processor)
    scores = []
    for first in range(0, len(images), args.batch_size):
        last = min(first + args.batch_size, len(images))
        batch = images.collate([images[row] for row in range(first, last)])
        batch.pop("labels")
        scores.append(detector.probabilities(batch))
    metrics = dict(word_metrics(np.concatenate(scores), images.labels, args.top_k)) | {"images": len(images)}
    show(metrics)
    if args.output is not None:
        write_text(args.output, as_json(metrics | {"detector": args.detector, "split": args.split}) + "\n")
    return 0


def show(metrics: dict[str, float]) -> None:
    """Print the metrics of each word."""
    for name, value in metrics.items():
        if name == "images" or "precision" in name:
            print(f"{name:<40} {value:,}" if isinstance(value, int) else f"{name:<40} {value:.4f}")
