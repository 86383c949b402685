"""Model cards for trained captioners: facts collected during the run and written at every save."""

import dataclasses
import enum
import os
import platform
import re
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from hf_captioners._version import __version__
from hf_captioners.data.schema import REGIONS
from hf_captioners.hub.card_facts import DataFacts, EvaluationFacts, PublishedFacts, SampleFacts, TrainingFacts
from hf_captioners.hub.cards import CARD, make_card, merge_into_card
from hf_captioners.output_files import atomic_file
from hf_captioners.processing.image_reading import read_image

from .adapters import describe_adapter
from .images import CaptionedImages
from .instructed_encoding import InstructedEncoder
from .streams import StreamedPairs

logger = logging.get_logger(__name__)

SAMPLES = 5
SAMPLE_SIDE = 384  # pixels; longer side of the copies that stand next to the card
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "timm", "peft")
# Arguments left out of the card: they describe local paths and logging, not how the model was trained.
LEFT_OUT = re.compile(
    r"output_dir|feature_cache_(dir|gb)|logging_.*|log_.*|hub_.*|push_to_hub|report_to|run_name|project|trackio_.*|disable_tqdm"
    r"|do_(train|eval|predict)|.*_token|local_rank|ddp_.*|fsdp.*|deepspeed|accelerator_config|parallelism_config|debug"
    r"|greater_is_better|save_.*|eval_.*|load_best_model_at_end|resume_from_checkpoint|dataloader_.*|use_cpu|skip_.*"
    r"|remove_unused_columns|include_.*|label_names|ignore_data_skip|past_index|batch_eval_metrics|generation_config"
    r"|predict_with_generate|generation_max_length|sortish_sampler|torch_empty_cache_steps|average_tokens_.*"
    r"|(gradient|activation)_checkpointing.*"
)
IMPORTANT = (
    "seed",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "weight_decay",
    "max_grad_norm",
    "label_smoothing_factor",
    "seed",
    "data_seed",
    "bf16",
    "fp16",
    "captions_per_image",
    "max_caption_tokens",
    "early_stopping_patience",
    "generation_num_beams",
    "generation_max_new_tokens",
)


class CardWriter(TrainerCallback):
    """Callback that records facts of a run and writes the model card next to the weights.

    Attributes:
        saved_step: the step of the weights in the model, where it is not the last step.
        evaluations: evaluations by step and name (`eval`).
        samples: by file name of a small copy of an evaluation image, its data set and row.
        reproduces: the published row that the run reproduces, with the measured metrics.
        changed_data: changes of the data while the run was interrupted, as sentences.
        shows_images: whether the card shows its sample images; a push without them leaves this False.
    """

    def __init__(self) -> None:
        self.saved_step: int | None = None
        self.evaluations: dict[int, dict[str, EvaluationFacts]] = {}
        self.samples: dict[str, tuple[CaptionedImages, int]] = {}
        self.reproduces: PublishedFacts | None = None
        self.changed_data: list[str] = []
        self.shows_images = False
        self._began: float | None = None
        self._seconds: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the timer, unless the run resumes from a checkpoint: then the total time is unknown."""
        self.saved_step = None
        self._began = time.monotonic() if state.global_step == 0 else None
        self._seconds = None

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop the timer, so that repeated saves write the same card."""
        self._seconds, self._began = self.seconds, None

    @property
    def seconds(self) -> float | None:
        """Duration of the run so far in seconds; None if unknown."""
        return self._seconds if self._began is None else round(time.monotonic() - self._began, 1)

    def note_evaluation(
        self,
        step: int,
        name: str,
        rows: Dataset,
        images: CaptionedImages,
        captions: list[str],
        figures: dict[str, float],
        generation: dict[str, Any],
        visual_scores: Callable[[int], list[tuple[str, float]]],
    ) -> None:
        """Record the metrics of an evaluation for the card.

        Args:
            step: the training step.
            name: of the evaluation, such as `eval`.
            rows: the data set.
            images: its rows as they were captioned.
            captions: the generated captions.
            figures: metrics of the captions, with `conditions` if they are a `MetricResult`.
            generation: generation settings.
            visual_scores: returns the scored words of a row's caption; none for captioners without scores.
        """
        samples = [
            SampleFacts(
                image=images.image_ids[row],
                file=self._note_image(name, images, row),
                caption=captions[row],
                references=list(images.captions[row]),
                visual_scores=visual_scores(row),
            )
            for row in range(min(SAMPLES, len(images)))
        ]
        conditions = getattr(figures, "conditions", {})
        self.evaluations.setdefault(step if self.saved_step is None else self.saved_step, {})[name] = EvaluationFacts(
            data=data_facts(rows, images.captions),
            figures=dict(figures),
            generation={key: value for key, value in generation.items() if value is not None and is_plain(value)},
            samples=samples,
            **conditions,
        )

    def _note_image(self, name: str, images: CaptionedImages, row: int) -> str | None:
        """Record a sample image for the card; return the file name of its copy, None for stored regions."""
        if images.image_column == REGIONS:
            return None
        name = re.sub(r"\W", "_", name)
        file = f"sample_{name}_{row + 1}.jpg"
        self.samples[file] = images, row
        return file

    def write(self, trainer: Any, directory: Path) -> str | None:
        """Write `card_facts.json`, `README.md` and small copies of the sample images.

        They go into the directory of a saved model and into the output directory. The card is rendered once. A card
        that cannot be written does not stop training: a warning is logged.

        Args:
            trainer: the trainer, whose weights were saved.
            directory: where they were saved.

        Returns:
            The rendered card, for a push; None if it could not be written.
        """
        places = dict.fromkeys((directory, Path(str(trainer.args.output_dir))))
        try:
            facts = self.facts(trainer)
            for place in places:
                facts.save(place)
                self._write_samples(place)
            card = make_card(directory, trainer.public_name, self.shows_images)
            for place in places:
                merge_into_card(place / CARD, card)
        except Exception as error:
            logger.warning(f"The card in {directory} was not written: {type(error).__name__}: {error}")
            return None
        return card

    def _write_samples(self, place: Path) -> None:
        for file, (images, row) in self.samples.items():
            write_small_copy(images.rows[row][images.image_column], place / file)

    def facts(self, trainer: Any) -> TrainingFacts:
        """Return the facts recorded so far."""
        args, state = trainer.args, trainer.state
        step = state.global_step or None if self.saved_step is None else self.saved_step
        reported, other = reported_arguments(args)
        if isinstance(encoder := getattr(trainer, "encoder", None), InstructedEncoder):
            reported |= encoder.settings()
        evaluations = self.evaluations.get(step or 0, {})
        kept = list(evaluations.values())
        if step is not None and not evaluations.keys() - {"test"}:  # evaluated before the run was resumed
            earlier = TrainingFacts.load(Path(str(args.output_dir), f"checkpoint-{step}"))
            kept = [*(earlier.evaluations if earlier else []), *kept]
        return TrainingFacts(
            data=training_data_facts(trainer.train_dataset),
            evaluations=kept,
            reproduces=self.reproduces,
            language=args.language,
            licence=args.license,
            arguments=reported,
            other_arguments=other,
            log=training_log(state.log_history),
            saved_step=step,
            seconds=self.seconds,
            hardware=hardware(args.device),
            processes=args.world_size,
            versions=versions(),
            started_from=started_from(trainer.base_model.config),
            adapter=describe_adapter(trainer.model),
            changed_data=self.changed_data,
        )


def write_small_copy(image: Any, path: Path) -> None:
    """Write an image, or the first view of a study, as a small JPEG without metadata."""
    small = read_image(image[0] if isinstance(image, list) else image)
    small.info.clear()
    small.thumbnail((SAMPLE_SIDE, SAMPLE_SIDE))
    with atomic_file(path, "wb") as file:
        small.save(file, "JPEG")


def training_data_facts(items: Any) -> DataFacts:
    """Return the card's description of the training data; streams have no counts."""
    if items is None:
        return DataFacts()
    if isinstance(items, StreamedPairs):
        return dataclasses.replace(data_facts(items.stream, []), images=None, captions=None, of_images=None)
    return data_facts(items.images.rows, items.images.captions)


def data_facts(rows: Dataset, captions: list[list[str]]) -> DataFacts:
    """Return the card's description of a data set and of the part used."""
    info, split = rows.info, None if rows.split is None else str(rows.split)
    whole = (info.splits or {}).get(re.sub(r"\[.*", "", split)) if split else None
    name = info.dataset_name.removeprefix("captions_") if info.dataset_name else None
    return DataFacts(
        name=name,
        split=split,
        images=len(captions),
        captions=sum(map(len, captions)),
        of_images=whole.num_examples if whole is not None and whole.num_examples > len(captions) else None,
        licence=info.license or None,
        citation=info.citation or None,
        homepage=info.homepage or None,
        description=info.description or None,
    )


def training_log(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one log entry per evaluated step: the metrics and the latest training loss."""
    entries: dict[int, dict[str, Any]] = {}
    train_loss: float | None = None
    for entry in history:
        train_loss = entry.get("loss", train_loss)
        figures = {
            name.removeprefix("eval_"): entry[name]
            for name in ("eval_loss", "eval_bleu_4", "eval_cider_d")
            if name in entry
        }
        if figures and entry["step"] not in entries:
            loss = {} if train_loss is None else {"train_loss": train_loss}
            place = {name: entry[name] for name in ("step", "epoch") if name in entry}  # no epoch outside of training
            entries[entry["step"]] = place | loss | figures
    return list(entries.values())


def reported_arguments(args: TrainingArguments) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the training arguments for the card: important ones and all that differ from their defaults."""
    reported, other = {}, {}
    for field in dataclasses.fields(args):
        value = plain(getattr(args, field.name))
        default = None if field.default is dataclasses.MISSING else plain(field.default)
        if LEFT_OUT.fullmatch(field.name) or not is_plain(value):
            continue
        if value != default and field.default is not dataclasses.MISSING:
            reported[field.name] = value
        elif field.name in IMPORTANT and value is not None:
            other[field.name] = value
    return reported, other


def plain(value: Any) -> Any:
    """Return the value of an enumeration member; other objects unchanged."""
    return value.value if isinstance(value, enum.Enum) else value


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, string, bool, None, or a sequence of these."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def hardware(device: torch.device) -> str:
    """Return the name of the training device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple MPS"
    return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"


def versions() -> dict[str, str]:
    """Return the versions of this library and its dependencies."""
    versions_by_name = {"hf-captioners": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions_by_name[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions_by_name


def started_from(config: Any) -> list[str]:
    """Return the Hub names of what training started from, local paths omitted: the captioner, or else its parts."""
    parts = [config, getattr(config, "text_config", None), getattr(config, "vision_config", None)]
    names = [getattr(part, "_name_or_path", "") for part in parts]
    found = [
        name
        for name in dict.fromkeys(names)
        if name and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists()
    ]
    return found[:1] if names[0] in found else found
