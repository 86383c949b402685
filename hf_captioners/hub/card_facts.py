"""Facts that a model card states about a checkpoint and its training. Unknown facts are None or empty."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open

from hf_captioners.architectures import ARCHITECTURES, Architecture
from hf_captioners.confidence.calibration import Calibration, NotCalibratedError
from hf_captioners.confidence.card_section import card_section
from hf_captioners.output_files import read_text_inside, write_text

FACTS_FILE = "card_facts.json"
# Thumbnails of evaluation images in the directory of the card.
SAMPLE_IMAGE = re.compile(r"sample_\w+_\d+\.jpg")
MEDICAL = re.compile(r"x-?ray|radiolog|radiograph|\bmimic\b|chest", re.IGNORECASE)


@dataclass(kw_only=True)
class DataFacts:
    """Name, split and size of a data set that the captioner was trained or evaluated on.

    Args:
        name: name of the data set.
        split: name of the split.
        images: number of images used.
        captions: number of captions used.
        of_images: number of images of the split, if only a part was used.
        licence, citation, homepage, description: as stated by the source of the data.
    """

    name: str | None = None
    split: str | None = None
    images: int | None = None
    captions: int | None = None
    of_images: int | None = None
    licence: str | None = None
    citation: str | None = None
    homepage: str | None = None
    description: str | None = None


@dataclass(kw_only=True)
class SampleFacts:
    """Sample of an evaluation that a card shows: image, caption and references.

    Args:
        image: name of the image.
        file: name of a thumbnail in the directory of the card; pushed only on request.
        caption: generated caption.
        references: reference captions.
        visual_scores: words of the caption with their visual scores (VisualGPT, section 5.6).
    """

    image: str | None = None
    file: str | None = None
    caption: str | None = None
    references: list[str] = field(default_factory=list)
    visual_scores: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Convert lists, as which JSON stores tuples, back to tuples."""
        self.visual_scores = [(word, score) for word, score in self.visual_scores]


@dataclass(kw_only=True)
class EvaluationFacts:
    """Metrics of an evaluation on one data set, and its settings.

    Args:
        data: the data set.
        figures: values in natural units, by metric (`cider_d`, `bleu_4`, ...).
        variants: exact variant of each metric, by the same names.
        tokenizer: tokenizer of hypotheses and references.
        document_frequency: source of the document frequencies of CIDEr.
        generation: generation settings.
        samples: the first images, in order.
    """

    data: DataFacts = field(default_factory=DataFacts)
    figures: dict[str, float] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    document_frequency: str | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    samples: list[SampleFacts] = field(default_factory=list)


@dataclass(kw_only=True)
class PublishedFacts:
    """Row of a published table that a run reproduces.

    Args:
        paper, table, row, regime: position of the row.
        published: published values in percent by metric, `[mean]` or `[mean, standard deviation]`.
        measured: measured values in the same form.
        seeds: seeds of the measured runs.
    """

    paper: str | None = None
    table: str | None = None
    row: str | None = None
    regime: str | None = None
    published: dict[str, list[float]] = field(default_factory=dict)
    measured: dict[str, list[float]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)

    @property
    def compared(self) -> list[str]:
        """Names of metrics that are both published and measured."""
        return [name for name, figures in self.published.items() if figures and self.measured.get(name)]


@dataclass(kw_only=True)
class TrainingFacts:
    """Facts about a training run: data, arguments, hardware, versions, metrics.

    Args:
        data: training data.
        evaluations: evaluations of the saved weights.
        reproduces: published row that the run reproduces.
        arguments: arguments that differ from their defaults.
        other_arguments: further reported arguments.
        log: one entry per evaluated step: `step`, `epoch`, `loss` and metrics.
        saved_step: step of the saved weights.
        seconds: duration, if the run was not interrupted.
        hardware: devices.
        processes: number of processes.
        versions: versions of libraries.
        started_from: names of the pretrained models.
        adapter: what kind of adapter was trained, in words; None: the captioner itself was trained.
        changed_data: changes of the data while the run was interrupted, as sentences.
        converted_from: file of the authors' program that the weights were converted from.
        vocabulary: which tokens were kept, if the vocabulary was trimmed, in words.
        licence: licence of the weights, an identifier of the Hub such as `apache-2.0`.
        language: language code of the captions, e.g. `en`.
    """

    data: DataFacts = field(default_factory=DataFacts)
    evaluations: list[EvaluationFacts] = field(default_factory=list)
    reproduces: PublishedFacts | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    other_arguments: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    saved_step: int | None = None
    seconds: float | None = None
    hardware: str | None = None
    processes: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    started_from: list[str] = field(default_factory=list)
    adapter: str | None = None
    changed_data: list[str] = field(default_factory=list)
    converted_from: str | None = None
    vocabulary: str | None = None
    licence: str | None = None
    language: str | None = None

    @property
    def has_training(self) -> bool:
        """True if any fact about a training run is known."""
        facts = (self.arguments, self.other_arguments, self.log, self.hardware, self.seconds, self.versions)
        return any((self.data.images, self.data.name, *facts))

    @property
    def is_medical(self) -> bool:
        """True if the captions are about medical images."""
        every = [self.data, *(evaluation.data for evaluation in self.evaluations)]
        return any(MEDICAL.search(f"{data.name} {data.description}".replace("_", " ")) for data in every)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the facts to `card_facts.json`, atomically."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        write_text(Path(directory, FACTS_FILE), text + "\n")

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> TrainingFacts | None:
        """Read the facts from `card_facts.json`; return None if the file is missing.

        Raises:
            ValueError: the file has a different form.
        """
        path = Path(directory, FACTS_FILE)
        if not path.exists():
            return None
        try:
            stored = json.loads(read_text_inside(path))
            evaluations = []
            for entry in stored.pop("evaluations", []):
                samples = [SampleFacts(**sample) for sample in entry.pop("samples", [])]
                data = DataFacts(**entry.pop("data", {}))
                evaluations.append(EvaluationFacts(**entry, data=data, samples=samples))
            data = DataFacts(**stored.pop("data", {}))
            row = stored.pop("reproduces", None)
            published = None if row is None else PublishedFacts(**row)
            return cls(**stored, data=data, evaluations=evaluations, reproduces=published)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} is not of the form that training writes ({error}). Delete the file.") from error


def sample_images(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the paths of the sample images' thumbnails in the directory of a checkpoint.

    Args:
        directory: directory of the checkpoint.

    Raises:
        ValueError: `card_facts.json` cannot be read.
    """
    training = TrainingFacts.load(directory) or TrainingFacts()
    names = [sample.file or "" for evaluation in training.evaluations for sample in evaluation.samples]
    paths = [Path(directory, name) for name in names if SAMPLE_IMAGE.fullmatch(name)]
    return [path for path in paths if path.is_file()]


@dataclass(kw_only=True)
class CheckpointFacts:
    """Facts about a checkpoint, read from its files.

    Args:
        architecture: the architecture; None for a captioner of a different library.
        model_type: `model_type` of the configuration.
        parameters: number of parameters.
        vision: type of the vision model; None if the captioner reads region features.
        image_size: height and width of the input.
        generation: default generation settings that differ from greedy search.
        adapter_of: name of the base captioner of an adapter.
        weights_license: terms of the weights, see `CaptioningConfig`.
        confidence: section about confidence in Markdown; empty without a calibration of these weights.
    """

    architecture: Architecture | None = None
    model_type: str | None = None
    parameters: int | None = None
    vision: str | None = None
    image_size: tuple[int, int] | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    adapter_of: str | None = None
    weights_license: dict[str, Any] = field(default_factory=dict)
    confidence: str = ""

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> CheckpointFacts:
        """Read the facts from the files of a checkpoint."""
        folder = Path(directory)
        config, generation, processor, adapter = (
            _json(folder / name)
            for name in ("config.json", "generation_config.json", "processor_config.json", "adapter_config.json")
        )
        model_type = config.get("model_type")
        rows = {row.model_type: row for row in ARCHITECTURES.values()}
        images = processor.get("image_processor") or _json(folder / "preprocessor_config.json")
        size = images.get("crop_size") if images.get("do_center_crop") else images.get("size")
        size = size if isinstance(size, dict) and {"height", "width"} <= size.keys() else None
        return cls(
            architecture=rows.get(model_type or ""),
            model_type=model_type,
            parameters=_count_parameters(folder),
            vision=_vision_name(config),
            image_size=(size["height"], size["width"]) if size else None,
            generation={
                name: generation[name]
                for name in ("num_beams", "max_new_tokens", "bookkeeping")
                if generation.get(name) is not None
            },
            adapter_of=adapter.get("base_model_name_or_path"),
            weights_license=terms if isinstance(terms := config.get("weights_license"), dict) else {},
            confidence=_confidence(folder),
        )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _confidence(folder: Path) -> str:
    try:
        return card_section(Calibration.load(folder))
    except (NotCalibratedError, FileNotFoundError):  # none, or that of weights which were trained further
        return ""


def _vision_name(config: dict[str, Any]) -> str | None:
    vision = config.get("vision_config") or {}
    return vision.get("architecture") or vision.get("model_type")  # timm models have an `architecture`


def _count_parameters(folder: Path) -> int | None:
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                count = 1
                for side in file.get_slice(name).get_shape():
                    count *= side
                total += count
    return total or None
