"""Word splitting and vocabularies by the rules of the papers.

| model | words are counted in | kept | rest |
|---|---|---|---|
| AoANet, Image Transformer, ZoDIAC and their family | all splits, Karpathy's tokens | more than 5 times | `UNK` |
| M2, Transformer | train and restval | 5 times or more | `<unk>` |
| R2Gen (IU X-ray) | train, cleaned reports split at spaces | 3 times or more | `<unk>` |
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

DELETED = str.maketrans("", "", "'.")
SEPARATORS = re.compile(r'[,;!?"()\-/\r\n]')


def composed(text: str) -> str:
    """Normalise a text to composed Unicode (NFC): an accented letter is the same however it was typed."""
    return unicodedata.normalize("NFC", text)


def karpathy_words(caption: str) -> list[str]:
    """Split a caption into words as Karpathy's files do: lower-case, `'` and `.` deleted, other punctuation to spaces.

    Returns:
        The words; `&`, `#`, `:` and `$` stay.
    """
    return SEPARATORS.sub(" ", caption.lower().translate(DELETED)).split()


def count_words(captions: Iterable[Sequence[str]]) -> Counter[str]:
    """Count how often each word occurs in captions.

    Args:
        captions: the words of each caption.
    """
    return Counter(word for words in captions for word in words)


def vocabulary(counts: Counter[str], at_least: int) -> list[str]:
    """Return the words that occur `at_least` times, by descending frequency, then alphabetically.

    Raises:
        ValueError: no word is that frequent.
    """
    kept = sorted(
        (word for word, count in counts.items() if count >= at_least), key=lambda word: (-counts[word], word)
    )
    if not kept:
        raise ValueError(
            f"No word occurs {at_least} times; the most frequent occurs {max(counts.values(), default=0)}."
        )
    return kept


def attribute_words(captions: Iterable[str], number: int) -> list[str]:
    """Return the most frequent words of captions as attributes, most frequent first.

    Raises:
        ValueError: `number` is below 1, or there are no captions.
    """
    if number < 1:
        raise ValueError(f"`num_words` is {number}, expected at least 1.")
    return vocabulary(count_words(karpathy_words(caption) for caption in captions), 1)[:number]


def attribute_labels(captions: Sequence[Sequence[str]], words: Sequence[str]) -> np.ndarray:
    """Return a bool array `[N, W]`: True where a caption of the image has the word."""
    place = {word: index for index, word in enumerate(words)}
    labels = np.zeros((len(captions), len(words)), dtype=bool)
    for row, of_image in enumerate(captions):
        columns = {place[word] for caption in of_image for word in karpathy_words(caption) if word in place}
        labels[row, sorted(columns)] = True
    return labels


def word_means(processor: Any, sequence: list[int], values: Any) -> tuple[list[str], list[np.ndarray]]:
    """Average values of tokens over the tokens of each word.

    Args:
        processor: decodes tokens.
        sequence: T tokens, the begin token first.
        values: `[T - 1, ...]`, one for each token after the first.

    Returns:
        The words up to the end token, and for each word the mean over its tokens.
    """
    of_word: list[list[Any]] = []
    words: list[str] = []
    for index in range(1, len(sequence)):
        words_so_far = processor.decode(sequence[: index + 1]).split()
        if sequence[index] == processor.tokenizer.eos_token_id:
            break
        if not words_so_far:  # a blank before the first word
            continue
        if len(words_so_far) > len(words):
            of_word.append([])
        words = words_so_far
        of_word[-1].append(values[index - 1])
    return words, [np.mean(word_values, axis=0) for word_values in of_word]
