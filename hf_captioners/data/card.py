"""Cards of captioned data sets: what is in them, where it comes from, how it was divided, what was left out."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

import yaml
from datasets import Dataset

from .loading import make_reader
from .reader import CaptionReader, SourceCard
from .report import DataReport
from .schema import CAPTIONS

# Options that say where files lie on somebody's machine.
PLACES = ("data_dir", "image_dir", "reports", "split_lists", "data_files", "metadata_file", "token_file")
SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))


def dataset_card(name: str, splits: Mapping[str, Dataset], report: DataReport | None = None, **options: Any) -> str:
    """Write the card (README.md) of a loaded data set, for its place on the Hub.

    Args:
        name: the name that `load_captions` was given.
        splits: what it returned.
        report: its report; what was left out is told.
        options: the options that it was given.

    Returns:
        Markdown with the metadata that the Hub reads.

    Raises:
        ValueError: an option is unknown.
    """
    reader = make_reader(name, None, options)
    source = reader.card if isinstance(reader, CaptionReader) else SourceCard()
    rows = sum(map(len, splits.values()))
    metadata = {
        "task_categories": ["image-to-text"],
        "task_ids": ["image-captioning"],
        "size_categories": [next((label for limit, label in SIZES if rows < limit), "n>10M")],
        "tags": ["image-captioning", name],
    }
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {name}",
        source.description,
        _splits_table(splits),
        "Columns: " + ", ".join(f"`{column}`" for column in next(iter(splits.values())).column_names) + ".",
        _options_told(reader),
        "" if report is None else _left_out(report),
        f"Source: {source.homepage}" if source.homepage else "",
        f"Licence: {source.licence}." if source.licence else "",
        f"Please cite: {source.citation}" if source.citation else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _splits_table(splits: Mapping[str, Dataset]) -> str:
    lines = ["| split | rows | captions | captions a row | words a caption |", "|---|---|---|---|---|"]
    for split, rows in splits.items():
        captions = list(rows[CAPTIONS])
        words = [len(text.split()) for texts in captions for text in texts] or [0]
        counts = [len(texts) for texts in captions]
        lines.append(
            f"| {split} | {len(rows):,} | {sum(counts):,} | {min(counts)} to {max(counts)} | "
            f"{min(words)} to {max(words)}, mean {statistics.fmean(words):.1f} |"
        )
    return "\n".join(lines)


def _options_told(reader: Any) -> str:
    told = {option.name: getattr(reader, option.name) for option in dataclasses.fields(reader)}
    shown = [f"`{name}={value!r}`" for name, value in told.items() if name not in PLACES]
    return f"Loaded with `hf_captioners`: {', '.join(shown)}."


def _left_out(report: DataReport) -> str:
    counts = {**report.counts(), **report.notes}
    told = ", ".join(f"{count:,} x {what}" for what, count in counts.items())
    return f"Reported while loading: {told}." if told else "Every row of the source is here."
