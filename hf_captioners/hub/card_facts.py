"""What a model card tells: facts of a checkpoint, and facts of its training. What is not known is None or empty."""

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

FACTS_FILE = "card_facts.json"
# Small copies of evaluation images, beside the card.
SAMPLE_IMAGE = re.compile(r"sample_\w+_\d+\.jpg")
MEDICAL = re.compile(r"x-?ray|radiolog|radiograph|\bmimic\b|chest", re.IGNORECASE)


@dataclass(kw_only=True)
class DataFacts:
    """A data set that the captioner was trained or evaluated on.

    Args:
        name: of the data set. split: of it.
        images, captions: how many were used.
        of_images: how many the split has, if fewer were used.
        licence, citation, homepage, description: as its source gives them.
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
    """One image of the evaluation.

    Args:
        image: its name. caption: what was written. references: what people wrote.
        file: a small copy of it beside the card; pushed only when that is asked for.
        visual_scores: the words of the caption, and how much each owes to the image (VisualGPT, section 5.6).
    """

    image: str | None = None
    file: str | None = None
    caption: str | None = None
    references: list[str] = field(default_factory=list)
    visual_scores: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """JSON knows no tuples."""
        self.visual_scores = [(word, score) for word, score in self.visual_scores]


@dataclass(kw_only=True)
class EvaluationFacts:
    """Figures on one data set.

    Args:
        data: what was captioned.
        figures: in natural units, by name (`cider_d`, `bleu_4`, ...).
        variants: what each figure is exactly, by the same names.
        tokenizer: of the captions that were compared.
        document_frequency: where the n-gram counts of CIDEr come from.
        generation: settings of the search.
        samples: the first images, in their order.
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
    """A row of a published table that a run was made to reproduce.

    Args:
        paper, table, row, regime: where it stands.
        published: figures in percent by the names of our metrics, each with its standard deviation or without.
        measured: the same of the runs with `seeds`: the mean in percent, and with several runs their deviation.
        seeds: of the runs.
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
        """The figures that are known on both sides."""
        return [name for name, figures in self.published.items() if figures and self.measured.get(name)]


@dataclass(kw_only=True)
class TrainingFacts:
    """What happened in a training run.

    Args:
        data: what was learnt from.
        evaluations: figures of the saved weights.
        reproduces: the published row beside which the figures are put.
        arguments: those that differ from their defaults; other_arguments: the rest of what matters.
        log: one entry a step that was evaluated: `step`, `epoch`, `loss` and figures.
        saved_step: the step of the saved weights.
        seconds: how long it took, if it was not interrupted.
        hardware: devices. processes: how many.
        versions: of libraries.
        started_from: names of the models that it started from.
        converted_from: name of the file of another program that the weights come from.
        licence: of the weights. language: of the captions, as `en`.
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
    converted_from: str | None = None
    licence: str | None = None
    language: str | None = None

    @property
    def has_training(self) -> bool:
        """Whether anything is known of a training run."""
        known = (self.arguments, self.other_arguments, self.log, self.hardware, self.seconds, self.versions)
        return any((self.data.images, self.data.name, *known))

    @property
    def is_medical(self) -> bool:
        """Whether the captions are of medical images."""
        every = [self.data, *(evaluation.data for evaluation in self.evaluations)]
        return any(MEDICAL.search(f"{data.name} {data.description}".replace("_", " ")) for data in every)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write `card_facts.json`, atomically."""
        path = Path(directory, FACTS_FILE)
        temporary = path.with_suffix(".tmp")
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> TrainingFacts | None:
        """Read `card_facts.json`; None if there is none.

        Raises:
            ValueError: it is not of this form.
        """
        path = Path(directory, FACTS_FILE)
        if not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
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
            raise ValueError(f"{path} has not the form that training writes ({error}). Remove it.") from error


def sample_images(directory: str | os.PathLike[str]) -> list[Path]:
    """Small copies of the evaluation images that lie beside the card of a checkpoint.

    Args:
        directory: of the checkpoint.

    Raises:
        ValueError: the facts cannot be read.
    """
    training = TrainingFacts.load(directory) or TrainingFacts()
    names = [sample.file or "" for evaluation in training.evaluations for sample in evaluation.samples]
    paths = [Path(directory, name) for name in names if SAMPLE_IMAGE.fullmatch(name)]
    return [path for path in paths if path.is_file()]


@dataclass(kw_only=True)
class CheckpointFacts:
    """What the files of a checkpoint say.

    Args:
        architecture: row of the table; None for a captioner of another library.
        model_type: key of its configuration.
        parameters: numbers in the weights.
        vision: type of the vision model; None if regions are read.
        image_size: height and width that images are brought to.
        generation: settings of the search that differ from plain greedy search.
        adapter_of: name of the captioner that this is an adapter of.
    """

    architecture: Architecture | None = None
    model_type: str | None = None
    parameters: int | None = None
    vision: str | None = None
    image_size: tuple[int, int] | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    adapter_of: str | None = None

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> CheckpointFacts:
        """Look into the files of a checkpoint."""
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
        )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _vision_name(config: dict[str, Any]) -> str | None:
    vision = config.get("vision_config") or {}
    return vision.get("architecture") or vision.get("model_type")  # timm's models have an architecture


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
