"""Calibration of a captioner's confidence on images outside its training data."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_captioners.confidence.assessing import Decoding, draw_samples, require_calibrated_weights
from hf_captioners.confidence.calibration import Calibration, NotCalibratedError
from hf_captioners.confidence.card_section import FIGURE_FILE, card_section, with_section
from hf_captioners.confidence.digests import captioner_digest
from hf_captioners.confidence.estimator import Agreement, Word, words_of
from hf_captioners.confidence.figure import calibration_figure
from hf_captioners.confidence.fitting import (
    Observed,
    count_words,
    cross_validated,
    fit_estimator,
    kinds_of,
    require_enough,
)
from hf_captioners.confidence.measures import measured
from hf_captioners.data.image_feature import with_allowed_formats
from hf_captioners.metrics.caption_tokenizers import caption_tokenizer
from hf_captioners.metrics.support import Vocabulary, require_english
from hf_captioners.output_files import change_file, require_writable_folder, write_text
from hf_captioners.work_progress import progress_of

from .batches import require_batch_size
from .data_set import pipeline_item
from .generation_options import options_of_evaluation

ROWS: dict[str, slice] = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}
"""Parts of a data set: a captioner can be calibrated on one half and measured on the other."""
CARD = "README.md"
DEFAULT_SAMPLES = 10


def rows_of(rows: Dataset, part: str) -> Dataset:
    """Return all, the even or the odd rows of a data set, see `ROWS`.

    Raises:
        ValueError: there is no such part.
    """
    if part not in ROWS:
        raise ValueError(f"`rows` is {part!r}, expected one of {', '.join(ROWS)}.")
    return rows.select(range(*ROWS[part].indices(len(rows))))


def observe(
    pipeline: Any, rows: Dataset, samples: int = DEFAULT_SAMPLES, batch_size: int = 16, **options: Any
) -> Iterator[tuple[Mapping[str, Any], list[dict[str, Any]], list[dict[str, Any]]]]:
    """Caption images, and yield each row with its beam search records (best first) and its sampled captions.

    Args:
        pipeline: see `load_pipeline`.
        rows: see `caption_data_set`.
        samples: sampled captions of each image; 0: none.
        batch_size: images per batch.
        **options: arguments of the pipeline.
    """
    require_batch_size(batch_size)
    decoding = Decoding.of(pipeline, options)
    scoring = {**options, "return_scores": True, "return_token_scores": True}
    if decoding.is_beam_search:
        scoring["num_return_sequences"] = decoding.beams
    declared = getattr(getattr(pipeline, "processor", None), "input_columns", {})
    with progress_of("captions", "image", len(rows)) as progress:
        for first in range(0, len(rows), batch_size):
            batch = [rows[place] for place in range(first, min(first + batch_size, len(rows)))]
            items = [pipeline.prepare(pipeline_item(row, declared, None), **options) for row in batch]
            searched = pipeline.caption_prepared([dict(item) for item in items], **scoring)
            drawn: list[list[dict[str, Any]]] = [[] for _ in items]
            if samples:
                drawn = draw_samples(pipeline, items, samples, options)
            yield from zip(batch, searched, drawn, strict=True)
            progress.update(len(batch))


def observed_words(
    observed: Iterator[tuple[Mapping[str, Any], list[dict[str, Any]], list[dict[str, Any]]]], has_beams: bool
) -> list[Observed]:
    """Return the words of each image's best caption, and for each word whether the references support it.

    Args:
        observed: see `observe`.
        has_beams: whether the records are hypotheses of a beam search.

    Raises:
        ValueError: the references are not English.
    """
    tokenize = caption_tokenizer("ptb")
    observations, references = [], []
    for row, records, samples in observed:
        if not row["captions"] or "error" in records[0]:
            continue
        texts = tokenize(row["captions"])
        references += texts
        agreement = Agreement(records if has_beams else (), samples)
        words = [word for word in words_of(records[0], agreement) if isinstance(word, Word)]
        vocabulary = Vocabulary(texts)
        observations.append(Observed(words, [vocabulary.supports(word.word) for word in words]))
    require_english(references)
    return observations


def calibrate(
    pipeline: Any,
    rows: Dataset,
    data: Mapping[str, Any],
    samples: int = DEFAULT_SAMPLES,
    batch_size: int = 16,
    **options: Any,
) -> Calibration:
    """Calibrate a captioner on images with references, without writing files.

    Args:
        pipeline: see `load_pipeline`, of a captioner in a local directory.
        rows: rows of `load_captions` with English references, of images that the captioner was not trained on.
        data: `name` and `split` of the data set, for the card.
        samples: sampled captions of each image, for the confidence that reads them; 0: none.
        batch_size: images per batch.
        **options: arguments of the pipeline. Captions that are decoded otherwise later are assessed without the
            hypotheses of their search.

    Returns:
        The calibration, with the figures of cross-validation in `report`.

    Raises:
        NotCalibratedError: the captioner is in no local directory.
        ValueError: there is too little to calibrate on, the references are not English, or the weights are packed.

    Example:
        ```python
        from hf_captioners.captioning.batches import load_pipeline
        from hf_captioners.captioning.calibrating import calibrate, store
        from hf_captioners.captioning.data_set import load_split

        rows = load_split("my_images", None, "validation", {})
        calibration = calibrate(load_pipeline("my_captioner"), rows, {"name": "my_images", "split": "validation"})
        store(calibration, "my_captioner")
        ```
    """
    require_calibrated_weights(pipeline)
    digest = captioner_digest(folder_of(pipeline))
    rows = with_allowed_formats(rows)
    options = options_of_evaluation(pipeline, options)
    decoding = Decoding.of(pipeline, options)
    observed = observed_words(observe(pipeline, rows, samples, batch_size, **options), decoding.is_beam_search)
    require_enough(observed)
    kinds = kinds_of(observed)
    words = sum(len(observation.words) for observation in observed)
    return Calibration(
        digest,
        {kind: fit_estimator(kind, observed) for kind in kinds},
        count_words(observed),
        decoding.beams if decoding.is_beam_search else 1,
        samples,
        {**data, "images": len(observed), "words": words},
        {kind: measured(cross_validated(kind, observed)) for kind in kinds},
    )


def folder_of(pipeline: Any) -> Path:
    """Return the local directory of a captioner, where its calibration is stored.

    Raises:
        NotCalibratedError: it is in no local directory.
    """
    name = str(pipeline.model.name_or_path or "")
    if not Path(name).is_dir() or not name:
        raise NotCalibratedError(
            f"A calibration is stored beside the weights, and {name or 'the captioner'} is no local directory. "
            f"Download it first: hf download {name or 'NAME'} --local-dir DIRECTORY"
        )
    return Path(name)


def store(
    calibration: Calibration, folder: str | Path, write_card: Callable[[Path], bool] | None = None
) -> list[Path]:
    """Write a calibration and its figure beside the weights, and its section into the model card.

    Args:
        calibration: see `calibrate`.
        folder: directory of the captioner.
        write_card: writes the card of a checkpoint, whose section is part of it, and returns whether it did. Other
            cards get the section at their end. None: all do.

    Returns:
        The files.
    """
    folder = Path(folder)
    require_writable_folder(folder)
    files = [calibration.save(folder)]
    kind = next(iter(reversed(calibration.report)), None)
    if kind is not None:
        data = calibration.data
        title = f"{data.get('images', 0):,} images of {data.get('name')}, {data.get('split')}, cross-validation"
        write_text(folder / FIGURE_FILE, calibration_figure(calibration.report[kind], title))
        files.append(folder / FIGURE_FILE)
    path = folder / CARD
    if write_card is not None and write_card(folder):
        files.append(path)
    elif path.is_file():
        section = card_section(calibration)

        def changed(content: bytes | None) -> bytes:
            return with_section((content or b"").decode("utf-8"), section).encode("utf-8")

        change_file(path, changed)
        files.append(path)
    return files
