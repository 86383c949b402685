"""Training of captioners."""

from importlib import import_module
from typing import Any

_MODULES = {
    "CaptioningTrainer": ".trainer",
    "CaptioningTrainingArguments": ".arguments",
    "CaptionCollator": ".collator",
    "SCSTArguments": ".scst_arguments",
    "SCSTTrainer": ".scst_trainer",
    "ImageTextProcessor": "hf_captioners.loading",
    "last_complete_checkpoint": ".checkpoints",
    "last_scst_checkpoint": ".scst_start",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
