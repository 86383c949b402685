"""Options of `generate()` as they are typed, and words that must not occur."""

import inspect

import pytest

from hf_captioners.captioning.batches import caption_batches, load_pipeline
from hf_captioners.captioning.generation_options import (
    bad_word_in,
    bad_words_ids,
    check_generation_options,
    known_options,
)
from hf_captioners.captioning.image_list import find_images
from hf_captioners.interfaces import CaptioningOptions, GenerationOptions
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline
from hf_captioners.processing.word_tokenizer import word_tokenizer


def test_names_and_numbers_are_checked():
    check_generation_options({"num_beams": 3, "bookkeeping": "live", "length_penalty": 0.5, "early_stopping": True})
    for options, said in (
        ({"num_beam": 3}, "Did you mean `num_beams`?"),
        ({"output_scores": True}, "no option of generate"),
        ({"num_beams": 0}, "num_beams=0, expected a whole number from 1"),
        ({"temperature": "hot"}, "temperature=hot, expected a number"),
        ({"top_p": 2.0}, "top_p=2.0, expected a number from 0 to 1"),
        ({"eos_token_id": [-1]}, "expected a token id"),
    ):
        with pytest.raises(ValueError, match="`generate`") as raised:
            check_generation_options(options)
        assert said in str(raised.value)


def test_types_name_every_option():
    """Options that type checkers accept are those that are checked here, and the arguments of the pipeline."""
    assert not known_options() - GenerationOptions.__annotations__.keys(), "add them to hf_captioners/interfaces.py"
    own = inspect.signature(ImageCaptioningPipeline._sanitize_parameters).parameters.keys() - {"self", "options"}
    assert own <= CaptioningOptions.__annotations__.keys()


def test_tokens_of_bad_words():
    """Every form that the vocabulary has; others cannot occur."""
    tokenizer = word_tokenizer(["a", "dog", "hot"])
    assert bad_words_ids(tokenizer, ["Dog", "cat", "hot dog"]) == [[5], [6, 5]]
    assert bad_word_in("A Hot  Dog runs", ["cat", "dog"]) == "dog"
    assert bad_word_in("hotdogs", ["dog", "hot"]) is None and bad_word_in("a dog.", []) is None


def test_bad_words_do_not_occur(images, captioner, tmp_path):
    """The words that the captioner would write are banned, until the captions have none of them."""
    pipeline = load_pipeline(captioner, device="cpu")
    vocabulary = pipeline.tokenizer.get_vocab()
    paths = find_images([str(images)])
    options = {"num_beams": 2, "max_new_tokens": 4}
    pipeline.model.generation_config.suppress_tokens = [
        index for token, index in vocabulary.items() if not token.lstrip("\u0120").isalpha()
    ]
    (batch,) = caption_batches(pipeline, paths, **options)
    words = sorted({word for record in batch.records for word in record["caption"].split()})[:2]
    (without,) = caption_batches(pipeline, paths, bad_words=words, **options)
    left = [record["caption"] for record in without.records]
    assert len(left) + len(without.unreadable) == 10 and not any(bad_word_in(text, words) for text in left)
    assert left != [record["caption"] for record in batch.records]
    assert all("in other tokens" in fault.reason for fault in without.unreadable)
