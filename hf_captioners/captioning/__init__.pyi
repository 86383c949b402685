"""Public names of captioning and the modules that define them; `__init__.py` loads them on first use."""

from .columns import CaptionBatches as CaptionBatches
