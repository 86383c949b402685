"""A tokenizer of few words, for captioners with a vocabulary of whole words."""

from typing import Any

from hf_captioners.data.word_tokenizer import word_tokenizer

WORDS = "a the dog cat man woman ball grass water red blue big small on in with runs sits holds two three and is at".split()
VOCABULARY = 4 + len(WORDS) + 2  # special tokens, words, and two ids that no word has


def tiny_word_tokenizer() -> Any:
    """28 words and special tokens; `<pad>`, `<bos>`, `<eos>` and `<unk>` are 0 to 3."""
    return word_tokenizer(WORDS)
