from .exporting import export_captioner as export_captioner
from .onnx_captioner import OnnxCaptioner as OnnxCaptioner

__all__ = ["OnnxCaptioner", "export_captioner"]
