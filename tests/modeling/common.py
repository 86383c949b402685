"""Checks that every captioner must pass; docs/common_checks.md lists their sources.

A test class of an architecture inherits `CaptionerChecks` and implements `make_config` and `make_processor`
(see `CaptionerCase`); pytest then runs every check on it, for images and for region features.
"""

from .common_configuration import ConfigurationChecks
from .common_deployment import AdapterChecks, CompilerChecks, PlacementChecks, WaitChecks
from .common_export import ExportChecks
from .common_forward import AttentionChecks, BadInputChecks, EmbeddingChecks, MaskChecks, OutputChecks
from .common_generation import CacheChecks, EncoderOnceChecks, ScoreChecks, StockChecks
from .common_options import OptionChecks
from .common_saving import FreshProcessChecks, SavingChecks
from .common_search import SearchChecks
from .common_training import LossChecks, TrainingChecks
from .common_views import ViewChecks


class CaptionerChecks(
    ConfigurationChecks,
    SavingChecks,
    FreshProcessChecks,
    OutputChecks,
    BadInputChecks,
    MaskChecks,
    AttentionChecks,
    EmbeddingChecks,
    LossChecks,
    TrainingChecks,
    OptionChecks,
    StockChecks,
    EncoderOnceChecks,
    CacheChecks,
    ScoreChecks,
    SearchChecks,
    AdapterChecks,
    PlacementChecks,
    WaitChecks,
    CompilerChecks,
    ExportChecks,
    ViewChecks,
):
    """All checks, by topic in `common_*.py`."""
