"""Support on cases counted by hand, its properties, and the language that it is for."""

import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_captioners.cli import main
from hf_captioners.metrics import PTBTokenizer, caption_support, compute_caption_metrics
from hf_captioners.metrics.meteor_tables import Synonyms
from hf_captioners.metrics.support import FUNCTION_WORDS, people_support, score_support, score_support_synonyms

CASES = [
    # caption, references, content words, those that are supported
    ("a dog runs", ["two dogs running"], ["dog", "runs"], [True, True]),
    ("two dogs and a cat", ["a dog"], ["two", "dogs", "cat"], [False, True, False]),
    ("a man is on the horse", ["she rides"], ["man", "horse"], [False, False]),
    ("a dog chases a dog", ["the dog"], ["dog", "chases", "dog"], [True, False, True]),
    ("a man in a t-shirt 's 2 dogs", ["a shirt"], ["man", "dogs"], [False, False]),
    ("children play", ["a child plays", "kids"], ["children", "play"], [False, True]),
    ("it is on the", ["it is on the"], [], []),
    ("", ["a dog"], [], []),
]
words = st.sampled_from(["a", "the", "man", "dog", "dogs", "riding", "rides", "horse", "'s", "on", "two", "7"])
captions = st.lists(words, max_size=10).map(" ".join)
references = st.lists(captions, min_size=1, max_size=4)
ENGLISH = "a man in a red shirt is on the grass with his dog near a lake and looks at it"
GERMAN = "ein Mann mit rotem Hemd steht auf dem Gras neben seinem Hund vor einem See und sieht ihn heute lange an"
SYNONYMS = Synonyms("bike\n1 2\nbicycle\n2 3\na\n2\ncat\n4\n", "")


@pytest.mark.parametrize(("caption", "texts", "content", "supported"), CASES)
def test_by_hand(caption, texts, content, supported):
    result = caption_support(caption, texts)
    assert (result.words, result.supported) == (content, supported)
    expected = sum(supported) / len(supported) if supported else math.nan
    assert result.share == pytest.approx(expected, nan_ok=True)


def test_the_mean_leaves_out_captions_without_content_words():
    predictions, texts = [case[0] for case in CASES[:2]] + ["It is on the."], [case[1] for case in CASES[:2]] + [["x"]]
    result = compute_caption_metrics(predictions, texts, ["support"])
    assert result["support"] == pytest.approx((1 + 1 / 3) / 2)
    assert result["per_image"]["support"] == pytest.approx([1, 1 / 3, math.nan], nan_ok=True)
    assert "1 captions without content words left out" in result["variants"]["support"]
    assert "support_people" not in result  # one reference each


def test_captions_without_any_content_word():
    result = compute_caption_metrics(["", "on it"], [["a dog"], ["a cat"]], ["support"])
    assert result["support"] == 0 and "2 captions" in result["variants"]["support"]


def test_people_by_hand():
    """Each reference against the others of its image: 1/2, 1/2 and 1/1; then 0/1 and no content word."""
    first, second = ["a dog runs", "two dogs", "the dog"], ["a cat", "it is"]
    assert people_support(first) == [1 / 2, 1 / 2, 1]
    assert people_support(second) == pytest.approx([0, math.nan], nan_ok=True)
    assert people_support(["a dog"]) == []
    scores = {score.name: score for score in score_support(["a dog", "a cat"], [first, second])}
    assert scores["support_people"].corpus == pytest.approx((1 / 2 + 1 / 2 + 1 + 0) / 4)
    assert scores["support_people"].per_image == pytest.approx([2 / 3, 0])


def test_synonyms_are_a_figure_of_their_own():
    assert caption_support("a bike and a cat", ["a bicycle"]).supported == [False, False]
    assert caption_support("a bike and a cat", ["a bicycle"], SYNONYMS).supported == [True, False]
    assert caption_support("a bicycle", ["a"], SYNONYMS).supported == [False]  # function words are no synonyms
    tables = SimpleNamespace(synonyms=SYNONYMS)
    result = compute_caption_metrics(
        ["A bike."], [["a bicycle", "one bike"]], ["support", "support_synonyms"], tables=tables
    )
    assert (result["support"], result["support_people"]) == (1, 0)
    assert (result["support_synonyms"], result["support_synonyms_people"]) == (1, 0.75)


def test_tables_of_meteor(tables):
    scores = score_support_synonyms(["a man rides a bicycle"], [["a person on a bike", "a man bikes"]], tables)
    plain = score_support(["a man rides a bicycle"], [["a person on a bike", "a man bikes"]])
    assert scores[0].corpus >= plain[0].corpus == pytest.approx(1 / 3)


@given(caption=captions, texts=references)
@settings(max_examples=60, deadline=None)
def test_properties(caption, texts):
    """A share lies in 0..1; a caption supports itself; more references and another order never lower it."""
    result = caption_support(caption, texts)
    assert all(word.isalpha() and word not in FUNCTION_WORDS for word in result.words)
    assert all(caption_support(caption, [caption]).supported)
    more = caption_support(caption, [*texts[::-1], "a horse"])
    assert all(after or not before for before, after in zip(result.supported, more.supported, strict=True))
    assert not result.words or 0 <= result.share <= more.share <= 1


def test_other_languages_have_no_figure():
    assert compute_caption_metrics([ENGLISH] * 3, [[ENGLISH]] * 3, ["support"])["support"] == 1
    with pytest.raises(ValueError, match=r"`support` is for English, and 3 of the 63 words .* Leave `support` out"):
        compute_caption_metrics([GERMAN] * 3, [[GERMAN]] * 3, ["support"])
    with pytest.raises(ValueError, match="for English"):
        compute_caption_metrics(["狗在海滩上奔跑"] * 20, [["狗在海滩上奔跑"]] * 20, ["support"], "characters")


def test_captions_of_the_fixtures(score_sets):
    """Support of untokenised captions of photographs, with people's figure above that of captioners."""
    tokenize = PTBTokenizer()
    rows = next(one for one in score_sets if len(one.get("references", ())) > 20)
    texts = [tokenize(captions) for captions in rows["references"]]
    people = [share for row in texts for share in people_support(row) if not math.isnan(share)]
    assert 0.3 < sum(people) / len(people) < 0.9


def test_command(tmp_path, capsys):
    (tmp_path / "captions.jsonl").write_text(
        '{"image": "a.jpg", "caption": "a dog on sand"}\n{"image": "b.jpg", "caption": "on it"}\n'
        '{"image": "c.jpg", "caption": "a man"}\n'
    )
    (tmp_path / "other.jsonl").write_text(
        '{"image": "a.jpg", "caption": "a cat"}\n{"image": "b.jpg", "caption": "a cat"}\n'
        '{"image": "c.jpg", "caption": "men"}\n'
    )
    (tmp_path / "references.jsonl").write_text(
        '{"image": "a.jpg", "captions": ["dogs", "a dog"]}\n{"image": "b.jpg", "captions": ["a cat", "a cat"]}\n'
        '{"image": "c.jpg", "captions": ["one man", "a man"]}\n'
    )
    files = [str(tmp_path / name) for name in ("captions.jsonl", "references.jsonl", "other.jsonl", "images.jsonl")]
    assert main(["score", *files[:2], "--metrics", "support", "--baseline", files[2], "--per_image", files[3]]) == 0
    printed = capsys.readouterr().out
    assert "support            0.7500" in printed and "support_people     0.9167" in printed
    assert "+0.7500" in printed  # of the two images with content words in both: 0.5 - 0 and 1 - 0
    rows = [json.loads(line) for line in (tmp_path / "images.jsonl").read_text().splitlines()]
    assert [row["support"] for row in rows] == [0.5, None, 1.0]
