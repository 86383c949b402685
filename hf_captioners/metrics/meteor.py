"""METEOR 1.5 for English with the options of the COCO caption evaluation (`-l en -norm`), without Java.

Source: Denkowski and Lavie, "Meteor Universal", WMT 2014; parameters of the "rank" task.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .meteor_alignment import Match, align, count_chunks
from .meteor_normalizer import MeteorNormalizer
from .meteor_tables import FUNCTION_WORDS, MeteorTables
from .paraphrases import PhraseMatch
from .registry import Score
from .snowball_english import stem

STAGES = ("exact", "stem", "synonym", "paraphrase")
"""The matching stages in the order of their application."""

_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.20, 0.60, 0.75
_STAGE_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
_N_STATISTICS = 23
# Used without tables: single capitals and the most common titles keep their full stop.
_PREFIXES = frozenset([*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "Mr", "Mrs", "Ms", "Dr", "St", "Prof", "vs", "e.g", "i.e"])

Statistics = NDArray[np.float64]


class MeteorResult(NamedTuple):
    """Scores of METEOR.

    Attributes:
        corpus: the score of the summed statistics, which is not the mean over images.
        per_image: `[images]` scores.
        statistics: `[images, 23]` statistics of the best reference: the numbers of words of hypothesis and reference;
            of function words of both; for each stage, of matched content words and matched function words of both;
            of chunks; of matched words of both.
    """

    corpus: float
    per_image: NDArray[np.float64]
    statistics: Statistics


class Meteor:
    """METEOR scorer.

    Args:
        stages: the matching stages, a prefix of `STAGES`. Scores with fewer stages are not comparable with published
            scores.
        tables: the tables of synonyms and paraphrases. By default they are read from the installed pycocoevalcap.

    Raises:
        ValueError: `stages` is not a prefix of `STAGES`.
        FileNotFoundError: the stages require tables that are not installed.

    Examples:
        >>> from hf_captioners.metrics import Meteor
        >>> meteor = Meteor(stages=("exact", "stem"))  # without tables
        >>> result = meteor.score(["a man rides a horse", "a cat"], [["a man riding a horse"], ["two dogs run"]])
        >>> result.per_image.round(4).tolist()
        [0.8909, 0.0]
    """

    def __init__(self, stages: Sequence[str] = STAGES, tables: MeteorTables | None = None) -> None:
        self.stages = tuple(stages)
        if not self.stages or self.stages != STAGES[: len(self.stages)]:
            raise ValueError(f"`stages` is {stages!r}, expected a prefix of {STAGES}.")
        if tables is None and len(self.stages) > 2:
            tables = MeteorTables()
        self._tables = tables
        prefixes = (_PREFIXES, frozenset(["No"])) if tables is None else tables.prefixes
        self._normalize = MeteorNormalizer(*prefixes).normalize

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> MeteorResult:
        """Score each tokenised caption against its best-matching reference.

        Args:
            predictions: one tokenised caption per image.
            references: the tokenised reference captions of each image.

        Returns:
            The corpus score, the image scores and their statistics.
        """
        captions: dict[tuple[str, ...], int] = {}
        pairs: list[tuple[int, int]] = []
        for prediction, others in zip(predictions, references, strict=True):
            clean = prediction.replace("|||", "").replace("  ", " ")
            hypothesis = captions.setdefault(self._words(clean), len(captions))
            pairs += [(hypothesis, captions.setdefault(self._words(other), len(captions))) for other in others]
        statistics = self._pair_statistics(list(captions), pairs)
        scores = _scores(statistics)
        best, start = [], 0
        for others in references:
            best.append(start + int(np.argmax(scores[start : start + len(others)])))
            start += len(others)
        chosen = statistics[best]
        return MeteorResult(_corpus_score(chosen), scores[best], chosen)

    def _words(self, caption: str) -> tuple[str, ...]:
        normal = self._normalize(caption)
        return tuple(normal.split(" ")) if normal else ()

    def _pair_statistics(self, captions: list[tuple[str, ...]], pairs: list[tuple[int, int]]) -> Statistics:
        phrase_matches: list[list[PhraseMatch]] = [[]] * len(pairs)
        if "paraphrase" in self.stages and self._tables is not None:
            phrase_matches = list(self._tables.paraphrases.match(captions, pairs))
        known: dict[tuple[int, int], Statistics] = {}
        rows = np.empty((len(pairs), _N_STATISTICS))
        for row, (pair, phrases) in enumerate(zip(pairs, phrase_matches, strict=True)):
            if pair not in known:
                hypothesis, reference = captions[pair[0]], captions[pair[1]]
                matches = self._matches(hypothesis, reference, phrases)
                known[pair] = _statistics(hypothesis, reference, align(matches, len(reference), len(hypothesis)))
            rows[row] = known[pair]
        return rows

    def _matches(
        self, hypothesis: tuple[str, ...], reference: tuple[str, ...], phrases: list[PhraseMatch]
    ) -> list[Match]:
        matches = _equal(0, hypothesis, reference, hypothesis, reference)
        if hypothesis == reference:
            return matches
        if "stem" in self.stages:
            stems = [stem(word) for word in hypothesis], [stem(word) for word in reference]
            matches += _equal(1, *stems, hypothesis, reference)
        if "synonym" in self.stages and self._tables is not None:
            find = self._tables.synonyms.find
            mine = [(place, find(word)) for place, word in enumerate(hypothesis)]
            mine = [(place, numbers) for place, numbers in mine if numbers]
            for there, word in enumerate(reference):
                if theirs := find(word):
                    matches += [
                        Match(2, there, 1, here, 1)
                        for here, numbers in mine
                        if hypothesis[here] != word and not theirs.isdisjoint(numbers)
                    ]
        return matches + [Match(3, *phrase) for phrase in phrases]


def _equal(
    stage: int,
    hypothesis_keys: Sequence[str],
    reference_keys: Sequence[str],
    hypothesis: Sequence[str],
    reference: Sequence[str],
) -> list[Match]:
    """Match words with equal keys. After the first stage, equal words are left out: they are matched already."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(hypothesis_keys):
        places.setdefault(key, []).append(place)
    return [
        Match(stage, there, 1, here, 1)
        for there, key in enumerate(reference_keys)
        for here in places.get(key, ())
        if stage == 0 or hypothesis[here] != reference[there]
    ]


def _statistics(hypothesis: Sequence[str], reference: Sequence[str], matches: Sequence[Match]) -> Statistics:
    row = np.zeros(_N_STATISTICS)
    row[0], row[1] = len(hypothesis), len(reference)
    row[2] = sum(word in FUNCTION_WORDS for word in hypothesis)
    row[3] = sum(word in FUNCTION_WORDS for word in reference)
    for stage, there, n_there, here, n_here in matches:
        function_here = sum(word in FUNCTION_WORDS for word in hypothesis[here : here + n_here])
        function_there = sum(word in FUNCTION_WORDS for word in reference[there : there + n_there])
        counts = (n_here - function_here, n_there - function_there, function_here, function_there)
        row[4 + 4 * stage : 8 + 4 * stage] += counts
        row[21] += n_here
        row[22] += n_there
    row[20] = count_chunks(matches)
    return row


def _scores(statistics: Statistics) -> NDArray[np.float64]:
    """Return the score of each row of statistics."""
    words, function_words = statistics[:, 0:2], statistics[:, 2:4]
    stages = statistics[:, 4:20].reshape(-1, 4, 2, 2)  # row, stage, content or function, hypothesis or reference
    counted = np.einsum("s,rscx->rcx", _STAGE_WEIGHTS, stages)
    matched = _DELTA * counted[:, 0] + (1 - _DELTA) * counted[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = matched / (_DELTA * (words - function_words) + (1 - _DELTA) * function_words)
        precision, recall = shares[:, 0], shares[:, 1]
        mean = 1.0 / ((1.0 - _ALPHA) / precision + _ALPHA / recall)
        fragmentation = statistics[:, 20] / (statistics[:, 21:23].mean(axis=1))
        fragmentation[_perfect(statistics)] = 0.0
        scores = mean * (1.0 - _GAMMA * fragmentation**_BETA)
    return np.nan_to_num(scores, nan=0.0)


def _perfect(statistics: Statistics) -> NDArray[np.bool_]:
    """Return whether every word of both captions is matched in one chunk."""
    return (statistics[:, 21:23] == statistics[:, 0:2]).all(axis=1) & (statistics[:, 20] == 1)


def _corpus_score(statistics: Statistics) -> float:
    summed = statistics.copy()
    summed[_perfect(statistics), 20] = 0.0
    return float(_scores(summed.sum(axis=0, keepdims=True))[0])


def score_meteor(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    meteor: Meteor | None = None,
    tables: MeteorTables | None = None,
) -> list[Score]:
    """Compute the metric `meteor`."""
    scorer = meteor or Meteor(STAGES, tables)
    result = scorer.score(predictions, references)
    variant = f"METEOR 1.5, English, stages {', '.join(scorer.stages)}"
    return [Score("meteor", result.corpus, variant, result.per_image.tolist())]
