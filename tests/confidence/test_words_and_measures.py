"""Words and their tokens, what an estimator knows of them, and the measures, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_captioners.confidence.caption_words import CaptionWord, caption_words
from hf_captioners.confidence.estimator import Agreement, Logistic, Word, WordRates, log_odds, words_of
from hf_captioners.confidence.fitting import Predicted
from hf_captioners.confidence.measures import (
    auroc,
    calibration_error,
    gain_of_surest_half,
    measured,
    reliability,
    risk_coverage,
)


def record(text, tokens, scores=None):
    scores = [-(place + 1.0) for place in range(len(tokens))] if scores is None else scores
    return {"generated_text": text, "tokens": tokens, "token_scores": scores}


CASES = {
    # text, tokens, content words with the numbers of their tokens
    "word tokens": ("a dog runs", ["a", "dog", "runs", "<eos>"], {"dog": [1], "runs": [2]}),
    "pieces": ("A snowboarder", ["A", " snow", "board", "er", "</s>"], {"snowboarder": [1, 2, 3]}),
    "a prompt": ("a photo of a dog", ["a", "dog", "<eos>"], {"photo": None, "dog": [1]}),
    "a prompt with the same word": ("dog and dog", ["and", "dog"], {"dog": None, "dog ": [1]}),
    "cut off": ("two dogs", ["two", "dogs"], {"two": [0], "dogs": [1]}),
    "bytes of a letter": ("caf\u00e9 dog", ["ca", "f", "\ufffd", "\ufffd", " dog"], {"caf\u00e9": None, "dog": [4]}),
    "merged repetitions": ("a dog", ["a", "dog", "dog", "<eos>"], {"dog": [2]}),
    "punctuation": (
        "two dogs, running.",
        ["two", "dogs", ",", "running", "."],
        {"two": [0], "dogs": [1], "running": [3]},
    ),
    "no content words": ("it is on the", ["it", "is", "on", "the"], {}),
    "nothing": ("", ["<eos>"], {}),
}


@pytest.mark.parametrize(("text", "tokens", "expected"), CASES.values(), ids=CASES)
def test_words_of_tokens(text, tokens, expected):
    found = caption_words(record(text, tokens))
    assert [word.word for word in found] == [word.strip() for word in expected]
    for word, numbers in zip(found, expected.values(), strict=True):
        assert word.logprob == (None if numbers is None else pytest.approx(-sum(number + 1 for number in numbers)))


@given(st.lists(st.sampled_from(["a", "dog", "dogs", "the", "man", "mango", "go"]), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_word_has_its_own_token(words):
    """Words that are repeated, or that other words contain, get the log-probabilities of their own tokens."""
    found = caption_words(record(" ".join(words), [*words, "<eos>"]))
    content = [place for place, word in enumerate(words) if word not in ("a", "the")]
    assert [word.logprob for word in found] == [-(place + 1.0) for place in content]


def test_agreement_by_hand():
    """The stem counts; weights are the probabilities of the hypotheses: 0.6, 0.3 and 0.1 of their sum."""
    texts, chances = ["two dogs", "a dog", "a cat"], [0.06, 0.03, 0.01]
    beams = [record(text, [text], [math.log(chance)]) for text, chance in zip(texts, chances, strict=True)]
    agreement = Agreement(beams, [record("a dog", []), record("the dogs", []), record("sand", [])])
    values = agreement.values("dog")
    assert values["beams"] == pytest.approx(2 / 3) and values["weighted_beams"] == pytest.approx(0.9)
    assert values["samples"] == pytest.approx(math.log(2.5 / 1.5))
    assert Agreement().values("dog") == {}
    words = words_of(record("dogs run", ["dogs", "run"], [math.log(0.5), math.log(0.25)]), agreement)
    assert words[0] == Word("dogs", "dog", {"token": 0.0, "caption": pytest.approx(math.log(0.125) / 2), **values})
    assert words_of(record("dogs", []), agreement) == [CaptionWord("dogs", "dog", None)]


def test_rates_by_hand():
    rates = WordRates({"dog": (10, 8)}, rate=0.5, smoothing=4)
    assert rates.log_odds("dog") == pytest.approx(log_odds(10 / 14))
    assert rates.log_odds("dog", (2, 2)) == pytest.approx(log_odds(8 / 12))
    assert rates.log_odds("cat") == 0


def test_the_regression_finds_the_weights_that_drew_the_data():
    draw = np.random.default_rng(0)
    features = draw.normal(size=(20_000, 2)) * [2, 0.5] + [1, -1]
    chances = 1 / (1 + np.exp(-(0.3 + 0.8 * features[:, 0] - 1.5 * features[:, 1])))
    fitted = Logistic.fit(features, (draw.random(20_000) < chances).astype(float))
    assert np.abs(fitted.probabilities(features) - chances).mean() < 0.01
    separated = Logistic.fit(np.array([[-1.0], [1.0]] * 50), np.array([0.0, 1.0] * 50))
    assert np.isfinite(separated.weights).all() and separated.probabilities(np.array([[9.0]]))[0] > 0.99
    constant = Logistic.fit(np.ones((10, 1)), np.array([1.0] * 3 + [0.0] * 7))
    assert constant.probabilities(np.ones((1, 1)))[0] == pytest.approx(0.3)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.9]), st.booleans()), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_auroc_is_the_share_of_pairs_in_order(pairs):
    right, wrong = [s for s, good in pairs if good], [s for s, good in pairs if not good]
    found = auroc(np.array([s for s, _ in pairs]), np.array([good for _, good in pairs]))
    if not right or not wrong:
        assert math.isnan(found)
        return
    wins = [(one > other) + 0.5 * (one == other) for one in right for other in wrong]
    assert found == pytest.approx(sum(wins) / len(wins))


def test_calibration_error_by_hand():
    confidences, is_right = np.array([0.05, 0.15, 0.15, 1.0]), np.array([False, True, False, True])
    assert calibration_error(confidences, is_right) == pytest.approx((0.05 + 2 * 0.35 + 0) / 4)
    assert reliability(confidences, is_right) == [
        {"low": 0.0, "count": 1, "confidence": 0.05, "right": 0.0},
        {"low": 0.1, "count": 2, "confidence": 0.15, "right": 0.5},
        {"low": 0.9, "count": 1, "confidence": 1.0, "right": 1.0},
    ]


def test_surest_captions_by_hand():
    words = [np.array([0.9, 0.7]), np.array([0.2]), np.array([0.6]), np.array([0.4])]
    supported = [np.array([True, True]), np.array([False]), np.array([True]), np.array([True])]
    predicted = Predicted(words, supported, np.array([0.6, 0.2, 0.6, 0.4]))
    assert gain_of_surest_half(predicted) == pytest.approx(1 / 0.75)
    assert risk_coverage(predicted, 2) == [
        {"coverage": 0.5, "support": 1.0, "least_confidence": 0.6},
        {"coverage": 1.0, "support": 0.75, "least_confidence": 0.2},
    ]
    figures = measured(predicted)
    assert figures["auroc_captions"]["value"] == 1 and figures["right_words"] == 0.8
    low, high = figures["surest_half"]["interval"]
    assert low <= figures["surest_half"]["value"] <= high
