"""Caption metrics without Java: exact, fast, and free of torch and transformers.

A name of `__init__.pyi` loads its module on first use, so the tokenizer alone does not load numpy. The functions of
all metrics of the table (`registry.py`) are public, too.
"""

from typing import Any

import lazy_loader

_load_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        from .registry import METRICS

        for metric in METRICS.values():
            if isinstance(metric.function, str) and metric.function.endswith(f":{name}"):
                return metric.load()
    return _load_name(name)
