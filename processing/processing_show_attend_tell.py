"""Show, Attend and Tell's processor: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class ShowAttendTellProcessor(CaptioningProcessor):
    """Processor of Show, Attend and Tell, with the arguments of `CaptioningProcessor`.

    The tokenizer has whole words. Its own rule in `tokenizer.json` decides on case and punctuation; an unknown word
    becomes its unknown token.
    """
