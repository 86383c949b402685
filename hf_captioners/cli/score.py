"""`hf-captioners score`: metrics of a caption file."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.metrics.caption_tokenizers import TOKENIZERS
from hf_captioners.metrics.meteor import STAGES
from hf_captioners.metrics.registry import DEFAULT_METRICS, METRICS
from hf_captioners.output_files import as_json, require_writable_folder, write_text

from .paths import check_path

if TYPE_CHECKING:
    from hf_captioners.captioning.scoring import MetricSettings, Scores

NAME = "score"
FILES = ("document_frequency", "meteor_tables", "spice_jar", "chair_objects", "chair_instances", "earlier_scores")
HELP = "score captions against references: BLEU, ROUGE-L, CIDEr, METEOR, without Java"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of files, metrics and output."""
    files = "COCO .json, .jsonl, .csv, .txt, or a folder with metadata.jsonl"
    parser.add_argument("predictions", help=f"captions to score: {files}")
    parser.add_argument("references", help=f"reference captions: {files}")
    parser.add_argument("--baseline", help="captions of a second system, compared by a paired bootstrap over images")
    add_metric_arguments(parser)


def add_metric_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of metrics, their tables and the output."""
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=list(DEFAULT_METRICS),
        metavar="METRIC",
        help=f"among {', '.join(METRICS)}, or module:function of your own; default: {' '.join(DEFAULT_METRICS)}",
    )
    parser.add_argument(
        "--shuffled_control",
        action="store_true",
        help="add cider_d_shuffled: the same captions against the references of the next image",
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        default="ptb",
        help="none: words are separated by blanks already; characters: Chinese, Japanese, Thai; unicode: words of "
        "Korean, Arabic, Hindi, German; default: ptb (English)",
    )
    parser.add_argument("--document_frequency", help="file for CIDEr; default: counted in the references")
    parser.add_argument("--meteor_stages", nargs="+", choices=STAGES, metavar="STAGE", help="for example: exact stem")
    parser.add_argument("--meteor_tables", help="folder `meteor` of pycocoevalcap")
    parser.add_argument("--spice_jar", help="the original SPICE program")
    parser.add_argument("--java", default="java", help="the Java that runs SPICE; default: java")
    parser.add_argument("--chair_objects", help="JSON of objects and synonyms for chair; default: those of COCO")
    parser.add_argument(
        "--chair_instances",
        help="annotated objects for chair: instances of COCO, or JSON; default: those of the references",
    )
    parser.add_argument(
        "--earlier_scores",
        help="a file that --output wrote: print the differences of all metrics, and warn if it was scored with other "
        "settings",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="format of standard output")
    parser.add_argument("--output", help="write all metrics to this .json file")
    parser.add_argument("--per_image", help="write the scores of each image to this .jsonl file")


def metric_settings(args: argparse.Namespace) -> "MetricSettings":
    """Return the metric settings in the arguments, after checks that files can be read and written.

    Raises:
        ValueError: a metric is unknown, or `earlier_scores` holds no metrics.
        FileNotFoundError, PermissionError, NotADirectoryError: a file cannot be read or written.
    """
    for name in FILES:
        check_path(name, getattr(args, name))
    from hf_captioners.captioning.scoring import MetricSettings, read_scores
    from hf_captioners.metrics.compute import with_control

    if args.earlier_scores:
        read_scores(args.earlier_scores)

    settings = MetricSettings(
        with_control(args.metrics, args.shuffled_control),
        args.tokenizer,
        args.document_frequency,
        args.meteor_stages,
        args.meteor_tables,
        args.spice_jar,
        args.java,
        args.chair_objects,
        args.chair_instances,
    )
    for file in (args.output, args.per_image):
        if file:
            require_writable_folder(Path(file).parent)
    return settings


def run(args: argparse.Namespace) -> int:
    """Score the captions; return 1 if images are missing in one of the files."""
    for name in ("predictions", "references"):
        check_path(name, getattr(args, name))
    check_path("baseline", args.baseline)
    settings = metric_settings(args)

    from hf_captioners.captioning.scoring import score_files

    return report(score_files(args.predictions, args.references, settings, args.baseline), args)


def report(scores: "Scores", args: argparse.Namespace) -> int:
    """Print the metrics and write the requested files; return the exit status."""
    if args.earlier_scores:
        add_earlier(scores.metrics, args.earlier_scores)
    print(as_json(scores.metrics) if args.format == "json" else table(scores.metrics))
    if args.output:
        write_text(Path(args.output), as_json(scores.metrics) + "\n")
    if args.per_image:
        write_text(Path(args.per_image), scores.image_lines())
    missing, extra = scores.matched.missing, scores.matched.extra
    for images, fault in ((missing, "have no prediction"), (extra, "have no references")):
        if images:
            names = ", ".join(images[:5]) + (", ..." if len(images) > 5 else "")
            print(f"not scored: {len(images):,} image(s) {fault}: {names}", file=sys.stderr)
    return 1 if missing or extra else 0


def add_earlier(metrics: dict[str, Any], path: str) -> None:
    """Add the differences from an earlier result as `since_earlier`; warn if it was scored with other settings."""
    from hf_captioners.captioning.scoring import read_scores, setting_differences

    earlier = read_scores(path)
    shared = [name for name in metrics["variants"] if earlier.get(name) is not None]  # null: it was undefined
    metrics["since_earlier"] = {name: metrics[name] - earlier[name] for name in shared}
    if different := setting_differences(metrics, earlier):
        text = "; ".join(different)
        print(
            f"warning: {path} was scored with other settings, its metrics cannot be compared: {text}", file=sys.stderr
        )


def table(metrics: Mapping[str, Any]) -> str:
    """Return metrics as lines of text."""
    width = max(map(len, metrics["variants"]))
    lines = [f"{metrics['images']:,} images, tokenizer {metrics['tokenizer']}"]
    if "document_frequency" in metrics:
        lines.append(f"document frequencies from {metrics['document_frequency']}")
    lines += [f"{name:<{width}}  {metrics[name]:9.4f}  {variant}" for name, variant in metrics["variants"].items()]
    for group, figures in metrics.get("groups", {}).items():
        lines += ["", f"{group}, {figures['images']:,} images:"]
        lines += [f"{name:<{width}}  {figures[name]:9.4f}" for name in metrics["variants"]]
    if intervals := metrics.get("intervals"):
        lines += ["", "95 % intervals of the metrics that are means over images (bootstrap):"]
        lines += [
            f"{name:<{width}}  {bounds['low']:9.4f} to {bounds['high']:.4f}" for name, bounds in intervals.items()
        ]
    if "comparison" in metrics:
        lines += ["", "against the baseline (paired bootstrap over images, means of the scores per image):"]
        lines += [f"{name:<{width}}  {verdict(result)}" for name, result in metrics["comparison"].items()]
    if "since_earlier" in metrics:
        lines += ["", "difference from the earlier scores:"]
        lines += [f"{name:<{width}}  {change:+9.4f}" for name, change in metrics["since_earlier"].items()]
    return "\n".join(lines)


def verdict(result: Mapping[str, Any]) -> str:
    """Return a comparison of two systems as one line of text."""
    text = "significant" if result["significant"] else "not significant"
    interval = f"95 % interval {result['low']:+.4f} to {result['high']:+.4f}"
    return f"{result['difference']:+9.4f}  {interval}, p = {result['p_value']:.4f}: {text}"
