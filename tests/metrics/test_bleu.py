import numpy as np
import pytest

from hf_captioners.metrics import bleu_counts, bleu_from_counts, corpus_bleu


@pytest.mark.parametrize(("penalty", "suffix"), [(True, ""), (False, "_no_bp")])
def test_figures_of_the_original(score_sets, penalty, suffix):
    for one in score_sets:
        expected = one["expected"]["bleu"]
        counts = bleu_counts(one["candidates"], one["references"])
        np.testing.assert_allclose(
            bleu_from_counts(counts, penalty), expected["per_image" + suffix], rtol=0, atol=1e-9, err_msg=one["set"]
        )
        np.testing.assert_allclose(
            corpus_bleu(counts, penalty), expected["corpus" + suffix], rtol=0, atol=1e-9, err_msg=one["set"]
        )


def test_counts_of_the_original(score_sets):
    for one in score_sets:
        expected = one["expected"]["bleu"]
        counts = bleu_counts(one["candidates"], one["references"])
        assert counts.correct.sum(axis=0).tolist() == expected["correct"]
        assert counts.total.sum(axis=0).tolist() == expected["guess"]
        assert counts.length.sum() == expected["testlen"]
        assert counts.closest.sum() == expected["reflen"]


def test_closest_length_is_the_shorter_one_on_a_tie():
    assert bleu_counts(["a b c"], [["a b c d", "a b"]]).closest.tolist() == [2]


def test_an_ngram_counts_as_often_as_in_one_reference():
    counts = bleu_counts(["the the the"], [["the cat", "the the dog"]])
    assert counts.correct[0].tolist() == [2, 1, 0, 0]
