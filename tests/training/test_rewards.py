"""Rewards equal the metrics, and wrong rewards are refused with the reason."""

import pytest
import torch

from hf_captioners.metrics import CiderD, DocumentFrequency, bleu_counts, bleu_from_counts, rouge_l
from hf_captioners.training.rewards import END_WORD, RewardSum, TrainingReferences, named_reward

CAPTIONS = [
    ["A red circle on the left.", "One red circle, left of a star"],
    ["two blue squares"],
    ["a green star above a blue square", "The green star is above a square."],
]
COMPLETIONS = ["a red circle", "a red circle", "two blue squares", "the green star above a"]
ROW, ENDED = [0, 0, 1, 2], [True, False, True, True]
WORDS = [
    ["a red circle on the left", "one red circle left of a star"],
    ["two blue squares"],
    ["a green star above a blue square", "the green star is above a square"],
]


def reward(name, count_end=False, document_frequency="per_image"):
    return named_reward(name, TrainingReferences(CAPTIONS, count_end), document_frequency)


def figures(function):
    return function(COMPLETIONS, [CAPTIONS[row] for row in ROW], row=ROW, ended=ENDED, image_id=["x"] * 4)


@pytest.mark.parametrize("unit", ["per_image", "per_caption"])
def test_cider_d_with_either_kind_of_documents(unit):
    flat = [text for texts in WORDS for text in texts]
    frequency = DocumentFrequency.per_image(WORDS) if unit == "per_image" else DocumentFrequency.per_caption(flat)
    expected = CiderD(WORDS, frequency).score(COMPLETIONS, ROW).tolist()
    assert figures(reward("cider_d", document_frequency=unit)) == pytest.approx(expected)
    assert expected[2] > 1


def test_the_end_counts_where_there_is_one():
    """A truncated caption has a different reward only where ends count."""
    with_end = [[f"{text} {END_WORD}" for text in texts] for texts in WORDS]
    completions = [text if not ended else f"{text} {END_WORD}" for text, ended in zip(COMPLETIONS, ENDED, strict=True)]
    for name, expected in (
        ("cider_d", CiderD(with_end, DocumentFrequency.per_image(with_end)).score(completions, ROW)),
        ("bleu_4", bleu_from_counts(bleu_counts(completions, [with_end[row] for row in ROW]))[3]),
    ):
        assert figures(reward(name, count_end=True)) == pytest.approx(expected.tolist())
    ended, cut = figures(reward("cider_d", count_end=True))[:2]
    assert ended != cut
    ended, cut = figures(reward("cider_d"))[:2]
    assert ended == cut


def test_bleu_rouge_and_meteor(monkeypatch):
    theirs = [WORDS[row] for row in ROW]
    assert figures(reward("bleu_4")) == pytest.approx(bleu_from_counts(bleu_counts(COMPLETIONS, theirs))[3].tolist())
    assert figures(reward("rouge_l", count_end=True)) == pytest.approx(rouge_l(COMPLETIONS, theirs).tolist())
    asked = {}

    class Scorer:
        def score(self, predictions, references):
            asked.update(predictions=predictions, references=references)
            return type("Result", (), {"per_image": torch.tensor([0.1, 0.2, 0.3, 0.4])})

    monkeypatch.setattr("hf_captioners.training.rewards.Meteor", Scorer)
    assert figures(reward("meteor", count_end=True)) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert asked == {"predictions": COMPLETIONS, "references": theirs}


def test_a_file_of_document_frequencies(tmp_path):
    corpus = [*WORDS, ["a yellow moon on the right"]]
    DocumentFrequency.per_image(corpus).save(tmp_path / "plain.npz")
    expected = CiderD(WORDS, DocumentFrequency.per_image(corpus)).score(COMPLETIONS, ROW).tolist()
    assert figures(reward("cider_d", document_frequency=str(tmp_path / "plain.npz"))) == pytest.approx(expected)
    assert expected != pytest.approx(figures(reward("cider_d")))
    DocumentFrequency.per_image(WORDS, end_token=END_WORD).save(tmp_path / "ends.npz")
    with_file = figures(reward("cider_d", True, str(tmp_path / "ends.npz")))
    assert with_file == pytest.approx(figures(reward("cider_d", True)))


@pytest.mark.parametrize(
    ("corpus", "end_token", "count_end", "expected"),
    [
        ([[[4, 5, 6]], [[7, 8]]], None, False, "contain 0% of the words.*different vocabulary"),
        ([["ein roter kreis"], ["zwei blaue quadrate"]], None, False, "different vocabulary"),
        (WORDS, None, True, "counted without end tokens.*Set it to False"),
        (WORDS, END_WORD, False, "counted with end tokens.*Set it to True"),
        (WORDS, "</s>", True, "is '</s>', expected '<end>'"),
    ],
)
def test_a_file_of_another_vocabulary(tmp_path, corpus, end_token, count_end, expected):
    DocumentFrequency.per_image(corpus, end_token=end_token).save(tmp_path / "corpus.npz")
    with pytest.raises(ValueError, match=expected):
        reward("cider_d", count_end, str(tmp_path / "corpus.npz"))


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a file nor one of per_image"):
        reward("cider_d", document_frequency="per_photo")
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(ValueError, match="not a file of document frequencies"):
        reward("cider_d", document_frequency=str(tmp_path / "junk"))


def test_names_and_captions_are_checked():
    with pytest.raises(ValueError, match="no reward 'cider'.*cider_d"):
        reward("cider")
    with pytest.raises(ValueError, match="1 training images have no caption.*row 1"):
        TrainingReferences([["a"], [], ["b"]], False)


def one(value):
    def function(completions, references, **columns):
        return [value] * len(completions)

    return function


def test_weighted_sum_and_columns():
    seen = {}

    def watch(completions, references, **columns):
        seen.update(columns, references=references, completions=completions)
        return [1.0, 2.0, 3.0, 4.0]

    class Columns:
        def __getitem__(self, rows):
            return {"image_id": [f"image {row}" for row in rows]}

    rewards = RewardSum({"watch": watch, "half": one(0.5)}, [2.0, -1.0], CAPTIONS, Columns())
    values = rewards(COMPLETIONS, ROW, ENDED)
    assert values.tolist() == [[1.0, 0.5], [2.0, 0.5], [3.0, 0.5], [4.0, 0.5]]
    assert rewards.total(values).tolist() == [1.5, 3.5, 5.5, 7.5]
    assert seen["image_id"] == ["image 0", "image 0", "image 1", "image 2"]
    assert (seen["row"], seen["ended"], seen["completions"]) == (ROW, ENDED, COMPLETIONS)
    assert seen["references"] == [CAPTIONS[row] for row in ROW]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda completions, references, **columns: [1.0], "returned 1 values for 4 completions"),
        (one(float("nan")), r"returned nan for completion 0 \('a red circle'\).*finite"),
        (one(float("inf")), "returned inf"),
        (one(None), "returned None"),
    ],
)
def test_what_a_reward_returns_is_checked(function, expected):
    with pytest.raises(ValueError, match=expected):
        RewardSum({"mine": function}, None, CAPTIONS, None)(COMPLETIONS, ROW, ENDED)


def test_what_a_reward_takes_is_checked():
    with pytest.raises(TypeError, match=r"'mine'.*\*\*columns"):
        RewardSum({"mine": lambda completions, references: [1.0]}, None, CAPTIONS, None)
    with pytest.raises(ValueError, match="1 reward functions and 2 `reward_weights`"):
        RewardSum({"mine": one(1.0)}, [1.0, 2.0], CAPTIONS, None)
    with pytest.raises(ValueError, match="at least one function"):
        RewardSum({}, None, CAPTIONS, None)
