"""Estimators of confidence from captions whose words are known to be right or wrong."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .estimator import (
    KINDS,
    Array,
    Estimator,
    Logistic,
    Word,
    WordRates,
    caption_features,
    feature_rows,
    shape_features,
)

FOLDS = 10
INNER_FOLDS = 5  # of the estimator of captions while another part is predicted
MIN_IMAGES = 50
MIN_WORDS = 20  # right ones, and wrong ones


@dataclass
class Observed:
    """The words of the caption of an image, and whether its references support them.

    Args:
        words: content words with features.
        supported: for each word whether a reference of the image supports it, see `caption_support`.
    """

    words: Sequence[Word]
    supported: Sequence[bool]


@dataclass
class Predicted:
    """Confidences of the captions of images, and what is right; captions without content words are left out.

    Args:
        words: for each caption the confidences `[N]` of its words.
        supported: for each caption whether each word is right, `[N]`.
        captions: `[C]`, the confidence of each caption.
    """

    words: list[Array]
    supported: list[Array]
    captions: Array


def require_enough(observed: Sequence[Observed]) -> None:
    """Check that there is enough to calibrate on.

    Raises:
        ValueError: there are fewer than `MIN_IMAGES` captions with content words, or fewer than `MIN_WORDS` right or
            wrong words.
    """
    captions = sum(bool(one.words) for one in observed)
    if captions < MIN_IMAGES:
        raise ValueError(
            f"The data have {captions:,} images with references whose captions have content words, and a calibration "
            f"needs {MIN_IMAGES} at least, better 500. Pass more images."
        )
    right = sum(sum(one.supported) for one in observed)
    wrong = sum(len(one.supported) for one in observed) - right
    if min(right, wrong) < MIN_WORDS:
        raise ValueError(
            f"{right:,} words of the captions are in a reference of their image and {wrong:,} are not; a calibration "
            f"needs {MIN_WORDS} of each at least. Pass more images, or a captioner of such images."
        )


def kinds_of(observed: Sequence[Observed]) -> list[str]:
    """Return the kinds of evidence that all words have."""
    known = [set(word.values) | {"word"} for one in observed for word in one.words]
    shared = set.intersection(*known)
    return [kind for kind, names in KINDS.items() if shared.issuperset(names)]


def count_words(observed: Sequence[Observed], smoothing: float = 4.0) -> WordRates:
    """Count how often words are right."""
    totals, rights = Counter[str](), Counter[str]()
    for one in observed:
        for word, is_right in zip(one.words, one.supported, strict=True):
            totals[word.stem] += 1
            rights[word.stem] += is_right
    rate = sum(rights.values()) / max(1, sum(totals.values()))
    return WordRates({stem: (totals[stem], rights[stem]) for stem in totals}, rate, smoothing)


def fit_estimator(kind: str, observed: Sequence[Observed], folds: int = FOLDS, seed: int = 0) -> Estimator:
    """Fit the estimator of a kind of evidence.

    Shape and estimator of captions learn from confidences of words that were predicted by estimators of other images.
    """
    predictions: dict[int, Array] = {}
    for others, part in _parts(observed, folds, seed):
        known = [observed[place] for place in others]
        words, rates = fit_words(kind, known), count_words(known)
        for place in part:
            if found := observed[place].words:
                values = [rates.log_odds(word.stem) for word in found]
                predictions[place] = words.probabilities(feature_rows(kind, found, values))
    supported = {place: np.array(observed[place].supported, dtype=np.float64) for place in predictions}
    shape = fit_shape(np.concatenate(list(predictions.values())), np.concatenate(list(supported.values())))
    shaped = [shape.probabilities(shape_features(values)) for values in predictions.values()]
    all_right = np.array([values.all() for values in supported.values()], dtype=np.float64)
    captions = Logistic.fit(np.stack(list(map(caption_features, shaped))), all_right)
    return Estimator(kind, fit_words(kind, observed), shape, captions)


def fit_shape(confidences: Array, is_right: Array) -> Logistic:
    """Fit beta calibration, which keeps the order of confidences."""
    features = shape_features(confidences)
    fitted = Logistic.fit(features, is_right)
    if (fitted.weights[1:] < 0).any():
        falling = fitted.weights[1:] < 0
        fitted = Logistic.fit(np.where(falling, 0.0, features), is_right)
        fitted.weights[1:][falling] = 0.0
    return fitted


def fit_words(kind: str, observed: Sequence[Observed]) -> Logistic:
    """Fit the estimator of words. How often a word is right is counted without the image of the word itself."""
    rates = count_words(observed)
    words: list[Word] = []
    values: list[float] = []
    is_right: list[bool] = []
    for one in observed:
        own = count_words([one]).counts
        words += one.words
        values += [rates.log_odds(word.stem, own[word.stem]) for word in one.words]
        is_right += one.supported
    return Logistic.fit(feature_rows(kind, words, values), np.array(is_right, dtype=np.float64))


def cross_validated(kind: str, observed: Sequence[Observed], folds: int = FOLDS, seed: int = 0) -> Predicted:
    """Return the confidences of captions by estimators that were fit on other images."""
    found: dict[int, tuple[Array, float]] = {}
    for others, part in _parts(observed, folds, seed):
        known = [observed[place] for place in others]
        estimator, rates = fit_estimator(kind, known, INNER_FOLDS, seed + 1), count_words(known)
        for place in part:
            if observed[place].words:
                confidences = estimator.confidences(observed[place].words, rates)
                found[place] = confidences, estimator.caption_confidence(confidences)
    places = sorted(found)
    return Predicted(
        [found[place][0] for place in places],
        [np.array(observed[place].supported, dtype=bool) for place in places],
        np.array([found[place][1] for place in places]),
    )


def predicted_by(estimator: Estimator, rates: WordRates, observed: Sequence[Observed]) -> Predicted:
    """Return the confidences of captions of images by an estimator that was fit before."""
    kept = [one for one in observed if one.words]
    words = [estimator.confidences(one.words, rates) for one in kept]
    captions = np.array([estimator.caption_confidence(values) for values in words])
    return Predicted(words, [np.array(one.supported, dtype=bool) for one in kept], captions)


def _parts(observed: Sequence[Observed], folds: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Return for each fold the places of the other images and of its own."""
    order = np.random.default_rng(seed).permutation(len(observed))
    parts = [sorted(order[first::folds].tolist()) for first in range(min(folds, len(observed)))]
    return [(sorted(set(range(len(observed))) - set(part)), part) for part in parts]
