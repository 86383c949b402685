"""N-grams of many captions as arrays of integers.

An n-gram is numbered by the pair (number of its first n - 1 words, last word), so numbers are exact whatever the size
of the vocabulary, and nothing is hashed that could collide.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .integer_map import IntegerMap, Integers

ORDERS = 4
"""BLEU and CIDEr count n-grams of 1 to 4 words."""

Caption = str | Sequence[int]
"""A tokenised caption: words separated by white space, or token ids."""

_WORD_BITS = 24
MAX_WORDS = 1 << _WORD_BITS


class Words(NamedTuple):
    """Captions laid end to end."""

    tokens: list[Hashable]
    lengths: Integers  # [captions]


def split_captions(captions: Iterable[Caption], end_token: Hashable | None = None) -> Words:
    """Lay captions end to end.

    Args:
        captions: tokenised captions; strings are split at white space.
        end_token: a token to append to every caption, for document frequencies that count the end.
    """
    rows = [caption.split() if isinstance(caption, str) else _ids(caption) for caption in captions]
    if end_token is not None:
        rows = [[*row, end_token] for row in rows]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return Words([token for row in rows for token in row], lengths)


def _ids(caption: Sequence[int]) -> list[int]:
    return caption.tolist() if isinstance(caption, np.ndarray) else list(caption)


def cut_at_end(rows: Iterable[Sequence[int]], end_id: int) -> list[list[int]]:
    """Cut each row of token ids behind its first end id, which stays: the captions that self-critical training scores.

    Args:
        rows: token ids, `[captions, tokens]` or rows of any lengths; a row without end id stays whole.
        end_id: the id that ends a caption.
    """
    captions = map(_ids, rows)
    return [row[: row.index(end_id) + 1] if end_id in row else row for row in captions]


class NGrams(NamedTuple):
    """All n-grams of one order, in the order in which they stand in the captions."""

    numbers: Integers  # [n-grams]
    captions: Integers  # [n-grams], the caption each one stands in


class NGramTable:
    """Numbers n-grams of 1 to 4 words, on top of the numbers of another table if there is one.

    Args:
        words: the captions whose n-grams the table holds.
        base: a table whose numbers stay as they are; it is not changed.

    Attributes:
        grams: for n = 1 to 4 the n-grams of `words`.
        sizes: how many distinct n-grams of each order are numbered, the base's included.
    """

    def __init__(self, words: Words, base: "NGramTable | None" = None) -> None:
        self._base = base
        self._first_word: int = base.n_words if base is not None else 0
        self._words: dict[Hashable, int] = {}
        self._maps: list[IntegerMap] = []
        self.sizes: list[int] = []
        self.grams: list[NGrams] = []
        self._number_captions(words)

    @classmethod
    def of_keys(cls, words: Sequence[Hashable], keys: Sequence[Integers]) -> "NGramTable":
        """Make a table again from the `words` and `keys` of one that had no base."""
        table = cls(Words([], np.empty(0, dtype=np.int64)))
        table._words = {word: number for number, word in enumerate(words)}
        table._maps = [IntegerMap(of_order) for of_order in keys]
        table.sizes = [len(of_order) for of_order in keys]
        return table

    @property
    def words(self) -> list[Hashable]:
        """The distinct words of this table alone, in the order of their numbers."""
        return list(self._words)

    @property
    def keys(self) -> list[Integers]:
        """For each order the (prefix, word) keys of this table alone, in the order of their numbers."""
        return [own.keys for own in self._maps]

    @property
    def n_words(self) -> int:
        """How many distinct words are numbered."""
        return self._first_word + len(self._words)

    def _number_captions(self, words: Words) -> None:
        last = np.array(self._number_words(words.tokens), dtype=np.int64)
        if self.n_words > MAX_WORDS:
            raise ValueError(f"{self.n_words} distinct words, at most {MAX_WORDS} can be numbered.")
        captions = np.repeat(np.arange(len(words.lengths)), words.lengths)
        prefix = np.zeros(len(last), dtype=np.int64)
        inside = np.arange(len(last))  # where an n-gram of this order ends
        for order in range(ORDERS):
            keys = prefix << _WORD_BITS | last[inside]
            numbers = self._number_keys(order, keys)
            self.grams.append(NGrams(numbers, captions[inside]))
            goes_on = np.flatnonzero(inside + 1 < len(last))
            goes_on = goes_on[captions[inside[goes_on] + 1] == captions[inside[goes_on]]]
            prefix, inside = numbers[goes_on], inside[goes_on] + 1

    def _number_words(self, tokens: list[Hashable]) -> list[int | None]:
        numbers: list[int | None]
        numbers = self._base.find_words(tokens) if self._base is not None else [None] * len(tokens)
        own, first = self._words, self._first_word
        return [
            own.setdefault(token, first + len(own)) if number is None else number
            for token, number in zip(tokens, numbers, strict=True)
        ]

    def find_words(self, tokens: list[Hashable]) -> list[int | None]:
        """Return the number of each word, None for words that are not in the table."""
        own = list(map(self._words.get, tokens))
        if self._base is None:
            return own
        below = self._base.find_words(tokens)
        return [mine if number is None else number for number, mine in zip(below, own, strict=True)]

    def _number_keys(self, order: int, keys: Integers) -> Integers:
        numbers = self._base.find_keys(order, keys) if self._base is not None else np.full(len(keys), -1)
        offset = self._base.sizes[order] if self._base is not None else 0
        new = np.flatnonzero(numbers < 0)
        distinct, positions = np.unique(keys[new], return_inverse=True)
        numbers[new] = positions + offset
        self._maps.append(IntegerMap(distinct))
        self.sizes.append(offset + len(distinct))
        return numbers

    def find_keys(self, order: int, keys: Integers) -> Integers:
        """Return the number of each (prefix, word) key of n-grams of `order` + 1 words, -1 if the table lacks it."""
        found = self._maps[order].find(keys)
        if self._base is None:
            return found
        below = self._base.find_keys(order, keys)
        return np.where(below >= 0, below, np.where(found >= 0, found + self._base.sizes[order], -1))


def count(keys: Integers) -> tuple[Integers, Integers]:
    """Return the distinct keys in ascending order and how often each occurs."""
    keys = np.sort(keys)
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1)) if len(keys) else keys
    return keys[starts], np.diff(starts, append=len(keys))
