"""Tiny Entangled Transformers."""

import torch

from hf_captioners.modeling.configuration_eta import ETAConfig
from hf_captioners.modeling.modeling_eta import ETAAttention
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_eta import ETAProcessor

from .common_case import FEATURE_SIZE, CaptionerCase
from .word_parts import NOUNS, SPECIAL, VOCABULARY, tiny_word_tokenizer

WORDS = [*NOUNS, "cloud"]  # the last one is not in the vocabulary


SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "ffn_dim": 24,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
}


LAYERS = {"encoder_layers": 2, "decoder_layers": 2}


class ETACase(CaptionerCase):
    """Two layers each, with a detector of nine words."""

    def make_config(self, **fields):
        detector = {"words": WORDS, "region_feature_size": FEATURE_SIZE, "hidden_sizes": [6], "initial_bias": 0.0}
        tokens = [*range(SPECIAL, SPECIAL + len(NOUNS)), -1]
        plain = {"label_smoothing": 0.0, "label_smoothing_over": "other_words", "num_attributes": 3}
        known = {"detector_config": detector, "attribute_token_ids": tokens}
        return ETAConfig(**SIZES | LAYERS | plain | known | fields)

    def make_model(self, seed=0, **fields):
        """Return a captioner whose captions do not repeat one word: with random weights, many sums of vectors of one
        image hide the words."""
        model = super().make_model(seed=seed + 6, **fields)
        with torch.no_grad():
            model.get_input_embeddings().weight *= 2
            model.lm_head.bias *= 0.3
            for module in model.modules():
                if isinstance(module, ETAAttention):
                    for tensor in (*module.o_proj.parameters(), module.residual.norm.bias):
                        tensor *= 0.5
        return model

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return ETAProcessor.for_config(self.make_config(), images, tiny_word_tokenizer())
