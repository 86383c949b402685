"""Image captioning for transformers: models, training and metrics.

Importing this package imports neither torch nor transformers. Public names load their module on first use, and every
captioner is registered with the Auto classes as soon as transformers is there, in whichever order they are imported.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from ._version import __version__

_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "modeling" / "__init__.py").is_file():
    __path__.append(str(_root))  # a checkout that was never installed: hf_captioners.modeling is ./modeling

from .architectures import ARCHITECTURES, KINDS, list_architectures  # noqa: E402
from .registration import register_with_transformers  # noqa: E402

_LAZY_NAMES = {
    architecture.prefix + kind: architecture.module(kind) for architecture in ARCHITECTURES.values() for kind in KINDS
} | {
    "CaptioningConfig": "hf_captioners.modeling.configuration_captioning",
    "CaptioningImageProcessor": "hf_captioners.processing.image_processing_captioning",
    "CaptioningImageProcessorFast": "hf_captioners.processing.image_processing_captioning",
    "CaptioningProcessor": "hf_captioners.processing.processing_captioning",
    "CaptioningTrainer": "hf_captioners.training",
    "CaptioningTrainingArguments": "hf_captioners.training",
    "ImageCaptioningPipeline": "hf_captioners.pipelines.image_captioning",
    "SCSTArguments": "hf_captioners.training",
    "SCSTTrainer": "hf_captioners.training",
    "compute_caption_metrics": "hf_captioners.metrics",
    "load_captions": "hf_captioners.data",
}

__all__ = ["__version__", "list_architectures", *sorted(_LAZY_NAMES)]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


register_with_transformers()
