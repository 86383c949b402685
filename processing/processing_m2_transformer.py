"""M2's processor: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class M2TransformerProcessor(CaptioningProcessor):
    """Processor of the M2 Transformer, with the arguments of `CaptioningProcessor`.

    The tokenizer has whole words. Its own rule in `tokenizer.json` decides on case and punctuation; an unknown word
    becomes its unknown token.
    """
