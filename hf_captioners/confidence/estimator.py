"""Estimators of confidence: features of words, and the probability that people would use a word."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .caption_words import CaptionWord, caption_words, stems_of

Array = NDArray[np.float64]
FEATURES = {
    "token": "log-odds of the probability of the word's tokens",
    "caption": "mean log-probability of the tokens of the caption",
    "word": "log-odds of how often the word is right on the images of the calibration",
    "beams": "share of the hypotheses of the beam search that have the word",
    "weighted_beams": "the same, weighted by the probabilities of the hypotheses",
    "samples": "log-odds of the share of sampled captions that have the word",
}
"""Features of a word of a caption."""
KINDS = {
    "tokens": ("token", "caption", "word"),
    "beams": ("token", "caption", "word", "beams", "weighted_beams"),
    "samples": ("token", "caption", "word", "samples"),
    "beams_and_samples": ("token", "caption", "word", "beams", "weighted_beams", "samples"),
}
"""Kinds of estimators: by which evidence there is."""
MAX_LOG_ODDS = 8.0


class Word(NamedTuple):
    """Content word of a caption, with features for the estimate of its confidence.

    Args:
        word, stem: see `CaptionWord`.
        values: values of `FEATURES` by name; those of other captions are missing where there are none.
    """

    word: str
    stem: str
    values: dict[str, float]


def log_odds(share: float) -> float:
    """Return the log-odds of a share, clipped to `MAX_LOG_ODDS` on both sides of 0.

    Examples:
        >>> from hf_captioners.confidence.estimator import log_odds
        >>> log_odds(0.5), log_odds(1.0)
        (0.0, 8.0)
    """
    if share <= 0 or share >= 1:
        return math.copysign(MAX_LOG_ODDS, share - 0.5)
    return max(-MAX_LOG_ODDS, min(MAX_LOG_ODDS, math.log(share / (1 - share))))


@dataclass
class Agreement:
    """Agreement of a caption's words with other captions of the same image: beam hypotheses and samples.

    Args:
        hypotheses: records of the beam search, see `caption_words`; none where there was no beam search.
        samples: sampled captions; none where none were drawn.
    """

    hypotheses: Sequence[Mapping[str, Any]] = ()
    samples: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        self._beams = [stems_of(record["generated_text"]) for record in self.hypotheses]
        self._samples = [stems_of(record["generated_text"]) for record in self.samples]
        scores = np.array([sum(record["token_scores"]) for record in self.hypotheses])
        weights = np.exp(scores - scores.max()) if len(scores) else scores
        self._weights = weights / weights.sum() if len(scores) else scores

    def values(self, stem: str) -> dict[str, float]:
        """Return a word's features of agreement: shares of other captions that contain the word."""
        features = {}
        if self._beams:
            has = np.array([stem in stems for stems in self._beams])
            features = {"beams": float(has.mean()), "weighted_beams": float(self._weights[has].sum())}
        if self._samples:
            count = sum(stem in stems for stems in self._samples)
            features["samples"] = log_odds((count + 0.5) / (len(self._samples) + 1))  # a share of 0 or 1 has no odds
        return features


def words_of(record: Mapping[str, Any], agreement: Agreement) -> list[Word | CaptionWord]:
    """Return the content words of a caption with features; without log-probability, a `CaptionWord`."""
    mean = float(np.mean(record["token_scores"])) if len(record["token_scores"]) else 0.0
    return [
        word
        if word.logprob is None
        else Word(
            word.word,
            word.stem,
            {"token": log_odds(math.exp(word.logprob)), "caption": mean, **agreement.values(word.stem)},
        )
        for word in caption_words(record)
    ]


@dataclass
class WordRates:
    """How often each word was right on the calibration images.

    Args:
        counts: for each stem how often captions have it, and how often it is right.
        rate: share of right words of all.
        smoothing: words of this share that each stem has beside its own.
    """

    counts: Mapping[str, tuple[int, int]]
    rate: float
    smoothing: float = 4.0

    def log_odds(self, stem: str, without: tuple[int, int] = (0, 0)) -> float:
        """Return the log-odds that a word is right; rare words are smoothed towards the mean of all words.

        Args:
            stem: of the word.
            without: occurrences and right ones that are left out: those of the image itself while an estimator is fit.
        """
        total, right = self.counts.get(stem, (0, 0))
        total, right = total - without[0], right - without[1]
        return log_odds((right + self.smoothing * self.rate) / (total + self.smoothing))


@dataclass
class Logistic:
    """Logistic regression.

    Args:
        means, scales: `[F]` of the features, which are standardised.
        weights: `[1 + F]`, the first of the constant.
    """

    means: Array
    scales: Array
    weights: Array

    def probabilities(self, features: Array) -> Array:
        """Return the probabilities `[N]` for rows of features `[N, F]`."""
        scores = self.weights[0] + (features - self.means) / self.scales @ self.weights[1:]
        return 1 / (1 + np.exp(-np.clip(scores, -30, 30)))

    @classmethod
    def fit(cls, features: Array, is_right: Array, penalty: float = 1.0, steps: int = 50) -> "Logistic":
        """Fit the coefficients with Newton's method.

        Args:
            features: `[N, F]`.
            is_right: `[N]`, 1 or 0.
            penalty: of the squares of the weights without the constant.
            steps: at most.
        """
        means, scales = features.mean(0), features.std(0)
        scales = np.where(scales > 1e-9, scales, 1.0)
        rows = np.concatenate((np.ones((len(features), 1)), (features - means) / scales), 1)
        shrink = np.diag([1e-9, *[penalty] * features.shape[1]])
        weights = np.zeros(rows.shape[1])
        for _ in range(steps):
            chances = 1 / (1 + np.exp(-np.clip(rows @ weights, -30, 30)))
            curvature = rows.T @ (rows * (chances * (1 - chances))[:, None]) + shrink
            change = np.linalg.solve(curvature, rows.T @ (is_right - chances) - shrink @ weights)
            weights = weights + change
            if np.abs(change).max() < 1e-9:
                break
        return cls(means, scales, weights)


@dataclass
class Estimator:
    """Estimator of the confidence of words and captions from one kind of evidence.

    Args:
        kind: key of `KINDS`.
        words: of the features of a word.
        shape: of the result of `words`, see `shape_features`: a word that looks wrong may be right by chance.
        captions: of the sum of the logarithms of the confidences of the words of a caption.
    """

    kind: str
    words: Logistic
    shape: Logistic
    captions: Logistic

    def features(self, words: Sequence[Word], rates: Sequence[float]) -> Array:
        """Return the features `[N, F]` of words; `rates` are the log-odds of each word in general."""
        return feature_rows(self.kind, words, rates)

    def confidences(self, words: Sequence[Word], rates: WordRates) -> Array:
        """Return the confidence `[N]` of each word."""
        if not words:
            return np.zeros(0)
        plain = self.words.probabilities(self.features(words, [rates.log_odds(word.stem) for word in words]))
        return self.shape.probabilities(shape_features(plain))

    def caption_confidence(self, confidences: Array) -> float:
        """Return the probability that all words of a caption are right, from their confidences `[N]`."""
        return float(self.captions.probabilities(caption_features(confidences)[None])[0])


def feature_rows(kind: str, words: Sequence[Word], rates: Sequence[float]) -> Array:
    """Return the features `[N, F]` of words for a kind of evidence, see `Estimator.features`."""
    names = KINDS[kind]
    rows = [
        [rate if name == "word" else word.values[name] for name in names]
        for word, rate in zip(words, rates, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(len(words), len(names))


def shape_features(confidences: Array) -> Array:
    """Return the features `[N, 2]` of beta calibration for confidences `[N]`.

    Source: Kull et al., "Beta calibration: a well-founded and easily implemented improvement on logistic calibration
    for binary classifiers", AISTATS 2017.
    """
    kept = np.clip(confidences, 1e-6, 1 - 1e-6)
    return np.stack((np.log(kept), -np.log(1 - kept)), 1)


def caption_features(confidences: Array) -> Array:
    """Return the features `[1]` of a caption, from its words' confidences `[N]`."""
    return np.array([np.log(np.clip(confidences, 1e-9, 1.0)).sum()])
