"""The captioning Transformer's processor: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class CaptioningTransformerProcessor(CaptioningProcessor):
    """Processor of the captioning Transformer, with the arguments of `CaptioningProcessor`.

    The tokenizer has whole words. Its own rule in `tokenizer.json` decides on case and punctuation; an unknown word
    becomes its unknown token.
    """
