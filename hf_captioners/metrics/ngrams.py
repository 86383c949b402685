"""N-grams of many captions as arrays of integers.

An n-gram is numbered by the pair (number of its first n - 1 words, last word). The numbers are exact for a vocabulary
of any size, and there are no hash collisions.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, repeat
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
    """The tokens of many captions in one list, and the length of each caption."""

    tokens: list[Hashable]
    lengths: Integers  # [captions]


def split_captions(captions: Iterable[Caption], end_token: Hashable | None = None) -> Words:
    """Split captions into tokens and concatenate these to one list.

    Args:
        captions: tokenised captions. Strings are split at white space.
        end_token: a token to append to every caption, for document frequencies that count the end.
    """
    rows = [caption.split() if isinstance(caption, str) else _ids(caption) for caption in captions]
    if end_token is not None:
        rows = [[*row, end_token] for row in rows]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return Words(list(chain.from_iterable(rows)), lengths)


def _ids(caption: Sequence[int]) -> list[int]:
    return caption.tolist() if isinstance(caption, np.ndarray) else list(caption)


def cut_at_end(rows: Iterable[Sequence[int]], end_id: int) -> list[list[int]]:
    """Cut each row of token ids after its first end id, which is kept. Self-critical training scores such captions.

    Args:
        rows: token ids, `[captions, tokens]` or rows of any lengths. A row without end id is kept whole.
        end_id: the id that ends a caption.

    Returns:
        The cut rows as lists.

    Examples:
        >>> from hf_captioners.metrics import cut_at_end
        >>> cut_at_end([[5, 7, 0, 0], [5, 8, 9, 4]], end_id=0)
        [[5, 7, 0], [5, 8, 9, 4]]
    """
    captions = map(_ids, rows)
    return [row[: row.index(end_id) + 1] if end_id in row else row for row in captions]


class NGramTable:
    """Numbering of n-grams of 1 to 4 words, which can extend a base table.

    The number of an n-gram is `4 * index + n - 1`; the indices count the n-grams of all orders from 0.

    Args:
        words: the captions whose n-grams are numbered.
        base: a table whose numbers are kept. It is not changed.

    Attributes:
        grams: `[n-grams]` the numbers of all n-grams of `words`.
        captions: `[n-grams]` the position of the caption that contains each n-gram.
        size: the number of distinct n-grams, including those of the base.
    """

    def __init__(self, words: Words, base: "NGramTable | None" = None) -> None:
        self._base = base
        self._first_word: int = base.n_words if base is not None else 0
        self._first_index: int = base.size if base is not None else 0
        self._words: dict[Hashable, int] = {}
        self.size: int = self._first_index
        self._own_keys = [np.empty(0, dtype=np.int64)]
        self.grams, self.captions = self._number_captions(words)
        self._map = IntegerMap(np.concatenate(self._own_keys))

    @classmethod
    def of_keys(cls, words: Sequence[Hashable], keys: Integers) -> "NGramTable":
        """Restore a table without base from its `words` and `keys`."""
        table = cls(Words([], np.empty(0, dtype=np.int64)))
        table._words = {word: number for number, word in enumerate(words)}
        table._map, table.size = IntegerMap(keys), len(keys)
        return table

    @property
    def n_words(self) -> int:
        """The number of distinct words, including those of the base."""
        return self._first_word + len(self._words)

    @property
    def words(self) -> list[Hashable]:
        """The distinct words of this table without its base, in the order of their numbers."""
        return list(self._words)

    @property
    def keys(self) -> Integers:
        """The (first words, last word) keys of this table without its base, in the order of their indices."""
        return self._map.keys

    def _number_captions(self, words: Words) -> tuple[Integers, Integers]:
        last = self._number_words(words.tokens)
        if self.n_words > MAX_WORDS:
            raise ValueError(f"{self.n_words} distinct words, at most {MAX_WORDS} can be numbered.")
        caption_of = np.repeat(np.arange(len(words.lengths)), words.lengths)
        # [tokens] number of words that follow in the same caption
        words_left = np.repeat(np.cumsum(words.lengths), words.lengths) - np.arange(len(last)) - 1
        ends = np.arange(len(last))  # last position of each n-gram of this order
        keys = last
        grams, captions = [], []
        for order in range(ORDERS):
            numbers = self._number_keys(keys) * ORDERS + order
            grams.append(numbers)
            captions.append(caption_of[ends])
            continued = np.flatnonzero(words_left[ends] > 0)
            ends = ends[continued] + 1
            keys = (numbers[continued] + 1) << _WORD_BITS | last[ends]
        return np.concatenate(grams), np.concatenate(captions)

    def _number_words(self, tokens: list[Hashable]) -> Integers:
        numbers = self.find_words(tokens)
        for place in np.flatnonzero(numbers < 0).tolist():
            numbers[place] = self._words.setdefault(tokens[place], self.n_words)
        return numbers

    def find_words(self, tokens: list[Hashable]) -> Integers:
        """Return the `[tokens]` numbers of words, or -1 for words that are not in the table."""
        if self._base is None:
            return np.fromiter(map(self._words.get, tokens, repeat(-1)), dtype=np.int64, count=len(tokens))
        numbers = self._base.find_words(tokens)
        if self._words:
            for place in np.flatnonzero(numbers < 0).tolist():
                numbers[place] = self._words.get(tokens[place], -1)
        return numbers

    def _number_keys(self, keys: Integers) -> Integers:
        indices = self._base.find_keys(keys) if self._base is not None else np.full(len(keys), -1)
        new = np.flatnonzero(indices < 0)
        if len(new):
            distinct, places = np.unique(keys[new], return_inverse=True)
            indices[new] = places + self.size
            self._own_keys.append(distinct)
            self.size += len(distinct)
        return indices

    def find_keys(self, keys: Integers) -> Integers:
        """Return the index of each (first words, last word) key, or -1 for keys that are not in the table."""
        if self._base is None:
            return self._map.find(keys)
        indices = self._base.find_keys(keys)
        unknown = np.flatnonzero(indices < 0)
        if len(unknown) and len(self._map):
            positions = self._map.find(keys[unknown])
            indices[unknown] = np.where(positions >= 0, positions + self._first_index, -1)
        return indices


def count(keys: Integers) -> tuple[Integers, Integers]:
    """Return the distinct keys in ascending order and their numbers of occurrences."""
    keys = np.sort(keys)
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1)) if len(keys) else keys
    return keys[starts], np.diff(starts, append=len(keys))
