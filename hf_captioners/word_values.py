"""Values of tokens gathered over the words that people read."""

from typing import Any

import numpy as np


def word_means(processor: Any, sequence: list[int], values: Any) -> tuple[list[str], list[np.ndarray]]:
    """Words of a caption, each with the mean of the values of its tokens.

    Args:
        processor: decodes tokens.
        sequence: T tokens, the begin token first.
        values: `[T - 1, ...]`, one for every token behind the first.

    Returns:
        Words and means, up to the end token.
    """
    of_word: list[list[Any]] = []
    words: list[str] = []
    for index in range(1, len(sequence)):
        found = processor.decode(sequence[: index + 1]).split()
        if sequence[index] == processor.tokenizer.eos_token_id or not found:
            break
        if len(found) > len(words):
            of_word.append([])
        words = found
        of_word[-1].append(values[index - 1])
    return words, [np.mean(of_one, axis=0) for of_one in of_word]
