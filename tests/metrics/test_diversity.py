import pytest

from hf_captioners.metrics import caption_health, set_diversity


def test_health():
    figures = caption_health(["a man on a", "a dog", "a dog", ""], {"a dog"})
    assert figures == {
        "distinct": 0.75,
        "div_1": 0.5,  # a man on dog, of eight words
        "div_2": 0.8,  # five pairs, `a dog` twice
        "vocabulary": 4.0,
        "length": 2.0,
        "bad_endings": 0.25,
        "empty": 0.25,
        "novel": 0.5,
    }
    assert "novel" not in caption_health(["a dog"])


def test_collapse_shows():
    figures = caption_health(["a man in a"] * 100)
    assert figures["distinct"] == 0.01
    assert figures["bad_endings"] == 1.0


def test_set_diversity():
    same, different = set_diversity([["a b c d"] * 3]), set_diversity([["a b c d", "e f g h", "i j k l"]])
    assert same["m_bleu_4"] == pytest.approx(1.0, abs=1e-6)
    assert different["m_bleu_4"] < 1e-6
    assert (same["div_1"], different["div_1"]) == (4 / 12, 1.0)
    assert (same["distinct"], different["distinct"]) == (1 / 3, 1.0)


def test_a_set_needs_two_captions():
    with pytest.raises(ValueError, match="two or more"):
        set_diversity([["a"], ["a", "b"]])
