"""The reward `self_retrieval`: the probability of the own image, given by the likelihoods of a captioner."""

import pytest
import torch
from transformers import BlipImageProcessor

from hf_captioners.loading import ImageTextProcessor
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.training.collator import caption_encoder
from hf_captioners.training.rewards.weighted_sum import asks_for_images
from hf_captioners.training.scst.self_retrieval import SelfRetrieval
from tests.tiny_families import with_large_weights

from .scst_settings import log_of, scst_trainer
from .tiny_captioners import SIDE, tiny_blip, tiny_git, tiny_ved

CAPTIONS = ["a red circle", "two blue stars above", "a", "a red circle"]


@pytest.fixture
def images(scenes):
    rows = scenes["train"]
    return [rows[row]["image"] for row in (0, 1, 2, 0)]


def by_hand(model, processor, captions, images):
    """Sum the log-probabilities of each caption's tokens, one pair of image and caption at a time."""
    model.eval()
    table = torch.zeros(len(images), len(captions))
    for row, image in enumerate(images):
        for column, caption in enumerate(captions):
            batch = processor(images=image, text_target=[caption], return_tensors="pt")
            with torch.no_grad():
                logits = model(**batch).logits[0].log_softmax(-1)
            table[row, column] = sum(logits[place, token] for place, token in enumerate(batch["labels"][0]))
    return table


def test_probabilities_by_hand(make_captioner, processor, images):
    """The fourth caption has the first image: equal images are one candidate."""
    model = make_captioner()
    values = SelfRetrieval(model, processor)(completions=CAPTIONS, images=images, references=[["x"]] * 4)
    likelihood = by_hand(model, processor, CAPTIONS, images[:3])
    expected = likelihood.softmax(0)[torch.tensor([0, 1, 2, 0]), torch.arange(4)]
    assert values == pytest.approx(expected.tolist(), abs=1e-5)
    assert values[0] == values[3] and len({round(value, 6) for value in values}) == 3


def test_copies_of_an_image_are_one_image(make_captioner, processor, images):
    """TRL decodes the image of each sample on its own, and keeps it in a column of any name."""
    reward = SelfRetrieval(make_captioner(), processor, images_column="photo")
    copies = [image.copy() for image in images]
    talks = [[{"role": "assistant", "content": text}] for text in CAPTIONS]
    expected = SelfRetrieval(reward.model, processor)(CAPTIONS, images=images)
    assert reward(completions=talks, prompts=[""] * 4, photo=copies) == pytest.approx(expected)
    assert reward(completions=talks, photo=[[image] for image in copies]) == pytest.approx(expected)


def test_one_image_is_skipped(make_captioner, processor, images):
    assert SelfRetrieval(make_captioner(), processor)(["a", "b"], images=[images[0]] * 2) == [None, None]


@pytest.mark.parametrize("make", [tiny_ved, tiny_blip, tiny_git])
def test_captioners_of_transformers(make, tokenizer, images):
    """The likelihood of a caption is that of its tokens, each after the ones before it."""
    torch.manual_seed(0)
    processor = ImageTextProcessor(BlipImageProcessor(size={"height": SIDE, "width": SIDE}), tokenizer)
    model = with_large_weights(make(tokenizer))
    values = SelfRetrieval(model, processor)(CAPTIONS, images=images)
    assert values[0] == pytest.approx(values[3]) and all(0 < value < 1 for value in values)
    encoder = caption_encoder(processor, model)
    found = SelfRetrieval(model, processor).log_likelihood(CAPTIONS, images[:3])
    for row, image in enumerate(images[:3]):
        for column, caption in enumerate(CAPTIONS):
            batch = encoder.with_captions(encoder.encode_images([{"image": image}]), [caption])
            tokens = int((batch["labels"] != IGNORED_LABEL).sum())
            with torch.no_grad():
                expected = -model(**batch).loss.item() * tokens
            assert found[row, column].item() == pytest.approx(expected, rel=1e-4)


def test_missing_images_and_judges(make_captioner, processor, images):
    with pytest.raises(TypeError, match="column 'images', and the columns are image"):
        SelfRetrieval(make_captioner(), processor)(CAPTIONS, image=images)
    with pytest.raises(RuntimeError, match="before `train` is called"):
        SelfRetrieval(None, processor)(CAPTIONS, images=images)
    assert asks_for_images(SelfRetrieval(None, processor))


def test_in_training(make_captioner, processor, scenes, tmp_path):
    """The judge is the captioner that self-critical training starts from, and does not change."""
    model = make_captioner()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    options = {"reward_funcs": ["cider_d", "self_retrieval"], "max_steps": 2, "eval_strategy": "no"}
    trainer = scst_trainer(model, processor, scenes, tmp_path / "run", **options)
    trainer.train()
    judge = trainer.rewards.functions["self_retrieval"].model
    assert all(torch.equal(value, before[name]) for name, value in judge.named_parameters())
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())
    figures = log_of(trainer, "reward_self_retrieval")
    assert len(figures) == 2 and all(0 < figure < 1 for figure in figures)
    sums = [a + b for a, b in zip(log_of(trainer, "reward_cider_d"), figures, strict=True)]
    assert log_of(trainer, "reward") == pytest.approx(sums, abs=1e-5)


def test_skipped_captions_have_no_advantage(make_captioner, processor, scenes, tmp_path):
    """Captions that no reward scores count as the mean of the others of their image."""

    def second_only(completions, row, **columns):
        return [None if place % 3 else 2.0 if number else 1.0 for place, number in enumerate(row)]

    trainer = scst_trainer(make_captioner(), processor, scenes, tmp_path / "run", [second_only])
    samples = trainer._draw({k: v for k, v in trainer.data_collator([trainer.train_dataset[0]]).items() if k != "row"})
    advantages = trainer._advantages(trainer._reward(samples, [0]), None, torch.device("cpu"))
    assert advantages.tolist() == [[0.0, 0.0, 0.0]]
    assert trainer._figures["reward_second_only"] == [1.0]

    def none(completions, **columns):
        return [None] * len(completions)

    trainer = scst_trainer(make_captioner(), processor, scenes, tmp_path / "other", [none])
    advantages = trainer._advantages(trainer._reward(samples, [0]), None, torch.device("cpu"))
    assert advantages.tolist() == [[0.0, 0.0, 0.0]] and "reward_none" not in trainer._figures
