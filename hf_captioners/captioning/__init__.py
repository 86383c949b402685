"""Captioning of many images, of data sets, and the scores of captions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"columns": ["CaptionBatches"]})
