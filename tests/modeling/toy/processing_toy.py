"""Processor of the toy captioner."""

from hf_captioners.processing.processing_captioning import CaptioningProcessor


class ToyProcessor(CaptioningProcessor):
    """Images or regions, attributes, prompts and captions for the toy captioner."""
