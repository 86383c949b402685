"""Captioners of transformers: labels in the form that their models need, and training that reduces the loss."""

import pytest
import torch
from transformers import (
    BlipImageProcessor,
)

from hf_captioners.loading import ImageTextProcessor, load_captioner
from hf_captioners.training import evaluation_loop
from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.collator import CaptionCollator, caption_encoder
from hf_captioners.training.few_images import REWARDS, with_recipe
from hf_captioners.training.scst.trainer import SCSTTrainer
from tests.tiny_families import with_large_weights
from tests.variants import slow_unless

from .tiny_captioners import SIDE, tiny_blip, tiny_git, tiny_ved


@pytest.fixture(params=[tiny_ved, tiny_blip, tiny_git], ids=["vision-encoder-decoder", "blip", "git"])
def foreign(request, tokenizer):
    torch.manual_seed(0)
    images = BlipImageProcessor(size={"height": SIDE, "width": SIDE})
    return request.param(tokenizer), ImageTextProcessor(images, tokenizer)


def test_labels_keep_the_end_token_and_lose_the_padding(foreign, tokenizer):
    model, processor = foreign
    batch = caption_encoder(processor, model).encode_captions(["a red circle", "two small squares left of a star"])
    words = tokenizer("a red circle", add_special_tokens=False)["input_ids"]
    learned = [label for label in batch["labels"][0].tolist() if label != -100]
    assert learned == [*words, tokenizer.eos_token_id]
    if "input_ids" in batch:
        assert batch["input_ids"][0, : len(words) + 2].tolist() == [tokenizer.bos_token_id, *learned]
        assert batch["attention_mask"][0].tolist() == [1] * (len(words) + 2) + [0] * (
            batch["labels"].shape[1] - len(words) - 2
        )
    cut = caption_encoder(processor, model, max_tokens=3).encode_captions(["a red circle"])["labels"][0].tolist()
    assert [label for label in cut if label != -100] == [*words[:2], tokenizer.eos_token_id]


def test_the_loss_is_that_of_the_next_token(foreign, tokenizer, scenes):
    """The loss of one caption equals the mean over its tokens, each predicted from those before it."""
    model, processor = foreign
    model.eval()
    encoder = caption_encoder(processor, model)
    images = encoder.encode_images([scenes["train"][0]])
    batch = encoder.encode_captions(["a red circle"])
    row = [encoder.begin, *[label for label in batch["labels"][0].tolist() if label != -100]]
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    expected = 0.0
    with torch.no_grad():
        loss = model(**images, **batch).loss.item()
        for length in range(1, len(row)):
            logits = model(**images, **{name: torch.tensor([row[:length]])}).logits
            expected -= logits[0, -1].log_softmax(-1)[row[length]].item() / (len(row) - 1)
    assert loss == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_the_loss_of_a_batch_weighs_tokens(foreign, scenes):
    """Captions of several lengths; another image has another loss."""
    model, processor = foreign
    collate = CaptionCollator(caption_encoder(processor, with_large_weights(model)))
    captions = ["a red circle", "two small squares left of a star", "a star"]
    pairs = [{**scenes["train"][row], "caption": caption} for row, caption in enumerate(captions)]
    batches = [collate(pairs), *(collate([pair]) for pair in pairs)]
    whole, *singles = [model(**batch).loss.item() for batch in batches]
    tokens, *counts = [int((batch["labels"] != -100).sum()) for batch in batches]
    assert sum(counts) == tokens
    expected = sum(loss * count for loss, count in zip(singles, counts, strict=True)) / tokens
    assert whole == pytest.approx(expected, rel=1e-5)
    other = model(**collate([{**pairs[1], "caption": captions[0]}])).loss.item()
    assert abs(other - singles[0]) > 1e-5


def test_trains_evaluates_and_loads_again(foreign, make_trainer, monkeypatch, scenes, tmp_path):
    calls = []
    monkeypatch.setattr(
        evaluation_loop, "score_captions", lambda captions, *_: calls.append(captions) or {"cider_d": 0.0}
    )
    model, processor = foreign
    every = {"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 10}
    trainer = make_trainer(
        model,
        processing_class=processor,
        num_train_epochs=30,
        learning_rate=1e-2,
        gradient_accumulation_steps=2,
        **every,
    )
    trainer.train()
    curve = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    tenth = len(curve) // 10
    first, last = torch.tensor(curve[:tenth]), torch.tensor(curve[-tenth:])
    assert tenth >= 3 and first.mean() - last.mean() > first.std() + last.std()
    assert curve[0] < 7  # of the order of log(300), not times the number of accumulated batches
    assert [len(captions) for captions in calls] == [6] * 3
    trainer.save_model(tmp_path / "saved")
    loaded, loaded_processor = load_captioner(str(tmp_path / "saved"))
    assert type(loaded) is type(model)
    images = loaded_processor.image_processor(scenes["validation"][0]["image"], return_tensors="pt")
    assert loaded.eval().generate(**images, max_new_tokens=3).shape[0] == 1


@pytest.mark.parametrize(
    "foreign", slow_unless(lambda make: make is tiny_git, [tiny_ved, tiny_blip, tiny_git]), indirect=True
)
def test_further_on_a_few_images(foreign, scenes, monkeypatch, tmp_path):
    """Cross-entropy, then rewards of their beams, then the mean with the weights before."""
    monkeypatch.setitem(REWARDS, "max_steps", 2)
    monkeypatch.setitem(REWARDS, "scst_after_epochs", 0.1)
    model, processor = foreign
    start = {name: weight.clone() for name, weight in model.named_parameters()}
    typed = {"output_dir": str(tmp_path), "use_cpu": True, "disable_tqdm": True, "logging_steps": 1}
    typed["generation_max_new_tokens"] = 5
    arguments, _ = with_recipe(CaptioningTrainingArguments(**typed), "few_images", model)
    trainer = SCSTTrainer(model, arguments, train_dataset=scenes["train"], processing_class=processor)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert trainer.state.global_step == len(entries) == 2
    assert any(not torch.equal(weight, start[name]) for name, weight in model.named_parameters())


def test_what_only_own_captioners_can_do_is_refused(foreign, make_trainer):
    model, processor = foreign
    with pytest.raises(ValueError, match="group_captions"):
        make_trainer(model, processing_class=processor, group_captions=True)
    with pytest.raises(ValueError, match="label_smoothing"):
        make_trainer(model, processing_class=processor, label_smoothing_factor=0.1)


def test_half_a_processor_is_refused(foreign, make_trainer):
    model, processor = foreign
    with pytest.raises(ValueError, match="tokenizer"):
        make_trainer(model, processing_class=processor.image_processor)
