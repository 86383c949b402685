"""Training of captioners. The names in `__init__.pyi` are imported lazily."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
