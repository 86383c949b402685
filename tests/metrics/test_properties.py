"""Properties of the metrics for arbitrary captions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_captioners.metrics import (
    CiderD,
    CiderOriginal,
    Meteor,
    PTBTokenizer,
    bleu_counts,
    bleu_from_counts,
    compute_caption_metrics,
    rouge_l,
)

words = st.sampled_from(["a", "the", "man", "dog", "dogs", "riding", "rides", "horse", "'s", "on", ".", ","])
captions = st.lists(words, max_size=12).map(" ".join)
images = st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=4)), min_size=2, max_size=6)
PIECES = "K. U.S. no. 5 1/2 (555) <b a> </b> 's it's 'til . .. , don't ! \u00a0x –"
meteor = Meteor(stages=("exact", "stem"))


def bleu_4(predictions, references):
    return bleu_from_counts(bleu_counts(predictions, references))[3]


def cider_d(predictions, references):
    return CiderD(references).score(predictions)


def cider_original(predictions, references):
    return CiderOriginal(references).score(predictions)


def meteor_scores(predictions, references):
    return meteor.score(predictions, references).per_image


METRICS = {"bleu": (bleu_4, 1), "rouge": (rouge_l, 1), "meteor": (meteor_scores, 1)}
METRICS |= {"cider_d": (cider_d, 10), "cider_original": (cider_original, 10)}
each_metric = pytest.mark.parametrize(("metric", "highest"), METRICS.values(), ids=METRICS)


@each_metric
@given(rows=images, seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_order_does_not_matter_and_scores_lie_in_their_range(metric, highest, rows, seed):
    predictions, references = [row[0] for row in rows], [row[1] for row in rows]
    scores = metric(predictions, references)
    assert np.all((scores >= 0) & (scores <= highest + 1e-9))
    order = np.random.default_rng(seed).permutation(len(rows))
    moved = metric([predictions[place] for place in order], [references[place][::-1] for place in order])
    np.testing.assert_allclose(moved, scores[order], rtol=0, atol=1e-9)


@each_metric
@given(caption=st.lists(st.sampled_from(["dog", "man", "rides", "horse"]), min_size=4, max_size=9).map(" ".join))
@settings(max_examples=30, deadline=None)
def test_the_identical_caption_gives_the_maximum(metric, highest, caption):
    other = " ".join(f"x{place}" for place in range(6))
    score = metric([caption, other], [[caption], [other]])[0]
    assert score == pytest.approx(highest, abs=1e-6)


@given(st.lists(st.text(), max_size=5))
@settings(max_examples=300, deadline=None)
def test_the_tokenizer_never_raises_and_handles_captions_independently(texts):
    together = PTBTokenizer()(texts)
    assert together == [PTBTokenizer().tokenize(text) for text in texts]
    for tokens in together:
        assert not tokens.startswith(" ") and not tokens.endswith(" ") and "\n" not in tokens


@given(st.lists(st.sampled_from(PIECES.split(" "))))
@settings(max_examples=300, deadline=None)
def test_cached_pieces_change_nothing(pieces):
    tokenizer = PTBTokenizer()
    text = " ".join(pieces)
    assert tokenizer.tokenize(text) == tokenizer._whole(text)


@given(st.lists(st.tuples(st.text(max_size=30), st.lists(st.text(max_size=30), min_size=1, max_size=3)), min_size=2))
@settings(max_examples=60, deadline=None)
def test_any_text_can_be_scored(rows):
    figures = compute_caption_metrics([row[0] for row in rows], [row[1] for row in rows])
    assert all(np.isfinite(figures[name]) for name in figures["variants"])
