"""ZoDIAC's processor."""

from .processing_captioning import CaptioningProcessor


class ZodiacProcessor(CaptioningProcessor):
    """Processor of ZoDIAC: captions in the words of a vocabulary, see `CaptioningProcessor`."""
