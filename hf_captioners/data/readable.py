"""Loading of data sets without unreadable images, which are found, reported and dropped first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from .loading import load_captions, option_names, reader_class
from .reader import HubDatasetReader
from .report import DataReport, Problem, ProblemKind

IMAGE_PROBLEMS = (ProblemKind.MISSING_IMAGE, ProblemKind.UNREADABLE_IMAGE)


def load_readable(
    name: str, data_dir: str | Path | None, split: str | None = None, *, report: DataReport, **options: Any
) -> Dataset | DatasetDict:
    """Load a data set without the rows whose images are unreadable.

    Args:
        name, data_dir, split: see `load_captions`.
        report: an empty report, which receives the rows that are left out.
        **options: options of the data set. `check_images`, if it has this option, is True unless it is given.

    Raises:
        ValueError, FileNotFoundError: see `load_captions`; or a split has no readable image.
    """
    of_hub = issubclass(reader_class(name), HubDatasetReader)
    if (of_hub or data_dir is not None) and "check_images" in option_names(name):
        options = {"check_images": True} | options
    return load_captions(name, data_dir=data_dir, split=split, report=report, **options)


def unusable_images(report: DataReport) -> list[Problem]:
    """Return the report's problems about images that were dropped."""
    return [problem for problem in report.problems if problem.dropped and problem.kind in IMAGE_PROBLEMS]
