"""AoANet: the common checks and its own properties."""

from hf_captioners.modeling.configuration_aoanet import AoANetConfig
from hf_captioners.modeling.generation_captioning import RecurrentCache
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_aoanet import AoANetProcessor

from .common import CaptionerChecks
from .common_case import CaptionerCase
from .word_parts import VOCABULARY, tiny_word_tokenizer

WIDTH = 16


class AoANetCase(CaptionerCase):
    """Two refining layers; states as wide as the word embeddings, so that both can share a matrix."""

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "embedding_size": WIDTH, "hidden_size": WIDTH, "num_heads": 2}
        small = {"refiner_layers": 2, "attention_size": 12, "global_feature_size": 7}
        rates = {"dropout": 0.1, "context_dropout": 0.1}
        return AoANetConfig(**sizes | small | rates | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return AoANetProcessor(images, tiny_word_tokenizer())

    def make_cache(self):
        return RecurrentCache()


class TestAoANet(AoANetCase, CaptionerChecks):
    """The common checks, and the properties of AoANet."""
