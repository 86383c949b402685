"""ZoDIAC's processor in AoANet."""

from .processing_captioning import CaptioningProcessor


class ZodiacAoANetProcessor(CaptioningProcessor):
    """Processor of ZoDIAC in AoANet: captions in the words of a vocabulary, see `CaptioningProcessor`."""
