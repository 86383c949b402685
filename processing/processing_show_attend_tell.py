"""Show, Attend and Tell's processor: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class ShowAttendTellProcessor(CaptioningProcessor):
    """Everything that goes into Show, Attend and Tell, and its captions out; arguments of `CaptioningProcessor`.

    The tokenizer has whole words. Its own rule, written in `tokenizer.json`, says what becomes of case and
    punctuation; a word that it does not know becomes its unknown token.
    """
