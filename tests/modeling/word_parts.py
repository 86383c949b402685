"""A tokenizer of few words, for captioners with a vocabulary of whole words."""

from typing import Any

from hf_captioners.processing.word_tokenizer import word_tokenizer

NOUNS = ["dog", "cat", "man", "woman", "ball", "grass", "water", "street", "car"]
OTHERS = ["a", "the", "red", "blue", "big", "small", "on", "in", "with", "runs", "sits", "holds", "two", "three", "is"]
SPECIAL = 4
UNUSED = 2  # ids without a word
VOCABULARY = SPECIAL + len(NOUNS) + len(OTHERS) + UNUSED


def tiny_word_tokenizer() -> Any:
    """24 words; `<pad>`, `<bos>`, `<eos>` and `<unk>` are 0 to 3."""
    return word_tokenizer(NOUNS + OTHERS)
