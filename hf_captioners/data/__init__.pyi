"""Public names of the data sets and the modules that define them; `__init__.py` loads them on first use."""

from .loading import list_datasets as list_datasets
from .loading import load_captions as load_captions
from .report import BadRowsError as BadRowsError
from .report import DataReport as DataReport
from .report import Problem as Problem
from .report import ProblemKind as ProblemKind
