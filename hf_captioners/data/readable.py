"""Data sets whose images are all readable: the others are found before any work, reported and left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, Image

from .images import why_undecodable
from .loading import load_captions, option_names, reader_class
from .reader import HubDatasetReader
from .report import DataReport, Problem, ProblemKind
from .schema import IMAGE, IMAGE_ID

IMAGE_PROBLEMS = (ProblemKind.MISSING_IMAGE, ProblemKind.UNREADABLE_IMAGE)


def load_readable(
    name: str, data_dir: str | Path | None, split: str | None = None, *, report: DataReport, **options: Any
) -> Dataset | DatasetDict:
    """Load a data set without the rows whose images cannot be read.

    Args:
        name, data_dir, split: see `load_captions`.
        report: an empty report, which receives the rows that are left out.
        **options: options of the data set. `check_images`, if it has this option, is True unless it is given.

    Raises:
        ValueError, FileNotFoundError: see `load_captions`; or a split has no readable image.
    """
    is_stored = not issubclass(reader_class(name), HubDatasetReader)
    if is_stored and data_dir is not None and "check_images" in option_names(name):
        options = {"check_images": True} | options
    loaded: Any = load_captions(name, data_dir=data_dir, split=split, report=report, **options)
    if is_stored:
        return loaded
    source = str(options.get("path", name))
    if isinstance(loaded, DatasetDict):
        return DatasetDict({part: _readable(rows, f"{source}/{part}", report) for part, rows in loaded.items()})
    return _readable(loaded, f"{source}/{split}", report)


def unusable_images(report: DataReport) -> list[Problem]:
    """Return the problems of rows that were left out because of their images."""
    return [problem for problem in report.problems if problem.dropped and problem.kind in IMAGE_PROBLEMS]


def _readable(rows: Dataset, source: str, report: DataReport) -> Dataset:
    """Return the rows whose images can be decoded; report the others."""
    kept = []
    entries = rows.select_columns([IMAGE, IMAGE_ID]).cast_column(IMAGE, Image(decode=False))
    for row, entry in enumerate(entries):
        stored = entry[IMAGE]
        reason = why_undecodable(stored if stored["bytes"] is not None else stored["path"])
        if reason is None:
            kept.append(row)
        else:
            name = f"{stored['path'] or 'the image'} of the row {entry[IMAGE_ID]!r}"
            report.add(ProblemKind.UNREADABLE_IMAGE, source, None, f"{name}: {reason}")
    if not kept:
        raise ValueError(f"{source} has no image that can be read (of {len(rows)}).")
    return rows if len(kept) == len(rows) else rows.select(kept)
