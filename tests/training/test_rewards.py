"""Rewards equal the metrics, and wrong rewards are refused with the reason."""

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from hf_captioners.metrics import CiderD, DocumentFrequency, bleu_counts, bleu_from_counts, rouge_l
from hf_captioners.metrics.meteor import MeteorResult
from hf_captioners.training.rewards import caption_reward, named_reward
from hf_captioners.training.rewards.references import END_WORD, TrainingReferences
from hf_captioners.training.rewards.weighted_sum import RewardRows, RewardSum

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
    references = [CAPTIONS[row] for row in ROW]
    return function(completions=COMPLETIONS, references=references, row=ROW, ended=ENDED, image_id=["x"] * 4)


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
        stages = ("exact",)

        def score(self, predictions, references):
            asked.update(predictions=predictions, references=references)
            return MeteorResult(0.3, np.array([0.1, 0.2, 0.3, 0.4]), np.zeros((4, 23)))

    monkeypatch.setattr("hf_captioners.training.rewards.functions.Meteor", Scorer)
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
    with pytest.raises(ValueError, match=r"no reward 'cider'.*Did you mean `cider_d`"):
        reward("cider")
    with pytest.raises(ValueError, match="1 training images have no caption.*row 1"):
        TrainingReferences([["a"], [], ["b"]], False)


def one(value):
    def function(completions, references, **columns):
        return [value] * len(completions)

    return function


def rows_of(**columns):
    return RewardRows(Dataset.from_dict({"captions": CAPTIONS} | columns))


def test_weighted_sum_and_columns():
    seen = {}

    def watch(completions, references, **columns):
        seen.update(columns, references=references, completions=completions)
        return [1.0, 2.0, 3.0, 4.0]

    rows = rows_of(image_id=[f"image {row}" for row in range(3)])
    rewards = RewardSum({"watch": watch, "half": one(0.5)}, [2.0, -1.0], rows)
    values = rewards(COMPLETIONS, ROW, ENDED)
    assert values.tolist() == [[1.0, 0.5], [2.0, 0.5], [3.0, 0.5], [4.0, 0.5]]
    assert rewards.total(values).tolist() == [1.5, 3.5, 5.5, 7.5]
    assert seen["image_id"] == ["image 0", "image 0", "image 1", "image 2"]
    assert (seen["row"], seen["ended"], seen["completions"]) == (ROW, ENDED, COMPLETIONS)
    assert seen["references"] == seen["captions"] == [CAPTIONS[row] for row in ROW]
    assert "images" not in seen


def test_functions_as_trl_has_them():
    """Called by keywords, with prompts; None skips a completion."""

    def length(completions, **kwargs):
        return [len(text.split()) if "red" in text else None for text in completions]

    def prompted(prompts, completions, image_id, **kwargs):
        return [0.5 if prompt == "" else 0 for prompt in prompts]

    rewards = RewardSum({"length": length, "prompted": prompted}, [1.0, 2.0], rows_of(image_id=["a", "b", "c"]))
    values = rewards(COMPLETIONS, ROW, ENDED)
    assert values.isnan().tolist() == [[False, False], [False, False], [True, False], [True, False]]
    assert rewards.total(values).tolist() == [4.0, 4.0, 1.0, 1.0]
    alone = RewardSum({"length": length}, None, rows_of())
    assert alone.total(alone(COMPLETIONS, ROW, ENDED)).isnan().tolist() == [False, False, True, True]


class CountedImages:
    """A data set of images that counts how often one is decoded."""

    def __init__(self):
        self.rows = Dataset.from_dict({"captions": CAPTIONS})
        self.column_names = ["image", "captions"]
        self.decoded = []

    def __getitem__(self, key):
        if isinstance(key, int):
            self.decoded.append(key)
            return {"image": Image.new("L", (4, 4), key)}
        return self.rows[key]

    def select_columns(self, names):
        return self


def test_images_are_decoded_once_and_only_for_rewards_that_ask():
    seen = {}

    def bright(completions, references, images=None, **columns):
        seen["images"] = images
        return [image.getpixel((0, 0))[0] for image in images]

    def blind(completions, references, **columns):
        assert "images" not in columns and "image" not in columns
        return [0.0] * len(completions)

    rows = CountedImages()
    assert RewardSum({"blind": blind}, None, RewardRows(rows))(COMPLETIONS, ROW, ENDED).sum() == 0
    assert rows.decoded == []
    values = RewardSum({"bright": bright, "blind": blind}, None, RewardRows(rows))(COMPLETIONS, ROW, ENDED)
    assert rows.decoded == [0, 1, 2] and values[:, 0].tolist() == [0, 0, 1, 2]
    assert seen["images"][0] is seen["images"][1] and seen["images"][0].mode == "RGB"
    with pytest.raises(ValueError, match="'bright' asks for `images`, and the training set has none, only image_id"):
        RewardSum({"bright": bright}, None, rows_of(image_id=["a", "b", "c"]))


@pytest.mark.parametrize(
    ("function", "error", "expected"),
    [
        (lambda completions, references, **columns: [1.0], ValueError, "returned 1 values for 4 completions"),
        (one(float("nan")), ValueError, r"returned nan for completion 0 \('a red circle'\).*finite"),
        (one(float("inf")), ValueError, "returned inf"),
        (one("good"), TypeError, "returned 'good' for completion 0"),
        (lambda completions, **columns: 1.0, TypeError, "'mine' returned 1.0, expected a list"),
        (lambda completions, **columns: {"a": 1}, TypeError, "'mine' returned {'a': 1}, expected a list"),
    ],
)
def test_what_a_reward_returns_is_checked(function, error, expected):
    with pytest.raises(error, match=expected):
        RewardSum({"mine": function}, None, rows_of())(COMPLETIONS, ROW, ENDED)


def test_what_a_reward_takes_is_checked():
    with pytest.raises(TypeError, match=r"'mine'.*\*\*columns"):
        RewardSum({"mine": lambda completions, references: [1.0]}, None, rows_of())
    with pytest.raises(ValueError, match="'mine' needs `image_ids`.* Did you mean `image_id`"):
        RewardSum({"mine": lambda image_ids, **columns: [1.0]}, None, rows_of(image_id=["a", "b", "c"]))
    with pytest.raises(ValueError, match="1 reward functions and 2 `reward_weights`"):
        RewardSum({"mine": one(1.0)}, [1.0, 2.0], rows_of())
    with pytest.raises(ValueError, match="at least one function"):
        RewardSum({}, None, rows_of())


@pytest.mark.parametrize("name", ["cider_d", "bleu", "rouge_l"])
def test_conversations_and_columns_by_choice(name):
    """Completions of TRL are texts or messages; the column of references has any name, and rows may lack them."""
    expected = figures(reward(name))
    chosen = caption_reward(name, CAPTIONS, references_column="gold")
    gold = [CAPTIONS[row] for row in ROW]
    assert chosen(prompts=[""] * 4, completions=COMPLETIONS, gold=gold, references=[["x"]] * 4) == expected
    talks = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    assert chosen(completions=talks, gold=gold) == expected
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in COMPLETIONS]
    assert chosen(completions=parts, gold=gold) == expected
    assert chosen(completions=talks, gold=[None, *gold[1:3], []]) == [None, *expected[1:3], None]
    single = chosen(completions=talks, gold=["two blue squares"] * 4)
    assert single[2] == pytest.approx(chosen(completions=talks, gold=[["two blue squares"]] * 4)[2])
    with pytest.raises(TypeError, match="column 'gold', and the columns are golds.*Did you mean `golds`"):
        chosen(completions=COMPLETIONS, golds=gold)
    with pytest.raises(TypeError, match="A completion is 3, expected a text or a list of messages"):
        chosen(completions=[3], gold=gold[:1])


def test_other_references_than_the_prepared_ones():
    """They get the same document frequencies: the order of the references of an image changes nothing."""
    given = [[*reversed(CAPTIONS[row])] for row in ROW]
    prepared = reward("cider_d")
    assert prepared(completions=COMPLETIONS, references=given) == pytest.approx(figures(prepared))
    with pytest.raises(ValueError, match="CIDEr-D needs document frequencies: pass the captions"):
        named_reward("cider_d")


def test_a_reward_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(
        "def short(completions, **columns):\n    return [1.0] * len(completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert named_reward("own_rewards:short")(completions=["a"]) == [1.0]
    with pytest.raises(ValueError, match=r"no 'shrot' in .* Did you mean `short`"):
        named_reward("own_rewards:shrot")
