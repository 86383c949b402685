"""Captioning of many images, of data sets, and the scores of captions.

A name of `__init__.pyi` loads its module on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
