"""METEOR's alignment of a hypothesis with a reference.

A beam search maximises the weight of the matches, then minimises the number of chunks, then the distances.

Source: Denkowski and Lavie 2014, section 2.1, with the details of the METEOR 1.5 program.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

_BEAM = 40


class Match(NamedTuple):
    """A span of the reference that matches a span of the hypothesis."""

    stage: int  # 0 exact, 1 stem, 2 synonym, 3 paraphrase
    reference_start: int
    reference_length: int
    hypothesis_start: int
    hypothesis_length: int


class _Path(NamedTuple):
    """A partial alignment. Paths are compared by their first three fields; smaller is better."""

    lightness: int  # negative weight
    chunks: int
    distance: int
    hypothesis_weight: int
    reference_weight: int
    hypothesis_end: int  # end of the open chunk in the hypothesis, -1 if none is open
    reference_end: int  # the reference is processed up to this position
    used: int  # matched words of the hypothesis, as bits
    last: "tuple[Match, tuple | None] | None"  # the matches so far, as a linked list


_standing = itemgetter(0, 1, 2)


def align(matches: Iterable[Match], n_reference: int, n_hypothesis: int) -> list[Match]:
    """Choose matches that do not overlap.

    Args:
        matches: all possible matches, ordered by stage.
        n_reference: number of words of the reference.
        n_hypothesis: number of words of the hypothesis.

    Returns:
        The chosen matches in the order of the reference.
    """
    starting: list[list[Match]] = [[] for _ in range(n_reference)]
    covered_reference, covered_hypothesis = [0] * n_reference, [0] * n_hypothesis
    for match in matches:
        starting[match.reference_start].append(match)
        for place in range(match.reference_start, match.reference_start + match.reference_length):
            covered_reference[place] += 1
        for place in range(match.hypothesis_start, match.hypothesis_start + match.hypothesis_length):
            covered_hypothesis[place] += 1
    fixed = [
        here[0] if len(here) == 1 and _alone(here[0], covered_reference, covered_hypothesis) else None
        for here in starting
    ]
    return _search(starting, fixed)


def _alone(match: Match, covered_reference: Sequence[int], covered_hypothesis: Sequence[int]) -> bool:
    _, there, n_there, here, n_here = match
    return max(covered_reference[there : there + n_there]) == 1 and max(covered_hypothesis[here : here + n_here]) == 1


def _search(starting: list[list[Match]], fixed: list[Match | None]) -> list[Match]:
    taken = sum(_bits(match) for match in fixed if match)  # fixed matches share no word
    taken_reference = sum(_reference_bits(match) for match in fixed if match)
    paths = [_Path(0, 0, 0, 0, 0, -1, 0, taken, None)]
    for place, options in enumerate(starting):
        if len(paths) > 1:
            paths = sorted(paths, key=_standing)[:_BEAM]
        sure = fixed[place]
        grown: list[_Path] = []
        for path in paths:
            if path.reference_end > place:
                grown.append(path)
            elif sure:
                grown.append(_take(path, sure, abs(sure.reference_start - sure.hypothesis_start)))
            else:
                grown += _branch(path, options, taken_reference)
        paths = grown
    # As in the original, open chunks are counted only after the beam is cut, which decides ties.
    paths = sorted(paths, key=_standing)[:_BEAM]
    finished = [path._replace(chunks=path.chunks + 1) if path.hypothesis_end >= 0 else path for path in paths]
    chosen, link = [], min(finished, key=_standing).last
    while link is not None:
        match, link = link
        chosen.append(match)
    return chosen[::-1]


def _branch(path: _Path, options: list[Match], taken_reference: int) -> list[_Path]:
    """Extend a path by each match that is still possible, and by skipping the word."""
    grown = []
    for match in options:
        if not path.used & _bits(match) and not taken_reference & _reference_bits(match):
            grown.append(_take(path, match, 0))
            # The original program adds the distance to the remaining path, not to the copy that takes the match.
            distance = path.distance + abs(match.reference_start - match.hypothesis_start)
            path = path._replace(distance=distance)
    if path.hypothesis_end >= 0:
        path = path._replace(chunks=path.chunks + 1, hypothesis_end=-1)
    grown.append(path)
    return grown


def _take(path: _Path, match: Match, distance: int) -> _Path:
    # Weights are integers, truncated after every addition: a single word that matches by stem adds nothing.
    share = 1.0 if match.stage == 0 else 0.5
    hypothesis_weight = int(path.hypothesis_weight + match.hypothesis_length * share)
    reference_weight = int(path.reference_weight + match.reference_length * share)
    jumps = path.hypothesis_end >= 0 and match.hypothesis_start != path.hypothesis_end
    return _Path(
        -(hypothesis_weight + reference_weight),
        path.chunks + jumps,
        path.distance + distance,
        hypothesis_weight,
        reference_weight,
        match.hypothesis_start + match.hypothesis_length,
        match.reference_start + match.reference_length,
        path.used | _bits(match),
        (match, path.last),
    )


def _bits(match: Match) -> int:
    return ((1 << match.hypothesis_length) - 1) << match.hypothesis_start


def _reference_bits(match: Match) -> int:
    return ((1 << match.reference_length) - 1) << match.reference_start


def count_chunks(matches: Sequence[Match]) -> int:
    """Return the number of runs of matches without a gap in the reference or a jump in the hypothesis."""
    chunks, ends = 0, (-1, -1)
    for match in matches:
        chunks += (match.reference_start, match.hypothesis_start) != ends
        ends = (match.reference_start + match.reference_length, match.hypothesis_start + match.hypothesis_length)
    return chunks
