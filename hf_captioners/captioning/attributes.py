"""Detected attributes of many images, written to a file that survives an interruption, and their evaluation."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoImageProcessor, AutoModel

from hf_captioners.features.extraction import UNRELATED, weights_digest
from hf_captioners.features.feature_store import FeatureStore
from hf_captioners.features.region_source import RegionSource
from hf_captioners.loading import reading
from hf_captioners.modeling.layers_attributes import top_attributes
from hf_captioners.processing.processing_captioning import batch_regions
from hf_captioners.work_progress import progress_of

from .batches import UnreadableImage, read_images, require_batch_size
from .caption_files import CaptionFile

MODEL_TYPE = "captioning_attribute_detector"


class LoadedDetector(NamedTuple):
    """An attribute detector and its image processor.

    Args:
        model: an `AttributeDetectorModel` in evaluation mode.
        image_processor: prepares images; None for a detector of stored features.
    """

    model: Any
    image_processor: Any

    def probabilities(self, inputs: Mapping[str, Tensor]) -> np.ndarray:
        """Return the probability of every word, `[B, W]`."""
        with torch.no_grad():
            on_device = {name: values.to(self.model.device) for name, values in inputs.items()}
            return self.model(**on_device).probabilities.float().cpu().numpy()

    def of_images(self, images: Sequence[Any]) -> np.ndarray:
        """Return the attribute probabilities `[B, W]` of decoded images.

        Raises:
            ValueError: the detector reads stored features only.
        """
        if self.model.vision is None:
            raise ValueError(
                "This attribute detector has no vision model: it was trained on stored features. Pass `features`, "
                "or train a detector with `vision_model`."
            )
        return self.probabilities(dict(self.image_processor(list(images), return_tensors="pt")))

    def of_regions(self, regions: Sequence[Any]) -> np.ndarray:
        """Return the attribute probabilities `[B, W]` of images from their stored region features."""
        batch = batch_regions([entry.features for entry in regions])
        return self.probabilities({name: torch.from_numpy(values) for name, values in batch.items()})


def load_attribute_detector(source: str, device: str | None = None) -> LoadedDetector:
    """Load an attribute detector by name or directory.

    Args:
        source: what `hf-captioners attributes train` wrote.
        device: for example `"cuda:0"`. None: the CPU.

    Raises:
        ValueError: it is another kind of model.
        OSError: it cannot be found or read.
    """
    with reading(source):
        model = AutoModel.from_pretrained(source).eval()
    if model.config.model_type != MODEL_TYPE:
        raise ValueError(
            f"{source} is a {model.config.model_type!r} model, expected an attribute detector. Train one: "
            "hf-captioners attributes train."
        )
    processor = None
    if model.vision is not None:
        with reading(source):
            processor = AutoImageProcessor.from_pretrained(source)
    return LoadedDetector(model.to(device or "cpu"), processor)


def require_extractor(detector: LoadedDetector, source: RegionSource) -> None:
    """Check that features have the extractor and size that the detector was trained on.

    Raises:
        ValueError: they are.
    """
    config = detector.model.config
    if isinstance(source, FeatureStore) and config.region_extractor is not None:
        source.description.check_extractor(config.region_extractor["name"], config.region_extractor["revision"])
    if source.feature_size != config.region_feature_size:
        raise ValueError(
            f"{source.name} has {source.feature_size} features per region, the attribute detector reads "
            f"{config.region_feature_size} (`region_feature_size`)."
        )


def attribute_records(
    detector: LoadedDetector, names: Sequence[str], probabilities: np.ndarray, top_k: int, threshold: float
) -> list[dict[str, Any]]:
    """Return a record for each image: `image`, `attributes` (words, most probable first) and their `probabilities`."""
    words = detector.model.config.words
    selected = top_attributes(torch.from_numpy(probabilities), top_k, threshold)
    return [
        {
            "image": name,
            "attributes": [words[index] for index, real in zip(ids, mask, strict=True) if real],
            "probabilities": [round(value, 4) for value, real in zip(values, mask, strict=True) if real],
        }
        for name, ids, mask, values in zip(names, *(part.tolist() for part in selected), strict=True)
    ]


def detection_batches(
    detector: LoadedDetector,
    names: Sequence[str],
    source: RegionSource | None = None,
    batch_size: int = 16,
    top_k: int = 10,
    threshold: float = 0.0,
) -> Iterator[tuple[list[dict[str, Any]], list[UnreadableImage]]]:
    """Detect the attributes of images in batches.

    Args:
        detector: see `load_attribute_detector`.
        names: paths of images, or ids of stored features.
        source: the stored features. None: images are read.
        batch_size: images per batch.
        top_k: at most this many attributes per image.
        threshold: least probability.

    Yields:
        The records of a batch, see `attribute_records`, and its images that cannot be read.
    """
    require_batch_size(batch_size)
    for first in range(0, len(names), batch_size):
        batch = list(names[first : first + batch_size])
        unreadable: list[UnreadableImage] = []
        if source is not None:
            probabilities = detector.of_regions([source[name] for name in batch])
        else:
            read, unreadable = read_images(batch)
            if not read:
                yield [], unreadable
                continue
            batch, probabilities = list(read), detector.of_images(list(read.values()))
        yield attribute_records(detector, batch, probabilities, top_k, threshold), unreadable


def detection_settings(detector: LoadedDetector, names: Sequence[str], **options: Any) -> dict[str, Any]:
    """Return the settings of a detection job, which a resumed job must repeat; see `CaptionFile`."""
    model = detector.model
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    images = None if detector.image_processor is None else detector.image_processor.to_dict()
    digest = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()
    return {
        "detector": weights_digest(model, config, images)[:32],
        "inputs": f"{len(names)} images, {digest[:16]}",
        **options,
    }


def detect_into_file(
    file: CaptionFile,
    detector: LoadedDetector,
    names: Sequence[str],
    source: RegionSource | None = None,
    batch_size: int = 16,
    **options: Any,
) -> list[UnreadableImage]:
    """Detect the attributes of all images that are missing in an output file, and finish the file; resumable.

    Args:
        file: the output, a `.jsonl` file; it is finished and closed.
        detector, names, source, batch_size, **options: see `detection_batches`.

    Returns:
        Images that cannot be read, those of earlier calls included.

    Raises:
        OSError: the disk is full.
    """
    try:
        remaining = [name for name in names if name not in file.done]
        with progress_of("attributes", "image", len(remaining)) as progress:
            for records, unreadable in detection_batches(detector, remaining, source, batch_size, **options):
                file.add(records, unreadable)
                progress.update(len(records) + len(unreadable))
        file.finish()
    finally:
        file.close()
    return [UnreadableImage(*fault) for fault in file.skipped.items()]


def require_jsonl(path: Path) -> None:
    """Check that the output of attribute detection is a `.jsonl` file.

    Raises:
        ValueError: it is not `.jsonl`.
    """
    if path.suffix.lower() != ".jsonl":
        raise ValueError(f"`output` is {path}, expected a name that ends with .jsonl.")


def read_attributes(path: Path) -> dict[str, list[str]]:
    """Read the file that `attributes detect` wrote: the detected words of each image by the image's name.

    Raises:
        ValueError: a line is damaged, or has no list of words.
        FileNotFoundError: there is no such file.
    """
    attributes: dict[str, list[str]] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            record = None
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
            fields = record if isinstance(record, dict) else {}
            image, words = fields.get("image"), fields.get("attributes")
            are_words = isinstance(words, list) and all(isinstance(word, str) for word in words)
            if not isinstance(image, str) or not isinstance(words, list) or not are_words:
                raise ValueError(
                    f"{path}, line {number} is {line.strip()!r:.80}, expected "
                    '{"image": NAME, "attributes": [WORDS]} as `hf-captioners attributes detect` writes it.'
                )
            attributes[image] = words
    return attributes
