import numpy as np
import pytest

from hf_captioners.metrics import Meteor, MeteorTables
from hf_captioners.metrics.meteor import STAGES
from hf_captioners.metrics.meteor_alignment import Matches, align, count_chunks


def test_figures_of_the_original(score_sets, tables):
    meteor = Meteor(tables=tables)
    assert meteor.stages == STAGES
    errors, same_statistics = [], []
    for one in score_sets:
        expected = one["expected"]["meteor"]
        result = meteor.score(one["candidates"], one["references"])
        assert abs(result.corpus - expected["corpus"]) < 1e-4, one["set"]
        errors += np.abs(result.per_image - np.array(expected["per_image"])).tolist()
        statistics = [[float(number) for number in row.split()] for row in expected["stats"]]
        same_statistics += (result.statistics == np.array(statistics)).all(axis=1).tolist()
    assert len(errors) > 500
    assert np.mean(np.array(errors) < 1e-6) >= 0.999, f"{np.sum(np.array(errors) >= 1e-6)} of {len(errors)} differ"
    assert np.mean(same_statistics) >= 0.999


def test_without_tables():
    result = Meteor(stages=("exact", "stem")).score(["a dog runs", "x"], [["the dogs run", "a dog"], ["y"]])
    assert result.statistics[0, [4, 8, 21, 22]].tolist() == [1, 0, 2, 2]  # `a dog` has the higher score
    assert result.per_image[0] > 0.4
    assert result.per_image[1] == 0


def test_identical_captions_have_the_highest_score():
    result = Meteor(stages=("exact",)).score(["a dog runs"] * 2, [["a dog runs"], ["a dog runs fast"]])
    assert result.per_image[0] == 1.0
    assert result.per_image[1] < 1.0


def test_stages_are_a_beginning():
    with pytest.raises(ValueError, match="expected a prefix of"):
        Meteor(stages=("stem",))
    with pytest.raises(ValueError, match="expected a prefix of"):
        Meteor(stages=())


def test_missing_tables_say_what_to_install(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"pip install 'hf-captioners\[metrics-data\]'"):
        MeteorTables(tmp_path)


def matches_of(*spans, pairs=None):
    """Matches of one pair, or of the given ones; a span is stage, start and length in reference and hypothesis."""
    pairs = [0] * len(spans) if pairs is None else pairs
    return Matches(np.array(pairs, dtype=np.int64), np.array(spans, dtype=np.int64).reshape(-1, 5))


def test_alignment_prefers_few_chunks():
    """`a b a`: the second `a` of the hypothesis follows `b`, so the reference `b a` matches in one chunk."""
    matches = matches_of((0, 0, 1, 1, 1), (0, 1, 1, 0, 1), (0, 1, 1, 2, 1))
    chosen = align(matches, np.array([2]), np.array([3]))
    assert chosen.spans.tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 2, 1]]
    assert count_chunks(chosen, 1).tolist() == [1]


def test_a_gap_in_the_reference_ends_a_chunk():
    spans = [(0, 0, 1, 0, 1), (0, 2, 1, 1, 1), (0, 3, 1, 2, 1)]
    assert count_chunks(matches_of(*spans), 1).tolist() == [2]
    assert count_chunks(matches_of(*spans, pairs=[0, 2, 2]), 4).tolist() == [1, 0, 1, 0]


def test_pairs_are_aligned_as_if_alone():
    """Captions of 0 to 150 words of few kinds, so that the beam is full; words of a pair are counted in 62 bits."""
    generator = np.random.default_rng(0)
    captions = [" ".join(generator.choice(list("abcde"), size)) for size in (0, 1, 5, 12, 13, 30, 61, 62, 63, 150)]
    predictions = [caption for caption in captions for _ in captions]
    references = [[caption] for _ in captions for caption in captions]
    meteor = Meteor(stages=("exact", "stem"))
    together = meteor.score(predictions, references)
    for number, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        alone = meteor.score([prediction], [reference])
        assert (alone.statistics[0] == together.statistics[number]).all(), (prediction, reference)
    words = np.array([len(caption.split()) for caption in captions])
    shares = together.statistics[:, 21].reshape(len(captions), -1)
    assert (shares.diagonal() == words).all() and (shares <= np.minimum.outer(words, words)).all()
