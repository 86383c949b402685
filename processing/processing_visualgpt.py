"""VisualGPT's processor: captions in the word pieces of GPT-2."""

from .processing_gpt2 import GPT2CaptioningProcessor, prepare_gpt2_tokenizer

__all__ = ["VisualGPTProcessor", "prepare_gpt2_tokenizer"]


class VisualGPTProcessor(GPT2CaptioningProcessor):
    """Processor of VisualGPT: captions in the word pieces of GPT-2, see `GPT2CaptioningProcessor`."""
