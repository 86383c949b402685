"""In how many documents each n-gram occurs: the part of CIDEr that is computed once and kept."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from .input_checks import check_references
from .ngrams import ORDERS, Caption, NGramTable, Words, count, split_captions

_FORMAT = 1


class DocumentFrequency:
    """Document frequencies of n-grams of 1 to 4 words.

    Make one with `per_image` or `per_caption`; the two conventions give different scores, and a score is comparable
    only with scores of the same convention and corpus.

    Attributes:
        n_documents: N, the number of documents.
        table: the numbered n-grams.
        counts: for each order, `[n-grams]` documents that hold the n-gram.
        end_token: the token that was appended to every caption, if any. Scores that use this object append it to
            candidates and references too.
        source: what was counted, in words.
    """

    def __init__(
        self, words: Words, documents: NDArray[np.int64], end_token: Hashable | None, unit: str, n_documents: int
    ) -> None:
        self._words, self._documents, self._unit = words, documents, unit
        self.end_token = end_token
        self.n_documents = n_documents
        self.table = NGramTable(words)
        self.counts = [self._count(order) for order in range(ORDERS)]

    @classmethod
    def per_image(
        cls, references: Sequence[Sequence[Caption]], end_token: Hashable | None = None
    ) -> DocumentFrequency:
        """Count in how many pictures an n-gram occurs, as CIDEr is defined (Vedantam et al. 2015, Eq. 1).

        Args:
            references: for each picture its tokenised captions (strings, or lists of token ids).
            end_token: a token to append to every caption, as ImageCaptioning.pytorch does in training.
        """
        check_references(references)
        words = split_captions([caption for captions in references for caption in captions], end_token)
        pictures = np.repeat(np.arange(len(references)), [len(captions) for captions in references])
        return cls(words, pictures, end_token, "pictures", len(references))

    @classmethod
    def per_caption(cls, captions: Sequence[Caption]) -> DocumentFrequency:
        """Count in how many captions an n-gram occurs, as meshed-memory-transformer and VisualGPT do in training."""
        words = split_captions(captions)
        return cls(words, np.arange(len(captions)), None, "captions", len(captions))

    @property
    def source(self) -> str:
        """What was counted, in words."""
        ending = "" if self.end_token is None else f", each caption ending in {self.end_token!r}"
        return f"{self.n_documents} {self._unit}{ending}"

    def _count(self, order: int) -> NDArray[np.int64]:
        grams, size = self.table.grams[order], self.table.sizes[order]
        keys, _ = count(self._documents[grams.captions] * size + grams.numbers)
        return np.bincount(keys % max(1, size), minlength=size)
