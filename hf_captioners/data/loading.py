"""`load_captions`: loads captioned data sets of all formats."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from hf_captioners.names import did_you_mean

from .building import CaptionBuilder
from .image_feature import with_allowed_formats
from .reader import CaptionDatasets, CaptionReader, HubDatasetReader
from .recognition import recognised
from .report import DataReport

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

logger = logging.getLogger(__name__)

# name -> (module of this package, class)
READERS = {
    "by_columns": ("by_columns", "ByColumns"),
    "caption_folder": ("caption_folder", "CaptionFolder"),
    "coco": ("coco", "Coco"),
    "containers": ("stored_images", "Containers"),
    "conceptual_captions": ("conceptual_captions", "ConceptualCaptions"),
    "flickr30k": ("flickr", "Flickr30k"),
    "flickr8k": ("flickr", "Flickr8k"),
    "iu_xray": ("iu_xray", "IuXray"),
    "nocaps": ("nocaps", "Nocaps"),
    "scenes": ("scenes", "Scenes"),
    "textcaps": ("textcaps", "TextCaps"),
    "vizwiz": ("vizwiz", "VizWiz"),
}


def list_datasets() -> list[str]:
    """Return the names that `load_captions` accepts."""
    return sorted(READERS)


def reader_class(name: str) -> type[CaptionReader] | type[HubDatasetReader]:
    """Return the reader class of a data set.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in READERS:
        raise ValueError(
            f"There is no data set {name!r}; expected one of {', '.join(list_datasets())}."
            f"{did_you_mean(name, READERS)}"
        )
    module, cls = READERS[name]
    return getattr(importlib.import_module(f".{module}", __package__), cls)


def option_names(name: str) -> list[str]:
    """Return the names of the options specific to a data set."""
    return [option.name for option in dataclasses.fields(reader_class(name)) if option.name != "data_dir"]


def generation_defaults(name: str) -> dict[str, int]:
    """Return data-set-specific decoding defaults: `max_new_tokens`, `num_beams`."""
    return dict(getattr(reader_class(name), "generation", {}))


def scored_by(name: str) -> str | None:
    """Return the column by whose values a data set is scored too, such as nocaps' domains; None without one."""
    return getattr(reader_class(name), "scored_by", None) if name in READERS else None


# Type checkers tell the four kinds of results apart.
@overload
def load_captions(
    name: str,
    data_dir: str | Path | None = None,
    split: None = None,
    streaming: Literal[False] = False,
    *,
    strict: bool = False,
    report: DataReport | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> DatasetDict: ...


@overload
def load_captions(
    name: str,
    data_dir: str | Path | None = None,
    *,
    split: str,
    streaming: Literal[False] = False,
    strict: bool = False,
    report: DataReport | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> Dataset: ...


@overload
def load_captions(
    name: str,
    data_dir: str | Path | None = None,
    split: None = None,
    *,
    streaming: Literal[True],
    strict: bool = False,
    report: DataReport | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> IterableDatasetDict: ...


@overload
def load_captions(
    name: str,
    data_dir: str | Path | None = None,
    *,
    split: str,
    streaming: Literal[True],
    strict: bool = False,
    report: DataReport | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> IterableDataset: ...


@overload
def load_captions(
    name: str,
    data_dir: str | Path | None = None,
    split: str | None = None,
    streaming: bool = False,
    *,
    strict: bool = False,
    report: DataReport | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> CaptionDatasets: ...


def load_captions(
    name: str,
    data_dir: str | Path | None = None,
    split: str | None = None,
    streaming: bool = False,
    *,
    strict: bool = False,
    report: DataReport | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> CaptionDatasets:
    """Load a captioned data set with the columns of `hf_captioners.data.schema`.

    Args:
        name: one of `list_datasets()`.
        data_dir: the folder of the data set. Of `caption_folder` it may have any form of
            `hf_captioners.data.recognition`, and may be a table or a container of images.
        split: one split (`"train"`; slices as `"train[:10%]"` too unless streaming); None loads all of them.
        streaming: return iterable data sets, which read rows on access, in the same order.
        strict: raise if any row is bad, instead of warning.
        report: an empty `DataReport`, which receives every bad row (file, line, reason) and the counts.
        cache_dir: folder of the Arrow files (default: the cache of `datasets`). They are rebuilt when an
            annotation, an image, an option or the reader's code changes.
        options: options of the data set, see its reader; an unknown one raises.

    Returns:
        A `Dataset` if `split` is given, else a `DatasetDict`; their iterable counterparts when streaming.

    Raises:
        ValueError: name, split or option is unknown, or there is no usable row.
        FileNotFoundError: the folder or its annotations are missing.
        BadRowsError: a row is bad and `strict` is set.

    Examples:
        >>> from hf_captioners.data import load_captions
        >>> scenes = load_captions("scenes", split="train", num_images={"train": 4}, image_size=32)
        >>> scenes.column_names
        ['image_id', 'image', 'captions', 'split', 'scene', 'objects']
        >>> scenes[0]["image"].size, len(scenes[0]["captions"])
        ((32, 32), 5)
    """
    report = DataReport() if report is None else report
    reader = make_reader(name, data_dir, options)
    if isinstance(reader, HubDatasetReader):
        dataset = reader.load(split, streaming, strict, report, cache_dir)
    else:
        builder = CaptionBuilder(reader, report, strict, cache_dir)
        if split is not None:  # before images are read
            _check_split(split, builder.split_names(), name, slices=not streaming)
        if not streaming:
            builder.prepare()
        dataset = builder.as_streaming_dataset(split) if streaming else builder.as_dataset(split)
    if report.problems or report.notes or report.remarks:
        logger.warning("%s", report.summary())
    return with_allowed_formats(dataset)


def make_reader(name: str, data_dir: str | Path | None, options: dict[str, Any]) -> CaptionReader | HubDatasetReader:
    """Make the reader of a data set after checking the options.

    Raises:
        ValueError: an option is unknown, or an option without default is missing.
    """
    name, data_dir, options = recognised(name, data_dir, options)
    cls = reader_class(name)
    unknown = sorted(set(options) - set(option_names(name)))
    if unknown:
        raise ValueError(
            f"{name!r} has no option {', '.join(unknown)}; it has {', '.join(option_names(name))}."
            f"{did_you_mean(unknown[0], option_names(name))}"
        )
    needed = [option.name for option in dataclasses.fields(cls) if _is_needed(option) and option.name not in options]
    if needed:
        raise ValueError(f"{name!r} needs {', '.join(f'{option}=...' for option in needed)}.")
    return cls(data_dir=None if data_dir is None else Path(data_dir), **options)


def _is_needed(option: dataclasses.Field[Any]) -> bool:
    return option.default is dataclasses.MISSING and option.default_factory is dataclasses.MISSING


def _check_split(split: str, splits: list[str], name: str, slices: bool) -> None:
    requested = [re.sub(r"\[.*\]$", "", part.strip()) for part in split.split("+")] if slices else [split]
    missing = [part for part in requested if part not in splits]
    if missing:
        raise ValueError(
            f"{name!r} has no split {', '.join(map(repr, missing))}; there are {', '.join(splits)}."
            f"{did_you_mean(missing[0], splits)}"
        )
