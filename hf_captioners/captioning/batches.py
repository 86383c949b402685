"""Captions of many images: decoded, captioned in batches, and written to a file that survives an interruption."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

from hf_captioners.features.extraction import UNRELATED, weights_digest
from hf_captioners.loading import load_captioner
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline
from hf_captioners.processing.image_reading import read_image

from .caption_files import CaptionFile
from .ensemble import load_ensemble
from .image_list import views_of


class UnreadableImage(NamedTuple):
    """An image that cannot be read.

    Args:
        image: its path.
        reason: the error.
    """

    image: str
    reason: str


class CaptionedBatch(NamedTuple):
    """The captions of a batch of images.

    Args:
        records: for each image `image` (the path), `caption` and `score`.
        unreadable: images of the batch that cannot be read.
    """

    records: list[dict[str, Any]]
    unreadable: list[UnreadableImage]


def load_pipeline(
    model: str | Sequence[str],
    device: str | None = None,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    weights: Sequence[float] | None = None,
) -> ImageCaptioningPipeline:
    """Load the captioning pipeline of a model, or of an ensemble of models.

    Args:
        model: name or directory of a captioner, or several ones, which become a `CaptionerEnsemble`.
        device: for example `"cuda:0"`. None: an accelerator if there is one.
        dtype: number format of the weights, for example `"bfloat16"`.
        trust_remote_code: run code from the repository of the model.
        weights: of the captioners of an ensemble; default: equal ones.

    Raises:
        ValueError: a model is no captioner, or the captioners do not go together.
        OSError: it cannot be found or read.
    """
    sources = [model] if isinstance(model, str) else list(model)
    options = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    if len(sources) > 1 or weights is not None:
        captioner, processor = load_ensemble(sources, weights, **options)
    else:
        captioner, processor = load_captioner(sources[0], **options)
    return ImageCaptioningPipeline(model=captioner, processor=processor, device=device)


def caption_batches(
    pipeline: ImageCaptioningPipeline, images: Sequence[str], batch_size: int = 16, **options: Any
) -> Iterator[CaptionedBatch]:
    """Caption images in batches.

    Args:
        pipeline: see `load_pipeline`.
        images: paths, see `find_images`; several paths with a tab between them are the views of one study, unless a
            file has the whole name.
        batch_size: images per batch.
        **options: arguments of the pipeline, for example `num_beams`, `max_new_tokens`, `prompt`.

    Yields:
        The captions of each batch.

    Example:
        ```python
        from hf_captioners.captioning.batches import caption_batches, load_pipeline
        from hf_captioners.captioning.image_list import find_images

        for batch in caption_batches(load_pipeline("my_captioner"), find_images(["holiday"]), num_beams=3):
            for record in batch.records:
                print(record["image"], record["caption"], record["score"])
        ```
    """
    require_batch_size(batch_size)
    for first in range(0, len(images), batch_size):
        read, unreadable = read_images(images[first : first + batch_size])
        try:
            results = (
                pipeline(list(read.values()), batch_size=len(read), return_scores=True, **options) if read else []
            )
        except Exception as error:
            faults = preparation_faults(pipeline, read)
            if not faults:
                raise _fault_of(pipeline, error) from error
            unreadable += faults
            for fault in faults:
                del read[fault.image]
            results = (
                pipeline(list(read.values()), batch_size=len(read), return_scores=True, **options) if read else []
            )
        records = [
            {"image": name, "caption": best[0]["generated_text"], "score": best[0]["score"]}
            for name, best in zip(read, results, strict=True)
        ]
        yield CaptionedBatch(records, unreadable)


def _fault_of(pipeline: ImageCaptioningPipeline, error: Exception) -> Exception:
    """Return the error of captioning images that are whole, with the name of the captioner."""
    name = pipeline.model.name_or_path
    if isinstance(error, (ImportError, torch.OutOfMemoryError)) or name in str(error):
        return error
    reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return ValueError(
        f"The captioner {name} cannot caption images that are whole: {' '.join(reason.split())[:500]}. If the options "
        "are right, its configuration or weights may be damaged: copy or download it again."
    )


def preparation_faults(pipeline: ImageCaptioningPipeline, read: Mapping[str, Any]) -> list[UnreadableImage]:
    """Return the decoded images that the pipeline cannot prepare, for example because one side is much longer."""
    faults = []
    for name, image in read.items():
        try:
            pipeline.preprocess(image)
        except Exception as error:
            faults.append(UnreadableImage(name, f"The image {name} cannot be prepared: {error}"))
    return faults


def job_settings(
    pipeline: ImageCaptioningPipeline, images: Sequence[str], shard: str | None = None, **options: Any
) -> dict[str, Any]:
    """Return what the captions of a job depend on, for `CaptionFile`.

    Args:
        pipeline: see `load_pipeline`.
        images: paths of all images of the job.
        shard: the part of the job.
        **options: arguments of the pipeline.
    """
    names = hashlib.sha256(json.dumps(list(images)).encode()).hexdigest()
    model, tokenizer = pipeline.model, pipeline.tokenizer
    parts = [
        pipeline.image_processor.to_dict(),
        model.generation_config.to_dict(),
        sorted(tokenizer.get_vocab().items()),
    ]
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    return {
        "model_digest": weights_digest(model, config, *parts)[:32],
        "dtype": str(model.dtype),
        "inputs": f"{len(images)} images, {names[:16]}",
        "shard": shard,
        **options,
    }


def require_batch_size(batch_size: int) -> None:
    """Check a batch size.

    Raises:
        ValueError: it is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"`--batch_size` is {batch_size}, expected at least 1.")


def read_images(paths: Sequence[str]) -> tuple[dict[str, Any], list[UnreadableImage]]:
    """Decode images, or the views of studies.

    Args:
        paths: see `caption_batches`.

    Returns:
        What could be decoded, by path: an image, or a list of the views; and what could not.
    """
    read: dict[str, Any] = {}
    unreadable = []
    for path in paths:
        try:
            views = [read_image(view) for view in views_of(path)]
            read[path] = views if len(views) > 1 else views[0]
        except (OSError, ValueError) as error:
            unreadable.append(UnreadableImage(path, str(error)))
    return read, unreadable


def caption_into_file(
    file: CaptionFile, pipeline: ImageCaptioningPipeline, images: Sequence[str], batch_size: int = 16, **options: Any
) -> list[UnreadableImage]:
    """Caption the images that a file does not have yet, and finish the file. An interrupted call can be resumed.

    Args:
        file: the output; it is finished and closed.
        pipeline: see `load_pipeline`.
        images: paths of all images.
        batch_size: images per batch.
        **options: arguments of the pipeline.

    Returns:
        Images that cannot be read, those of earlier calls included, which a resumed call passes over.

    Raises:
        ValueError: the file has captions of other images.
        OSError: the disk is full.
    """
    try:
        if unknown := sorted(file.done - set(images)):
            raise ValueError(
                f"{file.working} has {len(unknown):,} images that are no inputs of this job, such as {unknown[0]}. "
                "Pass the same inputs to resume the job, or --overwrite to begin it again."
            )
        batches = [images[first : first + batch_size] for first in range(0, len(images), batch_size)]
        # A batch of which a part is done is computed as a whole: numbers depend a little on the size of the batch.
        left = [image for batch in batches if not file.done.issuperset(batch) for image in batch]
        with tqdm(total=len(left), desc="captions", unit="image", disable=None) as progress:
            for batch in caption_batches(pipeline, left, batch_size, **options):
                file.add(
                    [record for record in batch.records if record["image"] not in file.done],
                    [fault for fault in batch.unreadable if fault.image not in file.done],
                )
                progress.update(len(batch.records) + len(batch.unreadable))
        file.finish()
    finally:
        file.close()
    return [UnreadableImage(*fault) for fault in file.skipped.items()]
