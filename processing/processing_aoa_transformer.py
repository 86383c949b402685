"""Processor of the AoA Transformer: captions in the word pieces of GPT-2."""

from .processing_gpt2 import GPT2CaptioningProcessor


class AoATransformerProcessor(GPT2CaptioningProcessor):
    """Processor of the AoA Transformer: captions in the word pieces of GPT-2, see `GPT2CaptioningProcessor`."""
