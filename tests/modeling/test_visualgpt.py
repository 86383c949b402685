"""VisualGPT: the common checks and its own properties."""

from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor, prepare_gpt2_tokenizer

from .common import CaptionerChecks
from .gpt2_parts import TEXT, tiny_gpt2_tokenizer


class TestVisualGPT(CaptionerChecks):
    """Two encoder levels, both read by a GPT-2 of two layers."""

    def make_config(self, **fields):
        special = {"bos_token_id": 28, "eos_token_id": 27, "pad_token_id": 29}
        return VisualGPTConfig(
            **{"text_config": dict(TEXT), "encoder_layers": 2, "encoder_ffn_dim": 32} | special | fields
        )

    def make_processor(self):
        pictures = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return VisualGPTProcessor(pictures, prepare_gpt2_tokenizer(tiny_gpt2_tokenizer()))
