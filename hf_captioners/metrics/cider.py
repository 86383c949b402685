"""CIDEr-D and the original CIDEr (Vedantam et al., CVPR 2015), vectorised.

Captioning papers, coco-caption and pycocoevalcap report CIDEr-D under the name "CIDEr".
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


class _Weighted(NamedTuple):
    """The distinct n-grams of many captions with their tf-idf weights."""

    grams: Integers  # [entries], numbers of an `NGramTable`
    groups: Integers  # [entries], ascending: the image of a reference; each candidate is a group of its own
    places: Integers  # [entries], the position of the caption within its group
    weights: Floats  # [entries], tf-idf
    norms: Floats  # [captions, orders]


class _Cider:
    """Base class of CIDEr-D and CIDEr. Subclasses define the product of two weights and the length penalty."""

    def __init__(
        self, references: Sequence[Sequence[Caption]], document_frequency: DocumentFrequency | None = None
    ) -> None:
        check_references(references)
        if document_frequency is None:
            self.document_frequency = DocumentFrequency.per_image(references)
        else:
            self.document_frequency = document_frequency
        self._n_references = np.fromiter(map(len, references), dtype=np.int64, count=len(references))
        self._first_reference = np.cumsum(self._n_references) - self._n_references
        flat = [caption for captions in references for caption in captions]
        words = split_captions(flat, self.document_frequency.end_token)
        self._bigrams = np.maximum(0, words.lengths - 1)
        if document_frequency is None:
            self._table = self.document_frequency.table  # built from these captions
        else:
            self._table = NGramTable(words, base=document_frequency.table)
        weighted = self._weigh(self._table, self._n_references)
        self._norms, self._weights, self._places = weighted.norms, weighted.weights, weighted.places
        self._present = np.zeros(self._table.size, dtype=bool)  # [n-grams] whether any reference contains it
        self._present[weighted.grams // ORDERS] = True
        # The entries of one n-gram of an image, one for each reference that contains it, are adjacent.
        self._keys, self._lengths = count(weighted.groups * self._size + weighted.grams)
        self._starts = np.cumsum(self._lengths) - self._lengths

    def score(self, candidates: Sequence[Caption], images: Sequence[int] | Integers | None = None) -> Floats:
        """Score each candidate against all references of its image.

        Args:
            candidates: tokenised captions, as strings or lists of token ids like the references.
            images: `[candidates]` the position of each candidate's image among the references. By default there is
                one candidate per image, in the same order.

        Returns:
            `[candidates]` scores between 0 and 10. Papers print a score of 1.2 as 120.

        Raises:
            ValueError: the number of candidates differs from the length of `images`, or from the number of images if
                `images` is not given.
            IndexError: a position in `images` is out of range.
        """
        rows = self._images_of(candidates, images)
        words = split_captions(candidates, self.document_frequency.end_token)
        weighted = self._weigh(NGramTable(words, base=self._table), np.ones(len(rows), dtype=np.int64))
        n_pairs = self._n_references[rows]
        first_pair = np.cumsum(n_pairs) - n_pairs
        candidate_of = np.repeat(np.arange(len(rows)), n_pairs)
        reference_of = np.arange(len(candidate_of)) + (self._first_reference[rows] - first_pair)[candidate_of]
        similarity = self._dots(weighted, rows, first_pair, len(candidate_of))
        scale = weighted.norms[candidate_of] * self._norms[reference_of]
        similarity /= np.where(scale != 0, scale, 1)
        total = similarity.sum(axis=1)
        total *= self._length_penalty(np.maximum(0, words.lengths - 1)[candidate_of] - self._bigrams[reference_of])
        return 10.0 * np.bincount(candidate_of, total, minlength=len(rows)) / (ORDERS * n_pairs)

    def _images_of(self, candidates: Sequence[Caption], images: Sequence[int] | Integers | None) -> Integers:
        n_images = len(self._n_references)
        if images is None and len(candidates) != n_images:
            raise ValueError(
                f"{len(candidates)} candidates for {n_images} images, expected one each. For several candidates "
                f"per image pass `images`, the position of each candidate's image."
            )
        own = np.arange(n_images) if images is None else np.asarray(images, dtype=np.int64)
        if len(own) != len(candidates):
            raise ValueError(f"`images` has {len(own)} positions for {len(candidates)} candidates, expected one each.")
        if len(own) and not 0 <= own.min() <= own.max() < n_images:
            raise IndexError(f"`images` runs from {own.min()} to {own.max()}, expected 0 to {n_images - 1}.")
        return own

    @property
    def _size(self) -> int:
        """Upper bound (exclusive) of the n-gram numbers of the references."""
        return ORDERS * self._table.size

    def _weigh(self, table: NGramTable, group_sizes: Integers) -> _Weighted:
        """Return the tf-idf weights of the n-grams of captions, which are sorted by group (image)."""
        n_captions, n_places = int(group_sizes.sum()), int(group_sizes.max(initial=1))
        firsts = np.cumsum(group_sizes) - group_sizes
        group_of = np.repeat(np.arange(len(group_sizes)), group_sizes)
        place_of = np.arange(n_captions) - firsts[group_of]
        size = max(1, ORDERS * table.size)
        keys = group_of[table.captions] * size + table.grams
        keys, counts = count(keys * n_places + place_of[table.captions])
        keys, places = np.divmod(keys, n_places)
        groups, grams = np.divmod(keys, size)
        weights = counts * self.document_frequency.inverse(grams // ORDERS)
        slots = (firsts[groups] + places) * ORDERS + grams % ORDERS
        norms = np.sqrt(np.bincount(slots, weights**2, minlength=n_captions * ORDERS))
        return _Weighted(grams, groups, places, weights, norms.reshape(n_captions, ORDERS))

    def _dots(self, candidates: _Weighted, images: Integers, first_pair: Integers, n_pairs: int) -> Floats:
        """Return the `[candidate-reference pairs, orders]` sums of products of the weights of shared n-grams."""
        shared = np.flatnonzero(candidates.grams < self._size)
        shared = shared[self._present[candidates.grams[shared] // ORDERS]]
        captions, grams = candidates.groups[shared], candidates.grams[shared]
        keys = images[captions] * self._size + grams
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        hits = np.flatnonzero(self._keys[at] == keys) if len(self._keys) else at
        shared, at, slots = shared[hits], at[hits], ORDERS * first_pair[captions[hits]] + grams[hits] % ORDERS
        lengths = self._lengths[at]
        theirs = np.arange(lengths.sum()) + np.repeat(self._starts[at] - np.cumsum(lengths) + lengths, lengths)
        products = self._product(np.repeat(candidates.weights[shared], lengths), self._weights[theirs])
        slots = np.repeat(slots, lengths) + ORDERS * self._places[theirs]
        sums = np.bincount(slots, products, minlength=n_pairs * ORDERS)
        return sums.astype(np.float64).reshape(n_pairs, ORDERS)  # `bincount` returns integers if there is no entry

    def _product(self, candidate: Floats, reference: Floats) -> Floats:
        raise NotImplementedError

    def _length_penalty(self, difference: Integers) -> Floats | float:
        raise NotImplementedError


class CiderD(_Cider):
    """CIDEr-D with clipped weights and a Gaussian length penalty (sigma 6), as in coco-caption.

    The references are prepared once and can be reused for many candidates. In self-critical training the reward is
    `CiderD(references, frequencies).score(samples, images)`.

    Args:
        references: the tokenised captions of each image, as strings of words separated by white space or as lists of
            token ids. An end id that is present counts as a word.
        document_frequency: the document frequencies. By default they are counted in `references`, with one document
            per image; for a single image every score is then 0.

    Raises:
        TypeError: a string was passed where a list of captions is expected.
        ValueError: there are no references, or an image has none.

    Source: Vedantam et al. 2015, section 7; Eq. 1 to 4.

    Examples:
        >>> from hf_captioners.metrics import CiderD
        >>> scorer = CiderD([["a man rides a horse", "a person on a horse"], ["two dogs run on grass"]])
        >>> scorer.score(["a man on a horse", "two dogs run"]).round(4).tolist()
        [3.8656, 5.0857]
        >>> scorer.score(["a man rides", "a horse", "dogs run on grass"], images=[0, 0, 1]).round(4).tolist()
        [3.1083, 2.9429, 8.0269]
    """

    def _product(self, candidate: Floats, reference: Floats) -> Floats:
        return np.minimum(candidate, reference) * reference

    def _length_penalty(self, difference: Integers) -> Floats:
        return np.exp(-(difference**2) / (2 * 6.0**2))


class CiderOriginal(_Cider):
    """CIDEr without clipping and length penalty. Like the released program, and unlike the paper, it does not stem.

    The arguments and errors are those of `CiderD`.

    Source: Vedantam et al. 2015, Eq. 1 to 3.

    Examples:
        >>> from hf_captioners.metrics import CiderOriginal
        >>> scorer = CiderOriginal([["a man rides a horse", "a person on a horse"], ["two dogs run on grass"]])
        >>> scorer.score(["a man on a horse", "two dogs run"]).round(4).tolist()
        [3.8656, 5.3762]
    """

    def _product(self, candidate: Floats, reference: Floats) -> Floats:
        return candidate * reference

    def _length_penalty(self, difference: Integers) -> float:
        return 1.0


def cider_d(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    document_frequency: DocumentFrequency | None = None,
) -> Floats:
    """Compute the metric `cider_d`, see `CiderD`."""
    return CiderD(references, document_frequency).score(predictions)


def cider_original(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    document_frequency: DocumentFrequency | None = None,
) -> Floats:
    """Compute the metric `cider_original`, see `CiderOriginal`."""
    return CiderOriginal(references, document_frequency).score(predictions)
