"""Processor of the bilinear captioner: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class BilinearProcessor(CaptioningProcessor):
    """Processor of the bilinear captioner, with the arguments of `CaptioningProcessor`.

    The tokenizer has whole words; an unknown word becomes its unknown token.
    """
