"""Caption metrics without Java: exact, fast, and free of torch and transformers.

A name of `__init__.pyi` loads its module on first use, so the tokenizer alone does not load numpy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
