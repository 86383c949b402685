"""Rewards of captions in a trainer of the installed TRL, on a tiny language model and a tiny LLaVA."""

import pytest
import torch
from datasets import Dataset
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from hf_captioners.training.rewards import caption_reward

trl = pytest.importorskip("trl", reason="the extra `test` installs trl")

SIDE = 16
CAPTIONS = [["a red circle on the left", "one red circle"], ["two blue stars", "blue stars on the right"]]
TEMPLATE = """{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}\
{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %} {% endfor %}"""


def words_tokenizer():
    """Make a tokenizer of the few words of the references, so that samples share words with them."""
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    words = sorted({word for texts in CAPTIONS for text in texts for word in text.split()})
    vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
    base = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    base.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=base, **special)


@pytest.fixture
def tokenizer():
    return words_tokenizer()


def language_model(tokenizer):
    size = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tokenizer.chat_template = TEMPLATE
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=1, **size)), tokenizer


def vision_language_model(tokenizer):
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=SIDE, patch_size=8, projection_dim=16, **size),
        text_config=LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **size),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_center_crop=False),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    return LlavaForConditionalGeneration(config), processor


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
