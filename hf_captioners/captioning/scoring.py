"""Scoring of caption files: metrics of one system, per image and in total, and comparison of two systems."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_captioners.metrics import (
    Chair,
    DocumentFrequency,
    Meteor,
    MeteorTables,
    ObjectTable,
    OriginalSpice,
    compare_systems,
    compute_caption_metrics,
    read_instances,
)
from hf_captioners.metrics.annotation_files import read_json
from hf_captioners.metrics.caption_files import MatchedCaptions, match_captions, read_captions
from hf_captioners.metrics.compute import check_choice
from hf_captioners.metrics.registry import DEFAULT_METRICS

PathLike = str | os.PathLike[str]
COMPARED_SETTINGS = ("tokenizer", "document_frequency", "images", "reference_captions")


@dataclass(frozen=True)
class MetricSettings:
    """Names and options of the metrics, and the files that the metrics need.

    Args:
        metrics: names of metrics or `module:function`, see `compute_caption_metrics`.
        tokenizer: a name of `TOKENIZERS` in `hf_captioners.metrics.caption_tokenizers`.
        document_frequency: file of `DocumentFrequency.save` for CIDEr. None: counted in the references.
        meteor_stages: stages of METEOR, for example `("exact", "stem")`. None: all of them.
        meteor_tables: folder of METEOR's tables. None: the installed pycocoevalcap.
        spice_jar: the original SPICE program, for the metric `spice`.
        java: the Java that runs it.
        chair_objects: JSON file of objects and their synonyms, see `ObjectTable.load`. None: COCO's categories.
        chair_instances: file of the annotated objects of each image, see `read_instances`. None: the references only.

    Raises:
        ValueError: a metric or the tokenizer is unknown.
    """

    metrics: Sequence[str] = DEFAULT_METRICS
    tokenizer: str = "ptb"
    document_frequency: PathLike | None = None
    meteor_stages: Sequence[str] | None = None
    meteor_tables: PathLike | None = None
    spice_jar: PathLike | None = None
    java: str = "java"
    chair_objects: PathLike | None = None
    chair_instances: PathLike | None = None

    def __post_init__(self) -> None:
        """Check the names of the metrics and the tokenizer."""
        check_choice(self.metrics, self.tokenizer)

    def compute(self, matched: MatchedCaptions) -> dict[str, Any]:
        """Compute the metrics of matched captions, see `compute_caption_metrics`."""
        tables = MeteorTables(self.meteor_tables) if self.meteor_tables else None
        frequency = DocumentFrequency.load(self.document_frequency) if self.document_frequency else None
        return compute_caption_metrics(
            matched.predictions,
            matched.references,
            self.metrics,
            self.tokenizer,
            document_frequency=frequency,
            meteor=Meteor(self.meteor_stages, tables) if self.meteor_stages else None,
            tables=tables,
            spice=OriginalSpice(self.spice_jar, self.java) if self.spice_jar else None,
            chair=self._chair(matched.images),
        )

    def _chair(self, images: Sequence[str]) -> Chair | None:
        if self.chair_objects is None and self.chair_instances is None:
            return None
        table = ObjectTable.load(self.chair_objects) if self.chair_objects else None
        return Chair(table, read_instances(self.chair_instances, images) if self.chair_instances else None)


@dataclass(frozen=True)
class Scores:
    """Scores of a system: metrics in total and per image.

    Args:
        matched: captions and references; images that only one side has are in `missing` and `extra`.
        metrics: metrics over all images in natural units, their `variants`, `tokenizer`, numbers of images and of
            reference captions, and the `intervals` of those that are means, see `mean_intervals`; with a baseline its
            metrics under `baseline` and the paired bootstrap of each metric under `comparison`; `groups` of a data set
            that is scored by groups.
        per_image: for each metric the scores of the images; NaN of an image that a metric leaves out.
    """

    matched: MatchedCaptions
    metrics: dict[str, Any]
    per_image: dict[str, list[float]]

    def image_lines(self) -> str:
        """Return one JSON line per image: `image_id`, `caption`, `references`, and scores, null where undefined."""
        rows = (
            {
                "image_id": image,
                "caption": caption,
                "references": references,
                **{name: _number(scores[place]) for name, scores in self.per_image.items()},
            }
            for place, (image, caption, references) in enumerate(
                zip(self.matched.images, self.matched.predictions, self.matched.references, strict=True)
            )
        )
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def score_files(
    predictions: PathLike,
    references: PathLike,
    settings: MetricSettings | None = None,
    baseline: PathLike | None = None,
) -> Scores:
    """Score a file of captions against a file of references.

    Args:
        predictions: captions to score, see `read_captions` for the formats.
        references: reference captions.
        settings: metrics. None: the default ones.
        baseline: captions of a second system. Both systems are then scored on the images that both have captioned.

    Raises:
        ValueError: the files have no image in common, or a file is not of a known format.
        FileNotFoundError: a file is missing.

    Example:
        ```python
        from hf_captioners.captioning.scoring import score_files

        scores = score_files("captions.jsonl", "references.json", baseline="other.jsonl")
        scores.metrics["cider_d"], scores.metrics["comparison"]["cider_d"]["p_value"]
        ```
    """
    reference_table = read_captions(references)
    matched = match_captions(read_captions(predictions), reference_table)
    if baseline is None:
        return score_matched(matched, settings)
    matched_baseline = match_captions(read_captions(baseline), reference_table)
    shared = set(matched.images) & set(matched_baseline.images)
    if not shared:
        raise ValueError(f"{predictions} and {baseline} have no image in common.")
    return score_matched(keep_images(matched, shared), settings, keep_images(matched_baseline, shared))


def score_matched(
    matched: MatchedCaptions, settings: MetricSettings | None = None, baseline: MatchedCaptions | None = None
) -> Scores:
    """Score captions that are matched with their references.

    Args:
        matched: captions and references.
        settings: metrics. None: the default ones.
        baseline: captions of a second system for the same images.

    Raises:
        ValueError: there is a baseline, and fewer than two images.
    """
    settings = settings or MetricSettings()
    metrics = settings.compute(matched)
    per_image = metrics.pop("per_image")
    references = sum(map(len, matched.references))
    metrics |= {"images": len(matched.images), "reference_captions": references}
    metrics |= {"missing": matched.missing, "extra": matched.extra}
    metrics["intervals"] = mean_intervals(metrics, per_image)
    if baseline is not None:
        if len(matched.images) < 2:
            raise ValueError("`baseline` needs two or more images that both systems have captioned.")
        baseline_scores = settings.compute(baseline)
        metrics["baseline"] = {name: baseline_scores[name] for name in metrics["variants"]}
        metrics["comparison"] = compare_scores(per_image, baseline_scores["per_image"])
    return Scores(matched, metrics, per_image)


def score_groups(
    matched: MatchedCaptions, groups: Mapping[str, str], settings: MetricSettings
) -> dict[str, dict[str, float]]:
    """Score groups of images, each alone: CIDEr counts document frequencies in the references of the group.

    Args:
        matched: captions and references.
        groups: the group of each image.
        settings: metrics.

    Returns:
        Of each group the number of its `images`, and its metrics.
    """
    scores = {}
    for group in sorted(set(groups.values())):
        kept = keep_images(matched, {image for image in matched.images if groups[image] == group})
        if kept.images:
            metrics = settings.compute(kept)
            scores[group] = {"images": len(kept.images), **{name: metrics[name] for name in metrics["variants"]}}
    return scores


def mean_intervals(
    metrics: Mapping[str, Any], per_image: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, float]]:
    """Return 95 % bootstrap intervals, over images, of metrics.

    Args:
        metrics: the figures over all images.
        per_image: for each metric the scores of the images.

    Returns:
        `low` and `high` of each metric whose figure is the mean of the scores of its images, and that has two or more
        of these. BLEU and METEOR are no means.
    """
    intervals = {}
    for name, scores in per_image.items():
        defined = [score for score in scores if not math.isnan(score)]
        if len(defined) > 1 and math.isclose(metrics.get(name, math.nan), sum(defined) / len(defined), abs_tol=1e-9):
            compared = compare_systems(defined, [0.0] * len(defined))
            intervals[name] = {"low": compared.low, "high": compared.high}
    return intervals


def compare_scores(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Any]]:
    """Compare the per-image scores of two systems, see `compare_systems`.

    Args:
        first: scores of the first system by metric.
        second: scores of the second system for the same images.

    Returns:
        For each metric the comparison of the images to which both systems have a score; a metric with fewer than two
        such images has none.
    """
    compared = {}
    for name, scores in first.items():
        pairs = [pair for pair in zip(scores, second[name], strict=True) if not any(map(math.isnan, pair))]
        if len(pairs) > 1:
            ours, theirs = zip(*pairs, strict=True)
            compared[name] = compare_systems(ours, theirs)._asdict()
    return compared


def read_scores(path: PathLike) -> dict[str, Any]:
    """Read the metrics that `hf-captioners score --output` or `evaluate --output` wrote.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: it is damaged, or holds no such metrics.
        UnsafeFileError: it is no plain file.
    """
    metrics = read_json(Path(path))
    variants = metrics.get("variants") if isinstance(metrics, dict) else None
    if not isinstance(variants, dict) or not all(
        isinstance(metrics.get(name), float | int | None) for name in variants
    ):
        raise ValueError(f"{path} holds no metrics, expected a file that `score` or `evaluate` wrote with `output`.")
    return metrics


def setting_differences(metrics: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each setting that two results do not share, so that their metrics cannot be compared.

    Args:
        metrics: `Scores.metrics`.
        earlier: those of an earlier result, see `read_scores`. Settings that it does not record are not compared.
    """
    pairs = [(name, metrics.get(name), earlier.get(name)) for name in COMPARED_SETTINGS]
    variants = metrics["variants"]
    pairs += [(name, variants[name], other) for name, other in earlier["variants"].items() if name in variants]
    return [
        f"{name}: {here}, earlier {there}"
        for name, here, there in pairs
        if None not in (here, there) and here != there
    ]


def _number(score: float) -> float | None:
    return None if math.isnan(score) else score


def keep_images(matched: MatchedCaptions, images: set[str]) -> MatchedCaptions:
    """Keep the given images; count the others as missing."""
    keep = [place for place, image in enumerate(matched.images) if image in images]
    left_out = [image for image in matched.images if image not in images]
    return matched._replace(
        images=[matched.images[place] for place in keep],
        predictions=[matched.predictions[place] for place in keep],
        references=[matched.references[place] for place in keep],
        missing=[*matched.missing, *left_out],
    )
