"""Values of tokens, averaged over the words of a caption."""

from typing import Any

import numpy as np


def word_means(processor: Any, sequence: list[int], values: Any) -> tuple[list[str], list[np.ndarray]]:
    """Average the values of tokens over words.

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
        found = processor.decode(sequence[: index + 1]).split()
        if sequence[index] == processor.tokenizer.eos_token_id:
            break
        if not found:  # a blank before the first word
            continue
        if len(found) > len(words):
            of_word.append([])
        words = found
        of_word[-1].append(values[index - 1])
    return words, [np.mean(of_one, axis=0) for of_one in of_word]
