"""Training of an attribute detector on the words of captions, and its evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset as ArrowDataset
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging

from hf_captioners.data.schema import IMAGE
from hf_captioners.features.agreement import require_own_features
from hf_captioners.loading import load_vision_part, read_vision_config
from hf_captioners.metrics.retrieved_words import word_metrics
from hf_captioners.modeling.modeling_attribute_detector import AttributeDetectorModel
from hf_captioners.output_files import only_run_in, require_writable_folder
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.vocabulary import attribute_labels, attribute_words

from .collator import stack_features
from .data_arguments import DataArguments, load_training_data
from .images import CaptionedImages
from .progress import Say, report_progress
from .starting import MISSING_VISION_MODEL

logger = logging.get_logger(__name__)


@dataclass
class AttributeDetectorArguments:
    """Arguments of an attribute detector.

    Args:
        vision_model: a vision model, see `load_vision_part`. None: a detector of stored features.
        image_size: see `load_vision_part`.
        vision_grid_size: see `CaptioningConfig`.
        num_words: W: the most frequent words of the training captions (Entangled Transformer: 1,000).
        hidden_sizes: see `AttributeDetectorConfig`.
        dropout: see `AttributeDetectorConfig`.
    """

    vision_model: str | None = None
    image_size: int | None = None
    vision_grid_size: int | None = None
    num_words: int = 1000
    hidden_sizes: list[int] = field(default_factory=list)
    dropout: float = 0.5


class LabelledImages(Dataset):
    """Data set of images, or stored features, labelled with the words of their captions.

    Args:
        rows: see `CaptionedImages`; one view per row.
        words: the words of the detector.
        image_processor: prepares images; None for stored features.

    Raises:
        ValueError: a row has several views.
    """

    def __init__(self, rows: ArrowDataset, words: Sequence[str], image_processor: Any = None) -> None:
        self.images = CaptionedImages(rows)
        if self.images.features is None and self.images.image_column != IMAGE:
            raise ValueError(
                f"Rows with the column `{self.images.image_column}` are not read by an attribute detector: load one "
                "view per row with max_views=1, or pass stored features."
            )
        self.labels = attribute_labels(self.images.captions, words)
        self.image_processor = image_processor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return an image with its labels `[W]`."""
        return {**self.images[row], "labels": self.labels[row]}

    def collate(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the batch of images or regions with labels `[B, W]`."""
        labels = torch.from_numpy(np.stack([item["labels"] for item in items]))
        if "region_features" in items[0]:
            regions = stack_features(items)
            return {name: regions[name] for name in ("region_features", "region_mask")} | {"labels": labels}
        images = self.image_processor([item[IMAGE] for item in items], return_tensors="pt")
        return {**images, "labels": labels}


def new_detector(
    arguments: AttributeDetectorArguments, words: Sequence[str], region_feature_size: int | None
) -> tuple[AttributeDetectorModel, CaptioningImageProcessor | None]:
    """Return an untrained detector, and its image processor if it reads images.

    Args:
        arguments: sizes, and the vision model.
        words: its attributes.
        region_feature_size: width of stored features; None for images.
    """
    fields: dict[str, Any] = {"words": list(words), "hidden_sizes": arguments.hidden_sizes}
    fields |= {"dropout": arguments.dropout, "vision_grid_size": arguments.vision_grid_size}
    if region_feature_size is not None:
        fields |= {"region_feature_size": region_feature_size}
        return AttributeDetectorModel.from_pretrained_parts(**fields), None
    vision, image_processor = load_vision_part(str(arguments.vision_model), arguments.image_size)
    return AttributeDetectorModel.from_pretrained_parts(vision, **fields), image_processor


@torch.no_grad()
def start_from_frequencies(detector: AttributeDetectorModel, labels: np.ndarray, regions: int) -> None:
    """Initialise the output biases to the log-odds of each word's frequency in the training images.

    Args:
        detector: a new detector.
        labels: `[N, W]` bool, of the training images.
        regions: number of regions of an image, over which noisy-OR multiplies.
    """
    frequency = torch.from_numpy(labels.mean(0)).clamp(1e-4, 1 - 1e-4)
    of_region = 1 - (1 - frequency) ** (1 / regions)
    detector.network.score.bias.copy_(of_region.logit())
    detector.network.score.weight.mul_(0.1)  # the first scores of all images lie around these


def train_attribute_detector(
    arguments: AttributeDetectorArguments,
    data: DataArguments,
    training: TrainingArguments,
    resume: bool = False,
    say: Say | None = None,
) -> dict[str, float]:
    """Train an attribute detector and save it in `output_dir`.

    Args:
        arguments: sizes, and the vision model.
        data: the data set, with images or stored features.
        training: arguments of the trainer of transformers; `attribute_training_arguments` makes them.
        resume: resume from the last checkpoint in `output_dir`, if any.
        say: receives lines on what the run does; None: the entries of transformers' log are printed.

    Returns:
        The metrics of the evaluation images, see `word_metrics`.

    Raises:
        ValueError: an argument has a wrong value, or images are missing.
        FileExistsError: `output_dir` holds a run, and `resume` is not set.
    """
    output = Path(str(training.output_dir))
    require_writable_folder(output)
    with only_run_in(output, training.process_index == 0):
        checkpoint = get_last_checkpoint(str(output))
        if checkpoint is not None and not resume:
            raise FileExistsError(
                f"{output} holds a run already ({checkpoint}). Pass `resume` to resume it, or a different "
                "`output_dir`."
            )
        if arguments.vision_model is not None:
            read_vision_config(arguments.vision_model)  # before images are read
        elif data.features is None:
            raise ValueError(MISSING_VISION_MODEL)
        rows, evaluation = load_training_data(data, training.seed)
        set_seed(training.seed)
        words = attribute_words(
            (caption for captions in rows["captions"] for caption in captions), arguments.num_words
        )
        size = data.regions_of("train").feature_size if data.features is not None else None
        detector, image_processor = new_detector(arguments, words, size)
        train_images, validation_images = (LabelledImages(part, words, image_processor) for part in (rows, evaluation))
        if data.features is not None:
            require_own_features(detector, image_processor, data.regions_of("train"))
        with torch.no_grad():
            batch = train_images.collate([train_images[0]])
            batch.pop("labels")
            regions = detector(**batch).region_logits.shape[1]
        start_from_frequencies(detector, train_images.labels, regions)
        trainer = Trainer(
            detector,
            training,
            train_dataset=train_images,
            eval_dataset=validation_images,
            data_collator=train_images.collate,
            compute_metrics=lambda results: dict(word_metrics(results.predictions, results.label_ids.astype(bool))),
            preprocess_logits_for_metrics=lambda outputs, labels: outputs[0],  # the probabilities
        )
        if say is not None and trainer.is_world_process_zero():
            say(
                f"{len(words):,} words; training on {len(train_images):,} images with {regions} regions each, "
                f"evaluated on {len(validation_images):,} images. The detector will be in {output}."
            )
            report_progress(trainer, say)
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        if image_processor is not None:
            image_processor.save_pretrained(output)
        metrics = trainer.evaluate()
        trainer.save_metrics("eval", metrics)
    return {name.removeprefix("eval_"): value for name, value in metrics.items()}


def attribute_training_arguments(output_dir: str, **fields: Any) -> TrainingArguments:
    """Return trainer arguments that evaluate after every epoch and keep the best detector."""
    kept: dict[str, Any] = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "mean_average_precision",
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "report_to": [],
        "logging_steps": 50,
    }
    return TrainingArguments(output_dir, **kept | fields)
