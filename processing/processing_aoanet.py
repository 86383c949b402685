"""AoANet's processor: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class AoANetProcessor(CaptioningProcessor):
    """Processor of AoANet, with the arguments of `CaptioningProcessor`.

    The tokenizer has whole words; an unknown word becomes its unknown token.
    """
