"""Tiny Show, Attend and Tell models."""

from hf_captioners.modeling.configuration_show_attend_tell import ShowAttendTellConfig
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_show_attend_tell import ShowAttendTellProcessor

from .common_case import CaptionerCase
from .word_parts import VOCABULARY, tiny_word_tokenizer

HARD = {"attention_type": "hard", "location_sampling_probability": 1.0}


class ShowAttendTellCase(CaptionerCase):
    """LSTM layer as wide as the word embeddings, so that both can share a matrix."""

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "embedding_size": 20, "hidden_size": 20, "attention_size": 16}
        plain = {"doubly_stochastic_weight": 0.0, "dropout": 0.1}
        return ShowAttendTellConfig(**sizes | plain | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return ShowAttendTellProcessor(images, tiny_word_tokenizer())

    def make_cache(self):
        return RecurrentCache()
