"""Captions of many images: decoded, captioned in batches, and written to a file that survives an interruption."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from hf_captioners.loading import load_captioner
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline
from hf_captioners.processing.image_reading import read_image

from .caption_files import CaptionFile
from .image_list import VIEW_SEPARATOR


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
    model: str, device: str | None = None, dtype: str = "auto", trust_remote_code: bool = False
) -> ImageCaptioningPipeline:
    """Load the captioning pipeline of a model.

    Args:
        model: name or directory of a captioner.
        device: for example `"cuda:0"`. None: an accelerator if there is one.
        dtype: number format of the weights, for example `"bfloat16"`.
        trust_remote_code: run code from the repository of the model.

    Raises:
        ValueError: the model is no captioner.
        OSError: it cannot be found or read.
    """
    captioner, processor = load_captioner(model, dtype=dtype, trust_remote_code=trust_remote_code)
    return ImageCaptioningPipeline(model=captioner, processor=processor, device=device)


def caption_batches(
    pipeline: ImageCaptioningPipeline, images: Sequence[str], batch_size: int = 16, **options: Any
) -> Iterator[CaptionedBatch]:
    """Caption images in batches.

    Args:
        pipeline: see `load_pipeline`.
        images: paths, see `find_images`; several paths with a tab between them are the views of one study.
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
        results = pipeline(list(read.values()), batch_size=len(read), return_scores=True, **options) if read else []
        records = [
            {"image": name, "caption": best[0]["generated_text"], "score": best[0]["score"]}
            for name, best in zip(read, results, strict=True)
        ]
        yield CaptionedBatch(records, unreadable)


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
            views = [read_image(view) for view in path.split(VIEW_SEPARATOR)]
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
        Images that cannot be read.
    """
    unreadable: list[UnreadableImage] = []
    left = [image for image in images if image not in file.done]
    try:
        with tqdm(total=len(left), desc="captions", unit="image", disable=None) as progress:
            for batch in caption_batches(pipeline, left, batch_size, **options):
                file.add(batch.records)
                unreadable += batch.unreadable
                progress.update(len(batch.records) + len(batch.unreadable))
        file.finish()
    finally:
        file.close()
    return unreadable
