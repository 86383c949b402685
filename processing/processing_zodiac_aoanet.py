"""Processor of ZoDIAC in AoANet: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class ZodiacAoANetProcessor(CaptioningProcessor):
    """Processor of ZoDIAC in AoANet: captions in whole words, see `CaptioningProcessor`."""
