"""Tokenizers of whole words: what is kept, where the special tokens stand, and that AutoTokenizer needs nothing."""

import unicodedata

import pytest
from transformers import AutoTokenizer

from hf_captioners.processing.vocabulary import karpathy_words
from hf_captioners.processing.word_tokenizer import LAYOUTS, build_word_tokenizer, word_tokenizer

CAPTIONS = ["A dog's ball , on the grass.", "a man-made dog (red) & a cat!", "the dog"]


def test_words_by_frequency_after_the_special_tokens():
    tokenizer = build_word_tokenizer(CAPTIONS, at_least=2)
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == [
        "<pad>",
        "<bos>",
        "<eos>",
        "<unk>",
        "a",
        "dog",
        "the",
    ]
    ids = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    assert ids == [0, 1, 2, 3]
    assert tokenizer("The DOG, a zebra.").input_ids == [6, 5, 4, 3]
    assert tokenizer.decode([1, 6, 5, 2], skip_special_tokens=True) == "the dog"


def test_words_are_split_as_in_the_data_sets_files():
    tokenizer = build_word_tokenizer(CAPTIONS, at_least=1)
    for caption in CAPTIONS:
        assert tokenizer.convert_ids_to_tokens(tokenizer(caption).input_ids) == karpathy_words(caption)


def test_size_counts_special_tokens():
    assert len(build_word_tokenizer(CAPTIONS, at_least=1, size=6)) == 6
    with pytest.raises(ValueError, match="`size` is 4, expected more than the 4 special tokens"):
        build_word_tokenizer(CAPTIONS, at_least=1, size=4)


@pytest.mark.parametrize(
    ("layout", "ids"),
    [
        ("default", {"pad": 0, "bos": 1, "eos": 2, "unk": 3, "dog": 4, "cat": 5}),
        ("arctic", {"eos": 0, "pad": 0, "unk": 1, "dog": 2, "cat": 3, "bos": 4}),
        ("start_end", {"pad": 0, "dog": 1, "cat": 2, "unk": 3, "bos": 4, "eos": 5}),
        ("zero", {"bos": 0, "eos": 0, "pad": 0, "dog": 1, "cat": 2, "unk": 3}),
        ("m2", {"unk": 0, "pad": 1, "bos": 2, "eos": 3, "dog": 4, "cat": 5}),
    ],
)
def test_layouts_of_older_code(layout, ids, tmp_path):
    word_tokenizer(["dog", "cat"], layout).save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    found = {role: getattr(again, f"{role}_token_id") for role in ("bos", "eos", "pad", "unk")}
    found |= {word: again(word).input_ids[0] for word in ("dog", "cat")}
    assert found == ids
    assert layout in LAYOUTS


def test_case_may_be_kept():
    tokenizer = word_tokenizer(["Dog", "dog"], lowercase=False)
    assert tokenizer("Dog dog").input_ids == [4, 5]


@pytest.mark.parametrize(
    ("words", "layout", "message"),
    [
        (["dog", "cat", "dog"], "default", "'dog' occurs twice"),
        (["dog", "<eos>"], "default", "'<eos>' occurs twice"),
        (["dog"], "karpathy", "`layout` is 'karpathy', expected one of default, arctic"),
    ],
)
def test_wrong_words(words, layout, message):
    with pytest.raises(ValueError, match=message):
        word_tokenizer(words, layout)


def test_no_word_is_frequent_enough():
    with pytest.raises(ValueError, match="No word occurs 9 times"):
        build_word_tokenizer(CAPTIONS, at_least=9)


@pytest.mark.parametrize(
    ("rule", "caption", "words", "text"),
    [
        ("characters", "一只狗，在OK 海滩。", ["一", "只", "狗", "在", "o", "k", " ", "海", "滩"], "一只狗在ok 海滩"),
        ("characters", "นี่ น้ำ", ["นี่", " ", "น้ำ"], "นี่ น้ำ"),
        ("unicode", "Ein 3.5-m-Hund läuft!", ["ein", "3.5", "m", "hund", "läuft"], "ein 3.5 m hund läuft"),
        ("unicode", "كلب، يجري؟", ["كلب", "يجري"], "كلب يجري"),
    ],
)
def test_words_of_other_languages_survive_saving(tmp_path, rule, caption, words, text):
    tokenizer = build_word_tokenizer([unicodedata.normalize("NFD", caption)], at_least=1, rule=rule)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded(caption, add_special_tokens=False)["input_ids"]
    assert loaded.convert_ids_to_tokens(ids) == words and loaded.unk_token_id not in ids
    assert loaded.decode([*ids, loaded.eos_token_id], skip_special_tokens=True) == text


def test_an_unknown_rule_of_words_is_refused():
    with pytest.raises(ValueError, match="expected one of karpathy, unicode, characters"):
        build_word_tokenizer(CAPTIONS, at_least=1, rule="words")
