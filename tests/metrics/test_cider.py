import numpy as np
import pytest

from hf_captioners.metrics import CiderD, CiderOriginal, DocumentFrequency, bleu_counts, bleu_from_counts, cut_at_end


def check(score_sets, key, scorer_of):
    """Compare the scores of every set; `scorer_of` prepares the references of one."""
    compared = 0
    for one in score_sets:
        expected = one["expected"][key]
        scores = scorer_of(one["references"]).score(one["candidates"])
        np.testing.assert_allclose(scores, expected["per_image"], rtol=0, atol=1e-9, err_msg=f"{one['set']} {key}")
        assert abs(scores.mean() - expected["corpus"]) < 1e-9
        compared += len(scores)
    assert compared > 500


@pytest.mark.parametrize("key", ["cider_pycocoevalcap", "cider_d_corpus"])
def test_frequencies_of_the_set(score_sets, key):
    check(score_sets, key, CiderD)


def test_frequencies_of_a_corpus(score_sets, corpus_frequency):
    check(score_sets, "cider_d_df", lambda references: CiderD(references, corpus_frequency))


def test_frequencies_of_a_corpus_with_end_token(score_sets, df_references):
    frequency = DocumentFrequency.per_image(df_references, end_token="<eos>")
    check(score_sets, "cider_d_df_eos", lambda references: CiderD(references, frequency))


def test_frequencies_per_caption(score_sets, df_references):
    frequency = DocumentFrequency.per_caption([caption for captions in df_references for caption in captions])
    check(score_sets, "cider_d_m2", lambda references: CiderD(references, frequency))


def test_original_cider(score_sets, corpus_frequency):
    check(score_sets, "cider_original_corpus", CiderOriginal)
    check(score_sets, "cider_original_df", lambda references: CiderOriginal(references, corpus_frequency))


def test_rewards_on_token_ids(truth_json):
    truth = truth_json("scst_rewards_ids.json.gz")
    frequency = DocumentFrequency.per_image(truth["corpus"])
    assert frequency.table.size == truth["corpus_n_ngrams"]
    scorer = CiderD([cut_at_end(captions, 0) for captions in truth["references"]], frequency)
    samples = np.array(truth["samples"])
    n_images, n_samples, _ = samples.shape
    captions = cut_at_end(samples.reshape(n_images * n_samples, -1), 0)
    images = np.repeat(np.arange(n_images), n_samples)
    scores = scorer.score(captions, images).reshape(n_images, n_samples)
    greedy = scorer.score(cut_at_end(truth["greedy"], 0))
    expected = truth["expected"]
    np.testing.assert_allclose(scores, expected["cider_d_samples"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(greedy, expected["cider_d_greedy"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(scores - greedy[:, None], expected["reward_minus_greedy"], rtol=0, atol=1e-9)
    references = [cut_at_end(truth["references"][image], 0) for image in images]
    bleu_4 = bleu_from_counts(bleu_counts(captions, references))[3].reshape(n_images, n_samples)
    np.testing.assert_allclose(bleu_4, expected["bleu4_samples"], rtol=0, atol=1e-9)


def test_small_batches_give_the_same_figures(score_sets, corpus_frequency):
    one = score_sets[0]
    scorer = CiderD(one["references"], corpus_frequency)
    alone = [scorer.score([caption], [place])[0] for place, caption in enumerate(one["candidates"])]
    np.testing.assert_allclose(alone, scorer.score(one["candidates"]), rtol=0, atol=1e-12)


def test_the_images_of_candidates_must_exist():
    scorer = CiderD([["a b"], ["c d"]])
    with pytest.raises(ValueError, match="3 candidates for 2 images"):
        scorer.score(["a", "b", "c"])
    with pytest.raises(ValueError, match="1 positions for 2 candidates"):
        scorer.score(["a", "b"], [0])
    with pytest.raises(IndexError, match="expected 0 to 1"):
        scorer.score(["a"], [2])


def test_a_string_is_no_list_of_references():
    with pytest.raises(TypeError, match=r"references\[0\] is the string 'a b'"):
        CiderD(["a b"])


def test_no_candidates():
    assert CiderD([["a"]]).score([], []).tolist() == []
