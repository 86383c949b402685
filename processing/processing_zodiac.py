"""ZoDIAC's processor: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class ZodiacProcessor(CaptioningProcessor):
    """Processor of ZoDIAC: captions in whole words, see `CaptioningProcessor`."""
