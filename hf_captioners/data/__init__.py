"""Captioned data sets, loaded by `load_captions`."""

from .loading import list_datasets, load_captions
from .report import BadRowsError, DataReport, Problem, ProblemKind

__all__ = ["BadRowsError", "DataReport", "Problem", "ProblemKind", "list_datasets", "load_captions"]
