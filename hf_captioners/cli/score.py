"""`hf-captioners score`: metrics of a file of captions."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.output_files import as_json, require_writable_folder, write_text

if TYPE_CHECKING:
    from hf_captioners.metrics.caption_files import MatchedCaptions

NAME = "score"
HELP = "score captions against references: BLEU, ROUGE-L, CIDEr, METEOR, no Java"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, metrics and form of the result."""
    files = "COCO .json, .jsonl, .csv, .txt, or a folder with metadata.jsonl"
    parser.add_argument("predictions", help=f"captions to score: {files}")
    parser.add_argument("references", help=f"reference captions: {files}")
    parser.add_argument("--baseline", help="captions of another system, to tell a difference from chance")
    add_metric_arguments(parser)


def add_metric_arguments(parser: argparse.ArgumentParser) -> None:
    """Which metrics, with which tables, and where the result goes."""
    parser.add_argument(
        "--metrics", nargs="+", default=["bleu", "rouge_l", "cider_d"], help="default: bleu rouge_l cider_d"
    )
    parser.add_argument("--tokenizer", choices=("ptb", "none"), default="ptb", help="none: words are split already")
    parser.add_argument(
        "--document_frequency", "--document-frequency", help="file for CIDEr; default: counted in the references"
    )
    parser.add_argument("--meteor_stages", "--meteor-stages", nargs="+", help="for instance: exact stem")
    parser.add_argument("--meteor_tables", "--meteor-tables", help="folder `meteor` of pycocoevalcap")
    parser.add_argument("--spice_jar", "--spice-jar", help="the original SPICE program")
    parser.add_argument("--java", default="java", help="the Java that SPICE runs on")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what is printed")
    parser.add_argument("--output", help="write all figures to this .json file")
    parser.add_argument("--per_image", "--per-image", help="write the figures of each image to this .jsonl file")


def run(args: argparse.Namespace) -> int:
    """Score; 1 if images were left out because one of the files lacks them."""
    from hf_captioners.metrics.caption_files import match_captions, read_captions

    check_arguments(args)
    references = read_captions(args.references)
    matched = match_captions(read_captions(args.predictions), references)
    if args.baseline is None:
        return score_and_report(matched, args)
    other = match_captions(read_captions(args.baseline), references)
    shared = set(matched.images) & set(other.images)
    if not shared:
        raise ValueError(f"{args.predictions} and {args.baseline} have no image in common.")
    return score_and_report(_only(matched, shared), args, _only(other, shared))


def check_arguments(args: argparse.Namespace) -> None:
    """See before any work that metrics are known and files can be written.

    Raises:
        ValueError: a metric is unknown. PermissionError, NotADirectoryError: a file cannot be written.
    """
    from hf_captioners.metrics.compute import check_choice

    check_choice(args.metrics, args.tokenizer)
    for file in (args.output, args.per_image):
        if file:
            require_writable_folder(Path(file).parent)


def _only(matched: "MatchedCaptions", images: set[str]) -> "MatchedCaptions":
    """Keep some images; those that are left out have no partner in the other file, so they count as missing."""
    keep = [place for place, image in enumerate(matched.images) if image in images]
    left_out = [image for image in matched.images if image not in images]
    return matched._replace(
        images=[matched.images[place] for place in keep],
        predictions=[matched.predictions[place] for place in keep],
        references=[matched.references[place] for place in keep],
        missing=[*matched.missing, *left_out],
    )


def score_and_report(
    matched: "MatchedCaptions", args: argparse.Namespace, baseline: "MatchedCaptions | None" = None
) -> int:
    """Score captions, print the figures and write the files that were asked for."""
    figures = compute_figures(matched, args)
    per_image = figures.pop("per_image")
    figures |= {"images": len(matched.images), "missing": matched.missing, "extra": matched.extra}
    if baseline is not None:
        other = compute_figures(baseline, args)
        figures["baseline"] = {name: other[name] for name in figures["variants"]}
        figures["comparison"] = _compare(per_image, other["per_image"])
    print(as_json(figures) if args.format == "json" else _table(figures))
    if args.output:
        write_text(Path(args.output), as_json(figures) + "\n")
    if args.per_image:
        write_text(Path(args.per_image), _image_lines(matched, per_image))
    return _report_left_out(matched)


def compute_figures(matched: "MatchedCaptions", args: argparse.Namespace) -> dict[str, Any]:
    """Compute the metrics that the arguments name."""
    from hf_captioners.metrics import DocumentFrequency, Meteor, MeteorTables, OriginalSpice, compute_caption_metrics

    tables = MeteorTables(args.meteor_tables) if args.meteor_tables else None
    return compute_caption_metrics(
        matched.predictions,
        matched.references,
        args.metrics,
        args.tokenizer,
        document_frequency=DocumentFrequency.load(args.document_frequency) if args.document_frequency else None,
        meteor=Meteor(args.meteor_stages, tables) if args.meteor_stages else None,
        tables=tables,
        spice=OriginalSpice(args.spice_jar, args.java) if args.spice_jar else None,
    )


def _compare(mine: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    from hf_captioners.metrics import compare_systems

    if len(next(iter(mine.values()))) < 2:
        raise ValueError("`--baseline` needs two or more images that both systems have captioned.")
    return {name: compare_systems(scores, theirs[name])._asdict() for name, scores in mine.items()}


def _table(figures: Mapping[str, Any]) -> str:
    width = max(map(len, figures["variants"]))
    lines = [f"{figures['images']:,} images, tokenizer {figures['tokenizer']}"]
    if "document_frequency" in figures:
        lines.append(f"document frequencies from {figures['document_frequency']}")
    lines += [f"{name:<{width}}  {figures[name]:9.4f}  {variant}" for name, variant in figures["variants"].items()]
    if "comparison" in figures:
        lines += ["", "against the baseline (paired bootstrap over images, means of their figures):"]
        lines += [f"{name:<{width}}  {_verdict(result)}" for name, result in figures["comparison"].items()]
    return "\n".join(lines)


def _verdict(result: Mapping[str, Any]) -> str:
    verdict = "more than chance" if result["significant"] else "may be chance"
    interval = f"95 % from {result['low']:+.4f} to {result['high']:+.4f}"
    return f"{result['difference']:+9.4f}  {interval}, p = {result['p_value']:.4f}: {verdict}"


def _image_lines(matched: "MatchedCaptions", per_image: Mapping[str, Sequence[float]]) -> str:
    rows = (
        {
            "image_id": image,
            "caption": caption,
            "references": references,
            **{name: scores[place] for name, scores in per_image.items()},
        }
        for place, (image, caption, references) in enumerate(
            zip(matched.images, matched.predictions, matched.references, strict=True)
        )
    )
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _report_left_out(matched: "MatchedCaptions") -> int:
    for images, fault in ((matched.missing, "have no prediction"), (matched.extra, "have no references")):
        if images:
            names = ", ".join(images[:5]) + (", ..." if len(images) > 5 else "")
            print(f"not scored: {len(images):,} image(s) {fault}: {names}", file=sys.stderr)
    return 1 if matched.missing or matched.extra else 0
