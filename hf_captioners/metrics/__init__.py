"""Caption metrics without Java: exact, fast, and free of torch and transformers.

Names load their module on first use, so that the tokenizer alone does not load numpy.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bleu import BleuCounts, bleu_counts, bleu_from_counts, corpus_bleu
    from .cider import CiderD, CiderOriginal
    from .compute import METRICS, compute_caption_metrics
    from .diversity import caption_health, set_diversity
    from .document_frequency import DocumentFrequency
    from .meteor import Meteor
    from .meteor_tables import MeteorTables
    from .ngrams import cut_at_end
    from .ptb_tokenizer import PTBTokenizer
    from .rouge import rouge_l
    from .significance import compare_systems
    from .spice import OriginalSpice, score_scenes

_MODULES = {
    "BleuCounts": "bleu",
    "CiderD": "cider",
    "CiderOriginal": "cider",
    "DocumentFrequency": "document_frequency",
    "METRICS": "compute",
    "Meteor": "meteor",
    "MeteorTables": "meteor_tables",
    "OriginalSpice": "spice",
    "PTBTokenizer": "ptb_tokenizer",
    "bleu_counts": "bleu",
    "bleu_from_counts": "bleu",
    "caption_health": "diversity",
    "compare_systems": "significance",
    "compute_caption_metrics": "compute",
    "corpus_bleu": "bleu",
    "cut_at_end": "ngrams",
    "rouge_l": "rouge",
    "score_scenes": "spice",
    "set_diversity": "diversity",
}

__all__ = [
    "METRICS",
    "BleuCounts",
    "CiderD",
    "CiderOriginal",
    "DocumentFrequency",
    "Meteor",
    "MeteorTables",
    "OriginalSpice",
    "PTBTokenizer",
    "bleu_counts",
    "bleu_from_counts",
    "caption_health",
    "compare_systems",
    "compute_caption_metrics",
    "corpus_bleu",
    "cut_at_end",
    "module_path",
    "rouge_l",
    "score_scenes",
    "set_diversity",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]


def module_path(name: str) -> str:
    """Return the folder of a metric's `evaluate` module.

    Args:
        name: `bleu`, `rouge_l`, `cider_d`, `cider_original`, `meteor` or `spice`.

    Raises:
        ValueError: there is no module of this name.

    Example:
        >>> from pathlib import Path
        >>> from hf_captioners.metrics import module_path
        >>> Path(module_path("cider_d")).name  # `evaluate.load(module_path("cider_d"))` loads the metric
        'cider_d'
    """
    modules = Path(__file__).parent / "modules"
    if not (modules / name / f"{name}.py").is_file():
        names = sorted(folder.name for folder in modules.iterdir() if (folder / f"{folder.name}.py").is_file())
        raise ValueError(f"There is no module {name!r}, expected one of {', '.join(names)}.")
    return str(modules / name)
