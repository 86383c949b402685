"""Captioning of many images: decoding, batches, and output to a file that survives an interruption."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_captioners.work_progress import progress_of

from .backends import ONNX, TORCH
from .caption_files import CaptionFile
from .columns import CaptionBatches, decoded
from .columns import load_pipeline as load_pipeline
from .generation_options import bad_word_in, bad_words_ids
from .instructions import InstructionTemplate, rows_of_tables
from .onnx_backend import OnnxPipeline
from .read_ahead import read_ahead

if TYPE_CHECKING:
    from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

    from .ray_engine import RayEngine
logger = logging.getLogger(__name__)
# Lists of a record with several captions, and the fields of the best one.
OF_CAPTIONS = {"captions": "caption", "scores": "score", "confidences": "confidence", "words_of_captions": "words"}
DOUBTFUL = "The caption is doubtful: its confidence"  # begins the reason of an image whose captions are left out


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
        records: for each image `image` (the path), `caption` and `score`. Of several captions these are those of the
            best, and all of them are in `captions` and `scores`, the best first. With `confidence` also `confidence`
            and `words` (see `Assessment`), of several captions also `confidences`.
        unreadable: images of the batch that cannot be read.
        unfinished: number of captions that were cut at `max_new_tokens`, of captioners that follow instructions.
        doubtful: images whose captions are left out because they are not sure enough, with the reasons.
    """

    records: list[dict[str, Any]]
    unreadable: list[UnreadableImage]
    unfinished: int = 0
    doubtful: Sequence[UnreadableImage] = ()


def caption_batches(
    pipeline: "ImageCaptioningPipeline",
    images: Sequence[str],
    batch_size: int = 16,
    workers: int = 0,
    prefix: str = "",
    suffix: str = "",
    bad_words: Sequence[str] = (),
    engine: "RayEngine | None" = None,
    reduced_reading: bool = False,
    min_confidence: float | None = None,
    **options: Any,
) -> Iterator[CaptionedBatch]:
    """Caption images in batches.

    Args:
        pipeline: see `load_pipeline`.
        images: paths, see `find_images`; several paths with a tab between them are the views of one study, unless a
            file has the whole name.
        batch_size: images per batch.
        workers: processes that decode and prepare the next batches while the model works; 0: this process does.
        prefix: text before every caption.
        suffix: text after every caption.
        bad_words: words that must not occur, see `bad_words_ids`. An image whose caption has one in other tokens is
            left out with this reason.
        engine: what computes the batches. None: this process.
        reduced_reading: see `CaptionBatches`; an engine reads every pixel.
        min_confidence: leave out captions whose confidence is lower; with `confidence` only.
        **options: arguments of the pipeline, for example `num_beams`, `max_new_tokens`, `prompt`; and `confidence` and
            `prefer_sure` of `CaptionBatches`.

    Returns:
        An iterator over the captions of each batch, which are computed when they are asked for.

    Raises:
        ValueError: the batch size is below 1.

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
    require_confidence(min_confidence, options.get("confidence"))
    if bad_words:
        options["bad_words_ids"] = bad_words_ids(pipeline.tokenizer, bad_words) or None
    if options.get("instruction") is not None:
        options["rows"] = rows_of_tables(InstructionTemplate(options["instruction"]), images)
    batches = [images[first : first + batch_size] for first in range(0, len(images), batch_size)]
    computed: Iterator[dict[str, list[Any]]]
    if engine is None:
        captioner = CaptionBatches(pipeline, reduced_reading=reduced_reading, **options)
        _ = captioner.assessor  # says before any work that the captioner is not calibrated
        computed = map(captioner.caption, read_ahead(captioner.preparation(), batches, workers))
    else:
        computed = engine.columns(pipeline, batches, workers, options)
    # The results come first: an engine is closed when it is asked for a batch after the last one.
    texts: dict[str, Any] = {"prefix": prefix, "suffix": suffix, "bad_words": bad_words, "minimum": min_confidence}
    facts = {"unverified": True} if getattr(pipeline, "is_unverified", False) else {}
    return counted(map(partial(_captioned_batch, facts=facts, **texts), computed, batches))


def counted(batches: Iterator[CaptionedBatch]) -> Iterator[CaptionedBatch]:
    """Yield the batches unchanged, and at the end log how many captions were cut at `max_new_tokens`."""
    unfinished = total = 0
    for batch in batches:
        unfinished, total = unfinished + batch.unfinished, total + len(batch.records)
        yield batch
    report_unfinished(unfinished, total)


def report_unfinished(unfinished: int, total: int) -> None:
    """Log a warning about captions that were cut at `max_new_tokens`, if there are any."""
    if unfinished:
        logger.warning(
            f"{unfinished:,} of {total:,} captions have no end token: they were cut at the limit of new tokens. Raise "
            "`max_new_tokens`, or ask for shorter captions with `instruction`."
        )


def _captioned_batch(
    columns: dict[str, list[Any]],
    images: Sequence[str],
    prefix: str,
    suffix: str,
    bad_words: Sequence[str],
    minimum: float | None,
    facts: Mapping[str, Any],
) -> CaptionedBatch:
    """Return the records of a batch from the columns of `CaptionBatches.caption`; add `facts` to each record."""
    records, unreadable, doubtful = [], [], []
    rows = zip(images, columns["caption"], columns["score"], columns["error"], strict=True)
    for place, (name, captions, scores, error) in enumerate(rows):
        texts = captions if isinstance(captions, list) else [captions or ""]
        word = bad_word_in(" \n ".join(texts), bad_words)
        if error is not None or word is not None:
            reason = error or f"The caption of {name} has the word {word!r} in other tokens: {texts[0]}"
            unreadable.append(UnreadableImage(name, reason))
            continue
        texts = [f"{prefix}{text}{suffix}" for text in texts]
        several = isinstance(captions, list)
        record = {"image": name, "caption": texts[0], "score": scores[0] if several else scores}
        record |= {"captions": texts, "scores": scores} if several else {}
        if "confidence" in columns:
            record |= confidence_fields(columns["confidence"][place], columns["words"][place])
            if minimum is not None and not drop_doubtful(record, minimum):
                doubtful.append(UnreadableImage(name, f"{DOUBTFUL} {record['confidence']} is below {minimum}."))
                continue
        record.pop("words_of_captions", None)
        records.append(record | dict(facts))
    return CaptionedBatch(records, unreadable, columns.get("ended", []).count(False), doubtful)


def confidence_fields(confidence: Any, words: Any) -> dict[str, Any]:
    """Return the fields `confidence` and `words` of a record; of several captions, `words` describes the best."""
    if not isinstance(confidence, list):
        return {"confidence": confidence, "words": words}
    return {"confidence": confidence[0], "words": words[0], "confidences": confidence, "words_of_captions": words}


def drop_doubtful(record: dict[str, Any], minimum: float) -> bool:
    """Drop the captions of a record below a confidence; return whether any caption is left."""
    if "captions" not in record:
        return record["confidence"] is not None and record["confidence"] >= minimum
    sure = [place for place, value in enumerate(record["confidences"]) if value is not None and value >= minimum]
    if not sure:
        return False
    for name, best in OF_CAPTIONS.items():
        record[name] = [record[name][place] for place in sure]
        record[best] = record[name][0]
    return True


def is_doubtful(image: UnreadableImage) -> bool:
    """Return whether the captions of an image were dropped because of low confidence."""
    return image.reason.startswith(DOUBTFUL)


def require_confidence(minimum: float | None, confidence: str | None) -> None:
    """Check the minimum confidence `min_confidence`.

    Raises:
        ValueError: it is out of range, or nothing computes confidence.
    """
    if minimum is None:
        return
    if not 0 <= minimum <= 1:
        raise ValueError(f"`min_confidence` is {minimum}, expected 0 to 1.")
    if confidence is None:
        raise ValueError("`min_confidence` compares confidence: pass `confidence`, 'search' or 'samples'.")


def job_settings(
    pipeline: "ImageCaptioningPipeline",
    images: Sequence[str],
    shard: str | None = None,
    packed_weights: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the settings of a captioning job, which a resumed job must repeat; see `CaptionFile`.

    Args:
        pipeline: see `load_pipeline`.
        images: paths of all images of the job.
        shard: the part of the job.
        packed_weights: what was asked for, see `ImageCaptioningPipeline`.
        **options: arguments of the pipeline.
    """
    names = hashlib.sha256(json.dumps(list(images)).encode()).hexdigest()
    job = {"inputs": f"{len(images)} images, {names[:16]}", "shard": shard, **options}
    if isinstance(pipeline, OnnxPipeline):
        return {"backend": ONNX, "model_digest": pipeline.digest()[:32], "dtype": pipeline.dtype, **job}
    from hf_captioners.features.extraction import UNRELATED, weights_digest

    model, tokenizer = pipeline.model, pipeline.tokenizer
    parts = [
        pipeline.image_processor.to_dict(),
        model.generation_config.to_dict(),
        sorted(tokenizer.get_vocab().items()),
    ]
    if pipeline.instructed is not None:
        used = pipeline.instructed.settings(options.get("instruction"))
        job["instruction"] = used.pop("instruction")
        if rows := rows_of_tables(InstructionTemplate(options.get("instruction") or ""), images):
            values = json.dumps(rows, sort_keys=True, default=str)
            job["instruction_values"] = hashlib.sha256(values.encode()).hexdigest()[:16]
        parts += [pipeline.processor.to_dict(), used]
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    return {
        "backend": TORCH,
        "model_digest": weights_digest(model, config, *parts)[:32],
        "dtype": str(model.dtype),
        **({} if packed_weights is None else {"packed_weights": packed_weights}),
        **job,
    }


def require_batch_size(batch_size: int) -> None:
    """Check that a batch size is at least 1.

    Raises:
        ValueError: it is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` is {batch_size}, expected at least 1.")


def read_images(paths: Sequence[str]) -> tuple[dict[str, Any], list[UnreadableImage]]:
    """Decode the images, or the views of the studies, at some paths.

    Args:
        paths: see `caption_batches`.

    Returns:
        What could be decoded, by path: an image, or a list of the views; and what could not.
    """
    read: dict[str, Any] = {}
    unreadable = []
    for path in paths:
        try:
            read[path] = decoded(path)
        except (OSError, ValueError) as error:
            unreadable.append(UnreadableImage(path, str(error)))
    return read, unreadable


def caption_into_file(
    file: CaptionFile,
    pipeline: "ImageCaptioningPipeline",
    images: Sequence[str],
    batch_size: int = 16,
    workers: int = 0,
    **options: Any,
) -> list[UnreadableImage]:
    """Caption all images that are missing in an output file, and finish the file. A stopped call can be resumed.

    Args:
        file: the output; it is finished and closed.
        pipeline: see `load_pipeline`.
        images: paths of all images.
        batch_size: images per batch.
        workers, **options: see `caption_batches`.

    Returns:
        Images that cannot be read, those of earlier calls included, which a resumed call passes over; and images
        whose captions are left out, see `is_doubtful`.

    Raises:
        ValueError: the file has captions of other images.
        OSError: the disk is full.
    """
    try:
        if unknown := sorted(file.done - set(images)):
            raise ValueError(
                f"{file.working} has {len(unknown):,} images that are no inputs of this job, such as {unknown[0]}. "
                "Pass the same inputs to resume the job, or `overwrite` to begin it again."
            )
        batches = [images[first : first + batch_size] for first in range(0, len(images), batch_size)]
        # A batch of which a part is done is computed as a whole: numbers depend a little on the size of the batch.
        remaining = [image for batch in batches if not file.done.issuperset(batch) for image in batch]
        with progress_of("captions", "image", len(remaining)) as progress:
            for batch in caption_batches(pipeline, remaining, batch_size, workers, **options):
                file.add(
                    [record for record in batch.records if record["image"] not in file.done],
                    [fault for fault in (*batch.unreadable, *batch.doubtful) if fault.image not in file.done],
                )
                progress.update(len(batch.records) + len(batch.unreadable) + len(batch.doubtful))
        file.finish()
    finally:
        file.close()
    return [UnreadableImage(*fault) for fault in file.skipped.items()]
