"""Image captioning for transformers: models, training and metrics.

Importing this package imports neither torch nor transformers. A name of `__init__.pyi` loads its module on first use.
Every architecture is registered with the Auto classes as soon as transformers is imported, in either order of the
imports.
"""

from pathlib import Path

import lazy_loader

_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "modeling" / "__init__.py").is_file():
    __path__.append(str(_root))  # a checkout that was never installed: hf_captioners.modeling is ./modeling

from .registration import register_with_transformers  # noqa: E402

register_with_transformers()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
