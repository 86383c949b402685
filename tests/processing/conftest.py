"""Tokenizers and processors without files."""

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_captioning import CaptioningProcessor

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
WORDS = ["a", "man", "dog", "two", "dogs", "on", "the", "beach", "photo", "of", "red", ",", "."]


def word_tokenizer(**tokens):
    """Word level, ids 0-3 pad, bos, eos, unk; `tokens` replace them."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | tokens
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **special)


@pytest.fixture
def image_processor():
    return CaptioningImageProcessor(size={"height": 8, "width": 8})


@pytest.fixture
def build(image_processor):
    """A processor with a word-level vocabulary and the given settings."""
    return lambda tokens=None, **settings: CaptioningProcessor(
        image_processor, word_tokenizer(**(tokens or {})), **settings
    )


@pytest.fixture
def processor(build):
    return build()


@pytest.fixture(scope="session")
def processor_for_properties():
    """Processor of all examples of a property."""
    return CaptioningProcessor(CaptioningImageProcessor(size={"height": 8, "width": 8}), word_tokenizer())
