"""Captioners without torch: the export to ONNX, and a captioner that runs on onnxruntime."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
