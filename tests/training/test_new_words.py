"""Captioners with further words: everything else stays as it was."""

import pytest
import torch

from hf_captioners.loading import load_captioner
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.word_tokenizer import build_word_tokenizer
from hf_captioners.training.new_words import add_words, unknown_words
from hf_captioners.training.starting import ModelArguments, with_new_words
from tests.hub.captioner_cases import case_of
from tests.variants import slow_unless

CAPTIONS = ["A dog's ball.", "two cats sit", "a dog and a cat"]
FAST = ("show_attend_tell", "transformer")
OF_WORDS = ("aoanet", "eta", "image_transformer", "m2_transformer", *FAST)


def captioner_of(name):
    case, tokenizer = case_of(name), build_word_tokenizer(CAPTIONS, at_least=1)
    ids = {f"{part}_token_id": getattr(tokenizer, f"{part}_token_id") for part in ("bos", "eos", "pad")}
    model = case.make_model(vocab_size=len(tokenizer), decoder_start_token_id=ids["bos_token_id"], **ids)
    processor = type(case.make_processor())(CaptioningImageProcessor(), tokenizer)
    return case, model.eval(), processor


@pytest.mark.parametrize("name", slow_unless(FAST.__contains__, OF_WORDS))
def test_known_words_keep_their_ids_and_logits(name, tmp_path):
    case, model, processor = captioner_of(name)
    size = model.config.vocab_size
    larger, larger_processor = add_words(model, processor, ["giraffe", "zebra"])
    rows = torch.tensor([[model.config.decoder_start_token_id, 4, 6, 5]] * 3)
    inputs = {**case.inputs("regions"), "decoder_input_ids": rows}
    if "attribute_ids" in model.config.encoder_inputs:
        inputs["attribute_ids"] = torch.tensor([[4, 5]] * 3)
    with torch.no_grad():
        expected, logits = model(**inputs).logits, larger(**inputs).logits
    torch.testing.assert_close(logits[..., :size], expected, atol=1e-6, rtol=0)
    assert (logits[..., size:].amax(-1) < expected.amax(-1)).all(), (
        "new words are not generated before they are learnt"
    )
    ids = larger_processor.encode_captions(["a giraffe and a zebra"])[0].tolist()
    assert size in ids and size + 1 in ids and larger.config.vocab_size == size + 2
    larger.save_pretrained(tmp_path)
    larger_processor.save_pretrained(tmp_path)
    loaded, loaded_processor = load_captioner(str(tmp_path))
    assert loaded_processor.decode(ids) == "a giraffe and a zebra" and loaded.lm_head.weight.shape[0] == size + 2
    assert model.config.vocab_size == size == len(processor.tokenizer), "the captioner has changed"


def test_words_that_occur_often_enough_are_added_in_the_form_of_the_tokenizer():
    _, model, processor = captioner_of("transformer")
    captions = ["The giraffe's neck", "giraffes (two)", "a GIRAFFE", "giraffe, zebra!"]
    assert unknown_words(captions, processor, 2) == {"giraffe": 2, "giraffes": 2}
    larger, _, line = with_new_words(ModelArguments(model="x", new_words=2), model, processor, captions)
    assert line == "Added 2 words that the captioner did not know: 'giraffe' (2), 'giraffes' (2)."
    assert larger.config.vocab_size == model.config.vocab_size + 2
    same, _, line = with_new_words(ModelArguments(model="x", new_words=9), model, processor, captions)
    assert same is model and line.startswith("No unknown word occurs 9 times")


def test_a_vocabulary_of_bytes_is_refused(processor):
    with pytest.raises(ValueError, match="`new_words=2`.*is a BPE"):
        unknown_words(["a giraffe"], processor, 2)


def test_a_known_word_is_refused():
    _, model, processor = captioner_of("transformer")
    with pytest.raises(ValueError, match="'dogs'"):
        add_words(model, processor, ["dogs"])
