"""Comparison of several captioners on the same images: metrics, paired differences, captions side by side."""

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import PIL.Image
from datasets import Dataset

from hf_captioners.data.held_out import FILE as HELD_OUT_FILE
from hf_captioners.data.held_out import HeldOut
from hf_captioners.data.schema import IMAGE
from hf_captioners.data.training_images import TrainingImages
from hf_captioners.metrics import caption_health
from hf_captioners.metrics.caption_files import CaptionTable, MatchedCaptions, match_captions, read_captions
from hf_captioners.metrics.caption_tokenizers import caption_tokenizer
from hf_captioners.onnx.onnx_facts import FACTS_FILE

from .batches import load_pipeline
from .data_set import caption_data_set
from .generation_options import options_of_evaluation, with_seed
from .scoring import MetricSettings, compare_scores, keep_images

MIN_IMAGES = 30  # for a verdict
TEMPLATE = "comparison_page.html"
PAGE_IMAGES, PAGE_SIDE = 200, 360  # images of a page, and their longer side
SEPARATOR = "+"  # between the captioners of an ensemble


@dataclass
class System:
    """A captioner, or a file of captions, evaluated on the images of a data set.

    Args:
        name: as it was typed.
        matched: captions and references.
        training: what is known of the images that it was trained on.
        facts: seconds and settings, as far as they are known: `cpu_seconds`, `instruction`, `unverified`, `seed`.
    """

    name: str
    matched: MatchedCaptions
    training: str
    facts: dict[str, Any] = field(default_factory=dict)


def load_source(source: str, **loading: Any) -> Any:
    """Load the pipeline of a captioner, of an exported captioner, or of an ensemble `NAME+NAME`.

    Args:
        source: directory or name.
        **loading: arguments of `load_pipeline`.
    """
    if Path(source, FACTS_FILE).is_file():
        return load_pipeline(source, backend="onnx")
    members = [source] if Path(source).exists() else source.split(SEPARATOR)
    return load_pipeline(members, **loading)


def system_of(
    source: str,
    rows: Dataset,
    batch_size: int,
    options: Mapping[str, Any],
    seed: int | None = None,
    **loading: Any,
) -> System:
    """Caption a data set with a captioner, or read its captions from a file.

    Args:
        source: see `load_source`; or a file, see `read_captions`.
        rows: rows of `load_captions`.
        batch_size: images per batch.
        options: arguments of the pipeline. An instruction is given to captioners that read one.
        seed: see `with_seed`.
        **loading: arguments of `load_pipeline`.

    Raises:
        ValueError: a file has no caption of any image.
    """
    references = dict(zip(rows["image_id"], rows["captions"], strict=True))
    if Path(source).is_file():
        table = CaptionTable({image: texts for image, texts in references.items() if texts}, {})
        return System(source, match_captions(read_captions(source), table), "unknown")
    pipeline = load_source(source, **loading)
    instructed = getattr(pipeline, "instructed", None)
    if instructed is None or not instructed.takes_instruction:
        options = {name: value for name, value in options.items() if name != "instruction"}
    generation = with_seed(pipeline, options_of_evaluation(pipeline, options), seed)
    start = os.times()
    matched = caption_data_set(pipeline, rows, batch_size, **generation)
    facts: dict[str, Any] = {"cpu_seconds": round(sum(os.times()[:4]) - sum(start[:4]), 2)}
    facts |= {name: value for name, value in generation.items() if name == "seed"}
    if instructed is not None:
        facts["instruction"] = instructed.settings(options.get("instruction"))["instruction"]
        facts["unverified"] = pipeline.is_unverified
    return System(source, matched, "unknown", facts)


def without_trained(sources: Sequence[str], rows: Dataset) -> tuple[Dataset, dict[str, str]]:
    """Drop the images on which any of the captioners is known to have been trained.

    A captioner that `hf-captioners train` trained names its images in `training_images.json`. Earlier versions wrote
    only those that they held out: then all others of this data set count as trained on.

    Args:
        sources: see `system_of`.
        rows: rows of `load_captions`.

    Returns:
        The rows that are left, and for each source what is known.

    Raises:
        ValueError: no image is left.
    """
    kept, notes = set(rows["image_id"]), {}
    left_out: dict[str, set[str]] = {}
    for source in sources:
        notes[source] = "unknown"
        for member in [source] if Path(source).exists() else source.split(SEPARATOR):
            trained = _trained_on(member, rows)
            if trained is not None:
                left_out[source] = left_out.get(source, set()) | trained
                notes[source] = training_note(len(left_out[source]))
                kept -= trained
    if not kept:
        raise ValueError("Each image is one that a captioner was trained on: pass another split or data set.")
    places = [place for place, image in enumerate(rows["image_id"]) if image in kept]
    return rows if len(places) == len(rows) else rows.select(places), notes


def _trained_on(folder: str, rows: Dataset) -> set[str] | None:
    """Return the images of a data set on which a captioner was trained; None if unknown."""
    if not Path(folder).is_dir():
        return None
    if (images := TrainingImages.load(folder)) is not None:
        return images.among(rows)
    if not Path(folder, HELD_OUT_FILE).is_file():
        return None
    held_out, names = set(HeldOut.load(folder).image_ids), set(rows["image_id"])
    return names - held_out if held_out & names else None


def training_note(count: int) -> str:
    """Return a sentence about how many images were dropped because a captioner was trained on them."""
    if not count:
        return "trained on none of these images"
    return (
        f"trained on {count:,} more image{'' if count == 1 else 's'}, which {'is' if count == 1 else 'are'} left out"
    )


class Comparison:
    """Metrics of several systems on their common images, and each system's differences to the first system.

    Args:
        systems: the first one is compared with each of the others, if any.
        settings: metrics. None: the default ones.

    Raises:
        ValueError: there are fewer than two images that all have captioned.
    """

    def __init__(self, systems: Sequence[System], settings: MetricSettings | None = None) -> None:
        self.settings = settings or MetricSettings()
        shared = set.intersection(*(set(system.matched.images) for system in systems))
        if len(shared) < 2:
            raise ValueError(f"{len(systems)} systems have {len(shared)} images in common, expected two or more.")
        self.systems = systems
        self.matched = [keep_images(system.matched, shared) for system in systems]
        self.scores = [self.settings.compute(matched) for matched in self.matched]
        self.per_image = [scores["per_image"] for scores in self.scores]
        self.metrics = list(self.scores[0]["variants"])

    @property
    def images(self) -> list[str]:
        """Names of the images that all systems have captioned."""
        return self.matched[0].images

    @property
    def has_verdict(self) -> bool:
        """True if there are enough images to call a difference significant."""
        return len(self.images) >= MIN_IMAGES

    @property
    def ordering(self) -> str:
        """Name of the metric by which images are ordered."""
        return "cider_d" if "cider_d" in self.per_image[0] else next(iter(self.per_image[0]))

    @cached_property
    def figures(self) -> dict[str, Any]:
        """All results as JSON values."""
        tokenize = caption_tokenizer(self.settings.tokenizer)
        systems = []
        for system, matched, scores in zip(self.systems, self.matched, self.scores, strict=True):
            health = caption_health(tokenize(matched.predictions))
            figures = {name: scores[name] for name in self.metrics}
            figures |= {"distinct": health["distinct"], "length": health["length"]}
            figures["interval"] = self._interval(scores["per_image"])
            systems.append({"name": system.name, **figures, **system.facts, "trained_on": system.training})
        comparisons = []
        for system, per_image in list(zip(self.systems, self.per_image, strict=True))[1:]:
            results = compare_scores(self.per_image[0], per_image)
            if not self.has_verdict:
                results = {name: without_verdict(result) for name, result in results.items()}
            comparisons.append({"of": self.systems[0].name, "against": system.name, "metrics": results})
        return {
            "images": len(self.images),
            "verdict": self.has_verdict,
            "variants": self.scores[0]["variants"],
            "tokenizer": self.scores[0]["tokenizer"],
            "systems": systems,
            "comparisons": comparisons,
        }

    def _interval(self, per_image: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return the 95 % bootstrap interval, over images, of the metric by which images are ordered."""
        scores = per_image[self.ordering]
        result = compare_scores({self.ordering: scores}, {self.ordering: [0.0] * len(scores)})[self.ordering]
        return {"metric": self.ordering, "low": result["low"], "high": result["high"]}

    def most_different(self) -> list[int]:
        """Return the indices of all images, those first whose captions have the most different scores."""
        columns = [scores[self.ordering] for scores in self.per_image]
        spreads = [max(values) - min(values) for values in zip(*columns, strict=True)]
        texts = [len({matched.predictions[place] for matched in self.matched}) for place in range(len(spreads))]
        return sorted(range(len(spreads)), key=lambda place: (-spreads[place], -texts[place]))

    def page(self, rows: Dataset) -> str:
        """Return a self-contained HTML page of images with the captions of each system.

        Args:
            rows: the rows that were captioned.
        """
        places = {image: place for place, image in enumerate(rows["image_id"])}
        name = self.ordering
        order = self.most_different()[:PAGE_IMAGES]
        sections = []
        for place in order:
            image = self.images[place]
            captions = [
                {"system": system.name, "text": matched.predictions[place], "score": f"{scores[name][place]:.3f}"}
                for system, matched, scores in zip(self.systems, self.matched, self.per_image, strict=True)
            ]
            address = data_address(rows[places[image]].get(IMAGE)) if IMAGE in rows.column_names else None
            references = self.matched[0].references[place]
            sections.append({"name": image, "image": address, "captions": captions, "references": references})
        text = files("hf_captioners.hub_cards").joinpath(TEMPLATE).read_text(encoding="utf-8")
        template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(text)
        facts = {"metrics": self.metrics, "metric": name, "left": len(self.images) - len(order)}
        return template.render(figures=self.figures, sections=sections, **facts)

    def table(self) -> str:
        """Return the results as a table in plain text."""
        figures = self.figures
        columns = [*self.metrics, "distinct", "length", "cpu_seconds"]
        width = max(len(system["name"]) for system in figures["systems"])
        lines = [f"{figures['images']:,} images, tokenizer {figures['tokenizer']}"]
        lines.append(" " * width + "".join(f"{name:>12}" for name in columns))
        for system in figures["systems"]:
            cells = [f"{system[name]:12.4f}" if name in system else f"{'-':>12}" for name in columns]
            lines.append(f"{system['name']:<{width}}{''.join(cells)}")
        for system in figures["systems"]:
            bounds = system["interval"]
            interval = f"{bounds['low']:.4f} to {bounds['high']:.4f}"
            lines.append(f"{system['name']:<{width}}  {bounds['metric']}, 95 % interval: {interval}")
        width = max(map(len, self.metrics))
        for comparison in figures["comparisons"]:
            how = "paired bootstrap over images, means of the scores per image"
            lines += ["", f"{comparison['of']} against {comparison['against']} ({how}):"]
            lines += [f"{name:<{width}}  {sentence(result)}" for name, result in comparison["metrics"].items()]
        if not figures["verdict"]:
            lines += ["", too_few(figures["images"])]
        for system in figures["systems"]:
            note = system["trained_on"]
            text = "which of these images it was trained on is not known" if note == "unknown" else note
            lines.append(f"{system['name']}: {text}" + (", unverified" if system.get("unverified") else ""))
        return "\n".join(lines)


def too_few(images: int) -> str:
    """Return the message that there are too few images for a significance test."""
    return f"{images:,} images are too few for a verdict, expected {MIN_IMAGES} or more."


def without_verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison without its p-value and significance."""
    return {name: result[name] for name in ("difference", "low", "high")}


def sentence(result: Mapping[str, Any]) -> str:
    """Return a comparison as one line of text: difference, interval and significance."""
    text = f"{result['difference']:+9.4f}  95 % interval {result['low']:+.4f} to {result['high']:+.4f}"
    if "p_value" not in result:
        return text
    return f"{text}, p = {result['p_value']:.4f}: {'significant' if result['significant'] else 'not significant'}"


def data_address(image: PIL.Image.Image | None) -> str | None:
    """Return a small JPEG copy of an image as a data URL."""
    if image is None:
        return None
    small = image.convert("RGB")
    small.thumbnail((PAGE_SIDE, PAGE_SIDE))
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()
