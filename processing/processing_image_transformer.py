"""Image Transformer's processor: captions in whole words."""

from .processing_captioning import CaptioningProcessor


class ImageTransformerProcessor(CaptioningProcessor):
    """Processor of Image Transformer, with the arguments of `CaptioningProcessor`.

    The tokenizer has whole words. Regions come with boxes, or with relations instead of boxes:
    `processor(regions={"features": ..., "relations": ...})`.
    """
