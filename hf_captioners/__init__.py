"""Image captioning for transformers: models, training and metrics.

Importing this package imports neither torch nor transformers. A public name loads its module on first use. Every
architecture is registered with the Auto classes as soon as transformers is imported, in either order of the imports.
"""

from pathlib import Path

import lazy_loader

_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "modeling" / "__init__.py").is_file():
    __path__.append(str(_root))  # a checkout that was never installed: hf_captioners.modeling is ./modeling

from .architectures import architecture_classes  # noqa: E402
from .registration import register_with_transformers  # noqa: E402

register_with_transformers()

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["data", "metrics", "modeling", "pipelines", "processing", "training"],
    submod_attrs=architecture_classes()
    | {
        "_version": ["__version__"],
        "architectures": ["list_architectures"],
        "captioning.ensemble": ["CaptionerEnsemble"],
        "data": ["load_captions"],
        "default_model": ["list_models"],
        "loading": ["ImageTextProcessor", "load_captioner"],
        "metrics": ["compute_caption_metrics"],
        "modeling.configuration_captioning": ["CaptioningConfig"],
        "pipelines.image_captioning": ["ImageCaptioningPipeline"],
        "processing.image_processing_captioning": ["CaptioningImageProcessor", "CaptioningImageProcessorFast"],
        "processing.processing_captioning": ["CaptioningProcessor"],
        "training": ["CaptioningTrainer", "CaptioningTrainingArguments", "SCSTArguments", "SCSTTrainer"],
    },
)
