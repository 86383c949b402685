"""Fitting of confidence estimators to captions whose words are labelled right or wrong."""

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
    """Words of an image's caption, and for each word whether the references support it.

    Args:
        words: content words with features.
        supported: for each word whether a reference of the image supports it, see `caption_support`.
    """

    words: Sequence[Word]
    supported: Sequence[bool]


@dataclass
class Predicted:
    """Predicted confidences of captions with the true labels; captions without content words are omitted.

    Args:
        words: for each caption the confidences `[N]` of its words.
        supported: for each caption whether each word is right, `[N]`.
        captions: `[C]`, the confidence of each caption.
    """

    words: list[Array]
    supported: list[Array]
    captions: Array


def require_enough(observed: Sequence[Observed]) -> None:
    """Check that there are enough captions and words for a calibration.

    Raises:
        ValueError: there are fewer than `MIN_IMAGES` captions with content words, or fewer than `MIN_WORDS` right or
            wrong words.
    """
    captions = sum(bool(caption.words) for caption in observed)
    if captions < MIN_IMAGES:
        raise ValueError(
            f"The data have {captions:,} images with references whose captions have content words, and a calibration "
            f"needs {MIN_IMAGES} at least, better 500. Pass more images."
        )
    right = sum(sum(caption.supported) for caption in observed)
    wrong = sum(len(caption.supported) for caption in observed) - right
    if min(right, wrong) < MIN_WORDS:
        raise ValueError(
            f"{right:,} words of the captions are in a reference of their image and {wrong:,} are not; a calibration "
            f"needs {MIN_WORDS} of each at least. Pass more images, or a captioner of such images."
        )


def kinds_of(observed: Sequence[Observed]) -> list[str]:
    """Return the kinds of evidence that are available for all words."""
    features = [set(word.values) | {"word"} for caption in observed for word in caption.words]
    shared = set.intersection(*features)
    return [kind for kind, names in KINDS.items() if shared.issuperset(names)]


def count_words(observed: Sequence[Observed], smoothing: float = 4.0) -> WordRates:
    """Count how often each word is right."""
    totals, rights = Counter[str](), Counter[str]()
    for caption in observed:
        for word, is_right in zip(caption.words, caption.supported, strict=True):
            totals[word.stem] += 1
            rights[word.stem] += is_right
    rate = sum(rights.values()) / max(1, sum(totals.values()))
    return WordRates({stem: (totals[stem], rights[stem]) for stem in totals}, rate, smoothing)


def fit_estimator(kind: str, observed: Sequence[Observed], folds: int = FOLDS, seed: int = 0) -> Estimator:
    """Fit the estimator for a kind of evidence.

    Shape and estimator of captions learn from confidences of words that were predicted by estimators of other images.
    """
    predictions: dict[int, Array] = {}
    for training, part in _parts(observed, folds, seed):
        train = [observed[place] for place in training]
        words, rates = fit_words(kind, train), count_words(train)
        for place in part:
            if words_of_image := observed[place].words:
                values = [rates.log_odds(word.stem) for word in words_of_image]
                predictions[place] = words.probabilities(feature_rows(kind, words_of_image, values))
    supported = {place: np.array(observed[place].supported, dtype=np.float64) for place in predictions}
    shape = fit_shape(np.concatenate(list(predictions.values())), np.concatenate(list(supported.values())))
    shaped = [shape.probabilities(shape_features(values)) for values in predictions.values()]
    all_right = np.array([values.all() for values in supported.values()], dtype=np.float64)
    captions = Logistic.fit(np.stack(list(map(caption_features, shaped))), all_right)
    return Estimator(kind, fit_words(kind, observed), shape, captions)


def fit_shape(confidences: Array, is_right: Array) -> Logistic:
    """Fit beta calibration, which is monotonic in the confidence."""
    features = shape_features(confidences)
    fitted = Logistic.fit(features, is_right)
    if (fitted.weights[1:] < 0).any():
        falling = fitted.weights[1:] < 0
        fitted = Logistic.fit(np.where(falling, 0.0, features), is_right)
        fitted.weights[1:][falling] = 0.0
    return fitted


def fit_words(kind: str, observed: Sequence[Observed]) -> Logistic:
    """Fit the word estimator; a word's rate excludes the word's own image."""
    rates = count_words(observed)
    words: list[Word] = []
    values: list[float] = []
    is_right: list[bool] = []
    for caption in observed:
        counts_of_image = count_words([caption]).counts
        words += caption.words
        values += [rates.log_odds(word.stem, counts_of_image[word.stem]) for word in caption.words]
        is_right += caption.supported
    return Logistic.fit(feature_rows(kind, words, values), np.array(is_right, dtype=np.float64))


def cross_validated(kind: str, observed: Sequence[Observed], folds: int = FOLDS, seed: int = 0) -> Predicted:
    """Return cross-validated confidences: each caption's estimator was fitted to other images."""
    by_image: dict[int, tuple[Array, float]] = {}
    for training, part in _parts(observed, folds, seed):
        train = [observed[place] for place in training]
        estimator, rates = fit_estimator(kind, train, INNER_FOLDS, seed + 1), count_words(train)
        for place in part:
            if observed[place].words:
                confidences = estimator.confidences(observed[place].words, rates)
                by_image[place] = confidences, estimator.caption_confidence(confidences)
    places = sorted(by_image)
    return Predicted(
        [by_image[place][0] for place in places],
        [np.array(observed[place].supported, dtype=bool) for place in places],
        np.array([by_image[place][1] for place in places]),
    )


def predicted_by(estimator: Estimator, rates: WordRates, observed: Sequence[Observed]) -> Predicted:
    """Return the confidences of captions that an already fitted estimator predicts."""
    kept = [caption for caption in observed if caption.words]
    words = [estimator.confidences(caption.words, rates) for caption in kept]
    captions = np.array([estimator.caption_confidence(values) for values in words])
    return Predicted(words, [np.array(caption.supported, dtype=bool) for caption in kept], captions)


def _parts(observed: Sequence[Observed], folds: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Return indices of training and test images for each fold."""
    order = np.random.default_rng(seed).permutation(len(observed))
    parts = [sorted(order[first::folds].tolist()) for first in range(min(folds, len(observed)))]
    return [(sorted(set(range(len(observed))) - set(part)), part) for part in parts]
