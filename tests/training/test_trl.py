"""Rewards of captions in a trainer of the installed TRL, on a tiny language model and a tiny LLaVA."""

import pytest
import torch
from datasets import Dataset
from PIL import Image

from hf_captioners.training.rewards import caption_reward
from tests.pipelines.tiny_captioners import BUILDERS

from .tiny_language_models import CAPTIONS, SIDE, language_model, vision_language_model, words_tokenizer

trl = pytest.importorskip("trl", reason="the extra `test` installs trl")


@pytest.fixture
def tokenizer():
    return words_tokenizer()


def step(model, processor, rows, reward_funcs, folder):
    """Train one step and return the log, and whether the weights changed."""
    arguments = trl.GRPOConfig(
        str(folder),
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=6,
        max_steps=1,
        learning_rate=1e-2,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(model, reward_funcs, args=arguments, train_dataset=rows, processing_class=processor)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == 1
    log = next(entry for entry in trainer.state.log_history if "rewards/cider_d/mean" in entry)
    return log, any(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def watched(reward, seen):
    def watch(completions, **columns):
        seen.append((completions, columns))
        return reward(completions=completions, **columns)

    return watch


def short(completions, **columns):
    """A second reward, so that samples differ in their sum."""
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    return [-float(sum(map(ord, text))) for text in texts]


@pytest.mark.parametrize("conversational", [False, True])
def test_a_step_on_text(tokenizer, tmp_path, conversational):
    torch.manual_seed(0)
    texts = ["describe the image", "what do you see"]
    prompts = [[{"role": "user", "content": text}] if conversational else text for text in texts]
    rows = Dataset.from_dict({"prompt": prompts, "gold": CAPTIONS})
    reward, seen = caption_reward("cider_d", CAPTIONS, references_column="gold"), []
    log, has_changed = step(*language_model(tokenizer), rows, [reward, watched(reward, seen), short], tmp_path)
    (completions, columns) = seen[0]
    assert isinstance(completions[0], list) is conversational and len(completions) == 4
    expected = reward(completions=completions, gold=columns["gold"])
    assert max(expected) > 0
    assert log["rewards/cider_d/mean"] == pytest.approx(sum(expected) / 4, abs=1e-6)
    assert has_changed


def test_a_step_on_images(tokenizer, tmp_path):
    """The rows have images; a reward of images reads them from the same column."""
    torch.manual_seed(0)
    images = [Image.new("RGB", (SIDE, SIDE), (shade, 0, 0)) for shade in (10, 200)]
    prompts = [[{"role": "user", "content": text}] for text in ("describe it", "what is it")]
    rows = Dataset.from_dict({"prompt": prompts, "gold": CAPTIONS, "image": images})
    reward, seen = caption_reward("cider_d", CAPTIONS, references_column="gold"), []

    def bright(completions, image, **columns):
        return [one.getpixel((0, 0))[0] / 255 for one in image]

    funcs = [reward, watched(reward, seen), bright, short]
    log, has_changed = step(*vision_language_model(tokenizer), rows, funcs, tmp_path)
    (completions, columns) = seen[0]
    expected = reward(completions=completions, gold=columns["gold"])
    assert max(expected) > 0
    assert log["rewards/cider_d/mean"] == pytest.approx(sum(expected) / 4, abs=1e-6)
    assert log["rewards/bright/mean"] == pytest.approx(105 / 255, abs=1e-6)
    assert len(columns["image"]) == 4 and has_changed


@pytest.mark.parametrize("name", ["bleu", "rouge_l", "meteor"])
def test_other_rewards(name, monkeypatch):
    """They need no captions of a training set; METEOR without its tables counts equal words and stems."""
    from hf_captioners.metrics import Meteor

    monkeypatch.setattr("hf_captioners.training.rewards.functions.Meteor", lambda: Meteor(("exact", "stem")))
    reward = caption_reward(name, references_column="gold")
    texts = ("a red circle on the left", "three green dogs")
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    exact, wrong = reward(prompts=["", ""], completions=completions, completion_ids=[[1], [2]], gold=CAPTIONS)
    assert exact > 0.9 > 0.1 > wrong


@pytest.mark.parametrize(
    ("columns", "has_images", "error"),
    [
        (
            {
                "prompt": [[{"role": "user", "content": "describe it"}]],
                "completion": [[{"role": "assistant", "content": "a man"}]],
            },
            True,
            "does not have a chat template",
        ),
        (
            {"prompt": ["a"], "completion": ["man"]},
            True,
            "has no arguments .*add_special_tokens.*padding_side",
        ),
        ({"text": ["a man"]}, False, "`input_ids` is not an input of"),
    ],
)
def test_captioners_are_no_models_of_sft_trainer(tmp_path, columns, has_images, error):
    """Limits of docs/peers.md: if one is gone, its row there is wrong."""
    model, processor = BUILDERS["visualgpt"]()
    images = {"images": [[Image.new("RGB", (SIDE, SIDE))]]} if has_images else {}
    arguments = trl.SFTConfig(str(tmp_path), max_steps=1, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True)
    with pytest.raises((TypeError, ValueError), match=error):
        trl.SFTTrainer(
            model,
            args=arguments,
            train_dataset=Dataset.from_dict(columns | images),
            processing_class=processor if has_images else processor.tokenizer,
        ).train()


def test_captioners_are_no_models_of_grpo_trainer(tmp_path):
    model, processor = BUILDERS["visualgpt"]()
    rows = Dataset.from_dict({"prompt": ["a"] * 4, "image": [Image.new("RGB", (SIDE, SIDE))] * 4})
    with pytest.raises(AttributeError, match="no attribute 'image_token_id'"):
        step(model, processor, rows, [short], tmp_path)
