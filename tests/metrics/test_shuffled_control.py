"""The shuffled control scores captions against the references of the next image."""

import numpy as np
import pytest

from hf_captioners.metrics import CiderD, DocumentFrequency, compute_caption_metrics, shuffled_cider_d

REFERENCES = [
    ["A man rides a horse.", "a man on a horse"],
    ["Two dogs run on grass."],
    ["A red bus on a road!", "a bus", "red bus"],
]
CAPTIONS = ["a man rides a horse", "two dogs run", "a bus on a road"]
WORDS = [
    ["a man rides a horse", "a man on a horse"],
    ["two dogs run on grass"],
    ["a red bus on a road", "a bus", "red bus"],
]


def test_equals_the_metric_on_moved_references():
    """The document frequencies are those of the whole set, so moving the references changes nothing else."""
    moved = [*WORDS[1:], WORDS[0]]
    own, shuffled = CiderD(WORDS).score(CAPTIONS), shuffled_cider_d(CAPTIONS, WORDS)
    assert shuffled.tolist() == CiderD(moved).score(CAPTIONS).tolist()
    assert shuffled.mean() < own.mean() / 4
    frequency = DocumentFrequency.per_image([*WORDS, ["a man and a dog"]])
    given = shuffled_cider_d(CAPTIONS, WORDS, frequency)
    assert given.tolist() == CiderD(moved, frequency).score(CAPTIONS).tolist() != shuffled.tolist()


def test_captions_of_a_blind_captioner_score_alike():
    blind = ["a man on a horse on grass on a road"] * 3
    own, shuffled = CiderD(WORDS).score(blind).mean(), shuffled_cider_d(blind, WORDS).mean()
    assert own == pytest.approx(shuffled) and own > 0


def test_as_a_metric():
    result = compute_caption_metrics(CAPTIONS, REFERENCES, ["cider_d", "cider_d_shuffled"])
    expected = shuffled_cider_d(CAPTIONS, WORDS)
    np.testing.assert_allclose(result["per_image"]["cider_d_shuffled"], expected, rtol=0, atol=1e-12)
    assert result["cider_d_shuffled"] == pytest.approx(expected.mean())
    assert "next image" in result["variants"]["cider_d_shuffled"]
    assert result["document_frequency"] == "the references of this set: 3 images"


def test_bad_input():
    with pytest.raises(ValueError, match="There is 1 image.*at least 2"):
        shuffled_cider_d(["a man"], [["a man"]])
    with pytest.raises(ValueError, match="1 predictions for 3 images"):
        shuffled_cider_d(["a man"], WORDS)
