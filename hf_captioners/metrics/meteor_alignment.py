"""METEOR's alignment of hypotheses with references.

A beam search maximises the weight of the matches, then minimises the number of chunks, then the distances. It takes
all pairs of captions through the words of their references in step, as rows of one array.

Source: Denkowski and Lavie 2014, section 2.1, with the details of the METEOR 1.5 program.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .integer_map import Integers

_BEAM = 40
_BITS = 62  # words of a hypothesis in one integer of a path
# Columns of a match.
STAGE, REFERENCE_START, REFERENCE_LENGTH, HYPOTHESIS_START, HYPOTHESIS_LENGTH = range(5)
# Columns of a path, a partial alignment. `_USED` is the first of the columns with the matched words of the hypothesis.
_PAIR, _HYPOTHESIS_WEIGHT, _REFERENCE_WEIGHT, _CHUNKS, _DISTANCE, _HYPOTHESIS_END, _REFERENCE_END, _LAST, _USED = (
    range(9)
)


class Matches(NamedTuple):
    """Matches between spans of words of a hypothesis and of its reference, for many pairs of captions.

    Attributes:
        pairs: `[matches]` the pair of each match, ascending.
        spans: `[matches, 5]` stage (0 exact, 1 stem, 2 synonym, 3 paraphrase), first word and number of words in the
            reference, first word and number of words in the hypothesis.
    """

    pairs: Integers
    spans: Integers


def align(matches: Matches, reference_lengths: Integers, hypothesis_lengths: Integers) -> Matches:
    """Choose the best non-overlapping matches of each pair of captions by beam search.

    Args:
        matches: all possible matches, those of a pair ordered by stage.
        reference_lengths: `[pairs]` number of words of the reference.
        hypothesis_lengths: `[pairs]` number of words of the hypothesis.

    Returns:
        The chosen matches, those of a pair in the order of the reference.
    """
    if not len(matches.pairs):
        return matches
    order = np.lexsort((matches.spans[:, REFERENCE_START], matches.pairs))
    search = _Search(Matches(matches.pairs[order], matches.spans[order]), reference_lengths, hypothesis_lengths)
    return search.run()


class _Search:
    """Beam search for the best alignment of many pairs of captions at once.

    Args:
        matches: see `align`, those of a pair ordered by their first word in the reference.
        reference_lengths: see `align`.
        hypothesis_lengths: see `align`.
    """

    def __init__(self, matches: Matches, reference_lengths: Integers, hypothesis_lengths: Integers) -> None:
        self.matches, self.reference_lengths = matches, reference_lengths
        pairs, spans = matches
        stage, start, size, hypothesis_start, hypothesis_size = spans.T
        self.width = int(reference_lengths.max())  # a place is a pair and a word of its reference
        place = pairs * self.width + start
        self.counts = np.bincount(place, minlength=len(reference_lengths) * self.width)
        self.firsts = np.cumsum(self.counts) - self.counts
        alone = _alone(pairs, start, size, self.width)
        alone &= _alone(pairs, hypothesis_start, hypothesis_size, int(hypothesis_lengths.max()))
        # A match that shares no word with another is taken without a choice.
        self.fixed = np.zeros(len(self.counts), dtype=bool)
        self.fixed[place[alone & (self.counts[place] == 1)]] = True
        self.distances = np.abs(start - hypothesis_start)
        # Weights are integers, truncated after every addition: a single word that matches by stem adds nothing.
        self.hypothesis_weights = np.where(stage == 0, hypothesis_size, hypothesis_size // 2)
        self.reference_weights = np.where(stage == 0, size, size // 2)
        self.bits = _bits(hypothesis_start, hypothesis_size, int(hypothesis_lengths.max()))
        self.taken: list[tuple[Integers, Integers]] = []  # matches, and the numbers of those taken before them

    def run(self) -> Matches:
        paths = np.zeros((len(self.reference_lengths), _USED + self.bits.shape[1]), dtype=np.int64)
        paths[:, _PAIR] = np.arange(len(paths))
        paths[:, [_HYPOTHESIS_END, _LAST]] = -1
        finished = []
        for place in range(self.width):
            paths = _best(paths, _BEAM)
            ended = self.reference_lengths[paths[:, _PAIR]] <= place
            finished.append(paths[ended])
            paths = self._extend(paths[~ended], place)
        # As in the original, open chunks are counted only after the beam is cut, which decides ties.
        paths = _best(np.concatenate([*finished, paths]), _BEAM)
        paths[:, _CHUNKS] += paths[:, _HYPOTHESIS_END] >= 0
        return self._followed(_best(paths, 1)[:, _LAST])

    def _extend(self, paths: Integers, place: int) -> Integers:
        """Extend each path by every possible match of one reference word, and by leaving the word unmatched."""
        here = paths[:, _PAIR] * self.width + place
        inside = paths[:, _REFERENCE_END] > place  # of a phrase that is taken
        fixed = self.fixed[here] & ~inside
        options = np.where(inside, 0, self.counts[here])
        children = options + ~fixed  # the last one skips the word
        path = np.repeat(np.arange(len(paths)), children)
        first = np.cumsum(children) - children
        option = np.arange(len(path)) - first[path]
        takes = option < options[path]
        match = np.where(takes, self.firsts[here][path] + option, 0)
        possible = ~takes | ~(paths[path, _USED:] & self.bits[match]).any(axis=1)
        # The original program adds the distance to the remaining path, not to the copy that takes the match.
        distance = np.where(takes & possible, self.distances[match], 0)
        summed = np.cumsum(distance) - distance
        grown = paths[path]
        grown[:, _DISTANCE] += np.where(fixed[path], distance, summed - summed[first[path]])
        skips = ~takes & ~inside[path]
        grown[:, _CHUNKS] += skips & (grown[:, _HYPOTHESIS_END] >= 0)
        grown[skips, _HYPOTHESIS_END] = -1
        self._take(grown, np.flatnonzero(takes & possible), match)
        return grown[possible]

    def _take(self, paths: Integers, rows: Integers, match: Integers) -> None:
        """Add a match to each of the paths `rows`, in place."""
        match, path = match[rows], paths[rows]
        _, start, size, hypothesis_start, hypothesis_size = self.matches.spans[match].T
        numbers = np.arange(len(rows)) + sum(len(earlier) for earlier, _ in self.taken)
        self.taken.append((match, path[:, _LAST].copy()))
        path[:, _CHUNKS] += (path[:, _HYPOTHESIS_END] >= 0) & (hypothesis_start != path[:, _HYPOTHESIS_END])
        path[:, _HYPOTHESIS_WEIGHT] += self.hypothesis_weights[match]
        path[:, _REFERENCE_WEIGHT] += self.reference_weights[match]
        path[:, _HYPOTHESIS_END] = hypothesis_start + hypothesis_size
        path[:, _REFERENCE_END] = start + size
        path[:, _USED:] |= self.bits[match]
        path[:, _LAST] = numbers
        paths[rows] = path

    def _followed(self, last: Integers) -> Matches:
        """Return all matches of the finished paths, traced back from the last match of each."""
        match, before = (np.concatenate(parts) for parts in zip(*self.taken, strict=True))
        chosen = []
        while len(last := last[last >= 0]):
            chosen.append(match[last])
            last = before[last]
        rows = np.sort(np.concatenate(chosen))  # matches are ordered by pair and reference
        return Matches(self.matches.pairs[rows], self.matches.spans[rows])


def _alone(pairs: Integers, starts: Integers, sizes: Integers, width: int) -> NDArray[np.bool_]:
    """Return True for each span that shares no word with another span of its pair."""
    first = np.cumsum(sizes) - sizes
    words = np.arange(sizes.sum()) + np.repeat(pairs * width + starts - first, sizes)
    shared = np.bincount(words)[words] > 1
    return ~np.logical_or.reduceat(shared, first)


def _bits(starts: Integers, sizes: Integers, width: int) -> Integers:
    """Return the words of each span as bit masks, `_BITS` words in an integer."""
    words = np.arange(-(-width // _BITS) * _BITS)
    inside = (words >= starts[:, None]) & (words < (starts + sizes)[:, None])
    return inside.reshape(len(starts), -1, _BITS) @ (1 << np.arange(_BITS))


def _best(paths: Integers, most: int) -> Integers:
    """Sort the partial alignments of each pair by weight, chunks and distance, and keep the best `most`."""
    weight = paths[:, _HYPOTHESIS_WEIGHT] + paths[:, _REFERENCE_WEIGHT]
    key = paths[:, _PAIR]
    for part in (weight.max(initial=0) - weight, paths[:, _CHUNKS], paths[:, _DISTANCE]):
        key = key * (part.max(initial=0) + 1) + part
    paths = paths[np.argsort(key, kind="stable")]
    pairs = paths[:, _PAIR]
    rank = np.arange(len(pairs)) - np.searchsorted(pairs, pairs)
    return paths[rank < most]


def count_chunks(matches: Matches, pairs: int) -> Integers:
    """Return `[pairs]` the number of runs of matches without a gap in the reference or a jump in the hypothesis.

    Args:
        matches: chosen matches, see `align`.
        pairs: the number of pairs.
    """
    spans = matches.spans
    starts = spans[:, [REFERENCE_START, HYPOTHESIS_START]]
    ends = starts + spans[:, [REFERENCE_LENGTH, HYPOTHESIS_LENGTH]]
    begins = np.ones(len(spans), dtype=bool)
    begins[1:] = (matches.pairs[1:] != matches.pairs[:-1]) | (starts[1:] != ends[:-1]).any(axis=1)
    return np.bincount(matches.pairs[begins], minlength=pairs)
