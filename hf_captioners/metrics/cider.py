"""CIDEr-D and the original CIDEr (Vedantam et al., CVPR 2015), vectorised.

The usual "CIDEr" of captioning papers, of coco-caption and of pycocoevalcap is CIDEr-D.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .document_frequency import DocumentFrequency
from .input_checks import check_references
from .integer_map import Integers
from .ngrams import ORDERS, Caption, NGramTable, count, split_captions

Floats = NDArray[np.float64]


class _References(NamedTuple):
    """The weighted n-grams of one order of all references."""

    keys: Integers  # [entries], ascending: picture and n-gram
    captions: Integers  # [entries], the reference among those of its picture
    weights: Floats  # [entries]
    norms: Floats  # [references]


class _Cider:
    """What CIDEr-D and CIDEr share; a subclass says how two weights are compared and lengths are judged."""

    def __init__(
        self, references: Sequence[Sequence[Caption]], document_frequency: DocumentFrequency | None = None
    ) -> None:
        check_references(references)
        self.document_frequency = document_frequency or DocumentFrequency.per_image(references)
        self._n_references = np.fromiter(map(len, references), dtype=np.int64, count=len(references))
        self._first_reference = np.cumsum(self._n_references) - self._n_references
        flat = [caption for captions in references for caption in captions]
        words = split_captions(flat, self.document_frequency.end_token)
        self._bigrams = np.maximum(0, words.lengths - 1)
        self._table = NGramTable(words, base=self.document_frequency.table)
        self._orders = [self._prepare(order) for order in range(ORDERS)]

    def score(self, candidates: Sequence[Caption], pictures: Sequence[int] | Integers | None = None) -> Floats:
        """Score candidates, each against all references of its picture.

        Args:
            candidates: tokenised captions, strings or lists of token ids like the references.
            pictures: `[candidates]`, the position of each candidate's picture among the references; without it the
                candidates belong to the pictures one to one.

        Returns:
            `[candidates]` scores, 0 to 10, in natural units (1.2 is what papers print as 120).

        Raises:
            ValueError: the number of candidates is not that of `pictures`, or not that of the pictures without it.
            IndexError: a position in `pictures` is out of range.
        """
        own = self._pictures_of(candidates, pictures)
        words = split_captions(candidates, self.document_frequency.end_token)
        table = NGramTable(words, base=self._table)
        n_pairs = self._n_references[own]
        first_pair = np.cumsum(n_pairs) - n_pairs
        candidate_of = np.repeat(np.arange(len(own)), n_pairs)
        reference_of = (
            np.arange(len(candidate_of)) - first_pair[candidate_of] + self._first_reference[own[candidate_of]]
        )
        total = np.zeros(len(candidate_of))
        for order, stored in enumerate(self._orders):
            numbers, captions, weights = self._weigh(order, table)
            norms = np.sqrt(np.bincount(captions, weights**2, minlength=len(own)))
            dots = self._compare(order, stored, numbers, own[captions], weights, first_pair[captions], len(total))
            scale = norms[candidate_of] * stored.norms[reference_of]
            total += np.divide(dots, scale, out=dots, where=scale != 0)
        total *= self._length_penalty(np.maximum(0, words.lengths - 1)[candidate_of] - self._bigrams[reference_of])
        return 10.0 * np.bincount(candidate_of, total, minlength=len(own)) / (ORDERS * n_pairs)

    def _pictures_of(self, candidates: Sequence[Caption], pictures: Sequence[int] | Integers | None) -> Integers:
        n_pictures = len(self._n_references)
        if pictures is None and len(candidates) != n_pictures:
            raise ValueError(
                f"{len(candidates)} candidates for {n_pictures} pictures, expected one each. For several candidates a "
                f"picture pass `pictures`, the position of each candidate's picture."
            )
        own = np.arange(n_pictures) if pictures is None else np.asarray(pictures, dtype=np.int64)
        if len(own) != len(candidates):
            raise ValueError(
                f"`pictures` has {len(own)} positions for {len(candidates)} candidates, expected one each."
            )
        if len(own) and not 0 <= own.min() <= own.max() < n_pictures:
            raise IndexError(f"`pictures` runs from {own.min()} to {own.max()}, expected 0 to {n_pictures - 1}.")
        return own

    def _idf(self, order: int, numbers: Integers) -> Floats:
        counts = self.document_frequency.counts[order]
        known = numbers < len(counts)
        frequency = np.ones(len(numbers))
        frequency[known] = np.maximum(1, counts[numbers[known]])
        return np.log(self.document_frequency.n_documents) - np.log(frequency)

    def _weigh(self, order: int, table: NGramTable) -> tuple[Integers, Integers, Floats]:
        """Return the distinct n-grams of each caption: their numbers, their captions and their tf-idf."""
        grams, size = table.grams[order], max(1, table.sizes[order])
        keys, counts = count(grams.captions * size + grams.numbers)
        captions, numbers = np.divmod(keys, size)
        return numbers, captions, counts * self._idf(order, numbers)

    def _prepare(self, order: int) -> _References:
        numbers, captions, weights = self._weigh(order, self._table)
        norms = np.sqrt(np.bincount(captions, weights**2, minlength=len(self._bigrams)))
        pictures = np.repeat(np.arange(len(self._n_references)), self._n_references)[captions]
        keys = pictures * self._table.sizes[order] + numbers
        rank = np.argsort(keys, kind="stable")
        return _References(keys[rank], (captions - self._first_reference[pictures])[rank], weights[rank], norms)

    def _compare(
        self,
        order: int,
        stored: _References,
        numbers: Integers,
        pictures: Integers,
        weights: Floats,
        first_pair: Integers,
        n_pairs: int,
    ) -> Floats:
        """Return `[candidate-reference pairs]` sums over the n-grams that both captions hold."""
        size = self._table.sizes[order]
        known = np.flatnonzero(numbers < size)
        keys = pictures[known] * size + numbers[known]
        starts = np.searchsorted(stored.keys, keys, side="left")
        lengths = np.searchsorted(stored.keys, keys, side="right") - starts
        mine = np.repeat(known, lengths)
        theirs = np.arange(len(mine)) - np.repeat(np.cumsum(lengths) - lengths - starts, lengths)
        products = self._product(weights[mine], stored.weights[theirs])
        sums = np.bincount(first_pair[mine] + stored.captions[theirs], products, minlength=n_pairs)
        return sums.astype(np.float64)  # without any entry `bincount` counts in integers

    def _product(self, candidate: Floats, reference: Floats) -> Floats:
        raise NotImplementedError

    def _length_penalty(self, difference: Integers) -> Floats | float:
        raise NotImplementedError


class CiderD(_Cider):
    """CIDEr-D: clipped weights and a Gaussian penalty on length (sigma 6), as coco-caption computes it.

    The object holds the references prepared for scoring, so that many candidates can be scored against them:
    `CiderD(references, frequencies).score(samples, pictures)` is a self-critical reward.

    Args:
        references: for each picture its tokenised captions: strings of words separated by white space, or lists of
            token ids (an end id counts as a word if it is there).
        document_frequency: the document frequencies; without them those of `references`, one document a picture,
            which for a single picture makes every score 0.

    Raises:
        TypeError: a string stands where a list of captions is expected.
        ValueError: there are no references, or none for some picture.

    Source: Vedantam et al. 2015, section 7; Eq. 1 to 4.
    """

    def _product(self, candidate: Floats, reference: Floats) -> Floats:
        return np.minimum(candidate, reference) * reference

    def _length_penalty(self, difference: Integers) -> Floats:
        return np.exp(-(difference**2) / (2 * 6.0**2))


class CiderOriginal(_Cider):
    """CIDEr without clipping and length penalty; like the released program, and unlike the paper, without stemming.

    Arguments and errors are those of `CiderD`.

    Source: Vedantam et al. 2015, Eq. 1 to 3.
    """

    def _product(self, candidate: Floats, reference: Floats) -> Floats:
        return candidate * reference

    def _length_penalty(self, difference: Integers) -> float:
        return 1.0
