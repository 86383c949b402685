"""Captioning of a data set, with the captions matched to its references."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from hf_captioners.data import load_captions
from hf_captioners.data.image_feature import with_allowed_formats
from hf_captioners.data.loading import READERS
from hf_captioners.data.readable import load_readable
from hf_captioners.data.report import DataReport
from hf_captioners.data.schema import IMAGE, IMAGES, REGIONS
from hf_captioners.metrics.caption_files import MatchedCaptions
from hf_captioners.names import did_you_mean, near_path
from hf_captioners.work_progress import progress_of

from .batches import report_unfinished, require_batch_size
from .generation_options import options_of_evaluation
from .instructions import InstructionTemplate

if TYPE_CHECKING:
    from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

INPUT_COLUMNS = (REGIONS, IMAGES, IMAGE)  # the first that a row has is captioned


def load_split(
    data: str,
    data_dir: str | None,
    split: str,
    options: Mapping[str, Any],
    report: DataReport | None = None,
    features: str | None = None,
) -> Dataset:
    """Load a split of a named data set or of a folder of captioned images, without unreadable images.

    Args:
        data: name of a data set of `load_captions`, or a folder or file in a form of `hf_captioners.data.recognition`.
        data_dir: folder of a named data set.
        split: name of the split.
        options: options of the data set.
        report: an empty report, which receives the rows that are left out.
        features: region features, which are read instead of the images, see `open_split_regions`.

    Raises:
        FileNotFoundError: there is no such data set or folder, or there are no features.
        MissingRegionsError: images have no features.
        ValueError: there is no such split, or no image that can be read.
    """
    report = DataReport() if report is None else report
    is_folder = data_dir is None and Path(data).expanduser().exists()
    name, folder = ("caption_folder", data) if is_folder else (data, data_dir)
    if name not in READERS:
        hint = did_you_mean(data, READERS) or near_path(data)
        raise FileNotFoundError(f"`data`: there is no folder and no data set {data}.{hint}")
    if features is None:
        rows = load_readable(name, folder, split, report=report, **options)
    else:
        rows = load_captions(name, data_dir=folder, split=split, report=report, **options)
    assert isinstance(rows, Dataset)
    if features is None:
        return rows
    from hf_captioners.features.formats import open_split_regions
    from hf_captioners.features.regions_column import with_regions

    return with_regions(rows, open_split_regions(features, split))


def caption_data_set(
    pipeline: "ImageCaptioningPipeline", rows: Dataset, batch_size: int = 16, **options: Any
) -> MatchedCaptions:
    """Caption a data set and match the captions with its references.

    Captions are searched, greedily or by beams, also where the generation configuration of the captioner samples.

    Args:
        pipeline: see `load_pipeline`.
        rows: rows of `load_captions`: `image`, `images` or `regions` (see `with_regions`), `image_id`, `captions`;
            and columns that the captioner reads besides, such as `attributes`.
        batch_size: rows per batch.
        **options: arguments of the pipeline, for example `num_beams`; `do_sample=True` samples, by a `seed`.

    Returns:
        Captions and references; images without references are in `extra`.

    Raises:
        ValueError: no image has references.

    Example:
        ```python
        from hf_captioners import load_captions
        from hf_captioners.captioning.batches import load_pipeline
        from hf_captioners.captioning.data_set import caption_data_set
        from hf_captioners.captioning.scoring import score_matched

        rows = load_captions("caption_folder", data_dir="my_images", split="test")
        score_matched(caption_data_set(load_pipeline("my_captioner"), rows)).metrics["cider_d"]
        ```
    """
    require_batch_size(batch_size)
    rows = with_allowed_formats(rows)
    options = options_of_evaluation(pipeline, options)
    declared = getattr(getattr(pipeline, "processor", None), "input_columns", {})
    matched = MatchedCaptions([], [], [], [], [])
    if getattr(pipeline, "instructed", None) is not None:
        options["return_ended"] = True
    instruction = options.pop("instruction", None)
    template = None if instruction is None else InstructionTemplate(instruction)
    if template is not None:
        pipeline.require_instruction_read(str(instruction))
        template.require_columns(rows.column_names)
    unfinished = 0
    with progress_of("captions", "image", len(rows)) as progress:
        for first in range(0, len(rows), batch_size):
            batch = [rows[place] for place in range(first, min(first + batch_size, len(rows)))]
            inputs = [pipeline_item(row, declared, template) for row in batch]
            results = pipeline(inputs, batch_size=len(batch), **options)
            unfinished += sum(not best[0].get("ended", True) for best in results)
            for row, best in zip(batch, results, strict=True):
                if row["captions"]:
                    matched.images.append(row["image_id"])
                    matched.predictions.append(best[0]["generated_text"])
                    matched.references.append(list(row["captions"]))
                else:
                    matched.extra.append(row["image_id"])
            progress.update(len(batch))
    report_unfinished(unfinished, len(rows))
    if not matched.images:
        raise ValueError("The data set has no references to score against.")
    return matched


def pipeline_item(row: Mapping[str, Any], declared: Iterable[str], template: InstructionTemplate | None) -> Any:
    """Return the pipeline's input for a row: the image and the other columns that the captioner reads."""
    column = next(name for name in INPUT_COLUMNS if name in row)
    columns = {name: row[name] for name in declared if name in row}
    if template is not None:
        columns["instruction"] = template.expand(row["image_id"], row)
    if not columns:
        return row[column]
    return {**row[column], **columns} if column == REGIONS else {column: row[column], **columns}
