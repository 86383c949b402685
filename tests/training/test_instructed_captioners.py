"""Training of models that caption by an instruction: exact losses, adapters, and runs that resume."""

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch

from hf_captioners.cli import main
from hf_captioners.loading import load_captioner
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.pipelines.image_captioning import IMAGE_CAPTIONERS
from hf_captioners.training import CaptioningTrainingArguments, large_models
from hf_captioners.training.adapters import AdapterArguments, add_adapter
from hf_captioners.training.collator import CaptionCollator, caption_encoder
from hf_captioners.training.large_models import with_lora
from hf_captioners.training.progress import describe_run
from hf_captioners.training.starting import ModelArguments
from tests.tiny_families import FAMILIES, FAST, write_family
from tests.variants import slow_unless

INSTRUCTED = slow_unless(FAST.__contains__, [name for name in FAMILIES if name not in IMAGE_CAPTIONERS])
CAPTIONS = ["a dog", "two children play with the red ball on green grass", "water near a man"]
SIZES = [(40, 56), (64, 48), (33, 90)]
ENDS = {  # what the templates write after an answer, up to the token that ends generation
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl"), "<|im_end|>"),
    **dict.fromkeys(("idefics3", "smolvlm"), "<end_of_utterance>"),
    "gemma3": "<end_of_turn>",
}
PAGE = (Path(__file__).parents[2] / "docs" / "other_models_training.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder_of(once_a_run):
    return lambda name: once_a_run(f"family_{name}", partial(write_family, model_type=name))


@pytest.fixture(scope="module")
def captioner_of(folder_of):
    def load(name):
        model, processor = load_captioner(str(folder_of(name)))
        return model.eval(), processor

    return load


@pytest.fixture
def my_images(tmp_path, scenes, monkeypatch):
    """A folder of images with captions, beside which a test works."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my_images"
    folder.mkdir()
    with open(folder / "metadata.jsonl", "w") as file:
        for index, row in enumerate(scenes["train"]):
            row["image"].save(folder / f"{index}.png")
            file.write(json.dumps({"file_name": f"{index}.png", "captions": row["captions"]}) + "\n")
    return folder


@pytest.fixture(scope="module")
def pairs(scenes):
    """Images of several sizes, with captions of several lengths."""
    images = [row["image"].resize(size) for row, size in zip(scenes["train"], SIZES, strict=False)]
    return [{"image": image, "caption": caption} for image, caption in zip(images, CAPTIONS, strict=True)]


@torch.no_grad()
def loss_of(model, encoder, items):
    """Return the loss of items, and the number of its tokens."""
    batch = CaptionCollator(encoder)(items)
    return model(**batch).loss.item(), int((batch["labels"] != IGNORED_LABEL).sum())


@torch.no_grad()
def token_by_token(model, encoder, item):
    """Return the negative log-likelihood of a caption, each token from a pass over those before it."""
    inputs, total = encoder.encode_images([item]), 0.0
    row = encoder.encode_captions([item["caption"]])["labels"][0].tolist()
    for length, token in enumerate(row):
        before = torch.tensor([row[:length]], dtype=torch.long)
        if encoder.inputs.is_encoder_decoder:
            start = torch.tensor([encoder.inputs.decoder_start])
            read = {**inputs, "decoder_input_ids": torch.cat((start, before), 1)}
        else:
            read = encoder.with_tokens(inputs, before, torch.ones_like(before, dtype=torch.bool))
            if encoder.inputs.model_type != "paligemma":  # whose attention over a prompt follows from labels
                read.pop("labels")
        total -= model(**read).logits[0, -1].log_softmax(-1)[token].item()
    return total


@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_loss_of_a_batch_is_that_of_each_token(model_type, captioner_of, pairs):
    """A batch of images of three sizes, padded on both sides, against single images and against single tokens."""
    model, processor = captioner_of(model_type)
    encoder = caption_encoder(processor, model)
    loss, tokens = loss_of(model, encoder, pairs)
    singles = [loss_of(model, encoder, [pair]) for pair in pairs]
    assert tokens == sum(count for _, count in singles)
    assert loss == pytest.approx(sum(value * count for value, count in singles) / tokens, rel=1e-5)
    assert loss == pytest.approx(sum(token_by_token(model, encoder, pair) for pair in pairs) / tokens, rel=1e-5)
    other = loss_of(model, encoder, [{**pairs[1], "caption": CAPTIONS[0]}])[0]
    assert abs(other - singles[0][0]) > 1e-3  # another image, the same caption


@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_labels_are_the_caption_and_the_end_of_an_answer(model_type, captioner_of, pairs):
    model, processor = captioner_of(model_type)
    encoder = caption_encoder(processor, model)
    labels = CaptionCollator(encoder)(pairs)["labels"]
    learned = [[label for label in row.tolist() if label != IGNORED_LABEL] for row in labels]
    end = processor.tokenizer.convert_tokens_to_ids(ENDS.get(model_type, "</s>"))
    assert [row[-1] for row in learned] == [end] * len(pairs)
    assert [processor.tokenizer.decode(row[:-1]).strip() for row in learned] == CAPTIONS
    cut = caption_encoder(processor, model, max_tokens=3).encode_captions(CAPTIONS[1:2])["labels"][0].tolist()
    assert cut == [*learned[1][:2], end]


@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_trains_an_adapter_of_the_language_model(model_type, captioner_of, make_trainer, tmp_path):
    """All its matrices, and no others, change; a resumed run has the same weights; the adapter loads again."""
    settings = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "learning_rate": 1e-2}
    settings |= {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    adapters = []
    for part, checkpoint in (("whole", None), ("resumed", tmp_path / "whole" / "checkpoint-2")):
        torch.manual_seed(0)
        model, processor = captioner_of(model_type)
        adapted = add_adapter(model, AdapterArguments(use_peft=True, lora_r=4, lora_dropout=0.0))
        trainer = make_trainer(adapted, processing_class=processor, output_dir=str(tmp_path / part), **settings)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        adapters.append({name: one.detach() for name, one in adapted.named_parameters() if one.requires_grad})
    whole, resumed = adapters
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    unchanged = [name for name, weight in whole.items() if "lora_B" in name and not weight.any()]
    assert not unchanged and not any(part in name for name in whole for part in ("vision", "visual", "projector"))
    lines = describe_run(trainer, "a checkpoint")
    assert f"{sum(weight.numel() for weight in whole.values()):,}; frozen: " in lines[1], lines
    trainer.save_model(tmp_path / "saved")
    loaded, _ = load_captioner(str(tmp_path / "saved"))
    saved = {name: weight for name, weight in loaded.named_parameters() if "lora_" in name}
    assert len(saved) == len(whole) and trainer.caption(trainer.eval_dataset) == trainer.caption(trainer.eval_dataset)


@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_accumulated_batches_weigh_tokens(model_type, captioner_of, make_trainer, pairs):
    """Two batches of one and two captions have the gradients of one batch of three."""
    model, processor = captioner_of(model_type)
    trainer = make_trainer(model, processing_class=processor)
    collate = CaptionCollator(trainer.encoder)
    batches = [collate(pairs), collate(pairs[:1]), collate(pairs[1:])]
    tokens = sum(int((batch["labels"] != IGNORED_LABEL).sum()) for batch in batches[1:])
    together, first, second = (trainer.compute_loss(model, batch, num_items_in_batch=tokens) for batch in batches)
    assert (first + second).item() == pytest.approx(together.item(), rel=1e-5)


def test_instructions(captioner_of, pairs):
    """They are part of the prompt; fields, and models that read images alone, are refused."""
    model, processor = captioner_of(FAST[0])
    for asked in ("What is red?", "What is it?"):
        encoder = caption_encoder(processor, model, instruction=asked)
        assert asked in processor.tokenizer.decode(encoder.encode_images(pairs[:1])["input_ids"][0])
        assert encoder.settings()["instruction"] == asked
    with pytest.raises(ValueError, match="leave out the field {file_name}"):
        caption_encoder(processor, model, instruction="Describe {file_name}.")
    model, processor = captioner_of("git")
    with pytest.raises(ValueError, match=r"`instruction` is 'What\?', and a GitForCausalLM reads images alone"):
        caption_encoder(processor, model, instruction="What?")


FEW_STEPS = ["--use_cpu", "--max_steps", "2", "--generation_max_new_tokens", "4", "--per_device_train_batch_size", "2"]


def test_the_lines_of_the_page_run(folder_of, my_images, monkeypatch, capsys):
    """A captioner above the limit gets an adapter, which is said first; what is typed overrides the recipe."""
    monkeypatch.setattr(large_models, "MAX_WHOLE", 1000)
    train, evaluate = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1].replace("\\\n", "").splitlines()
    name = "Qwen/Qwen2.5-VL-3B-Instruct"
    assert name in train
    assert main([*shlex.split(train.replace(name, str(folder_of("qwen2_5_vl"))))[1:], *FEW_STEPS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(
        r"Recipe lora: the captioner has [\d,]+ parameters, more than 1,000; an adapter is trained", lines[0]
    )
    assert re.match(r"Trained weights: language_model [\d,]+; frozen: visual [\d,]+, language_model", lines[2])
    assert "in batches of 8" in "".join(lines)
    assert any(line.endswith("--instruction 'Describe the photo in one sentence.'") for line in lines), lines
    card = Path("my_captioner", "README.md").read_text()
    assert "Describe the photo in one sentence." in card and "sha256 " in card and "LoRA of rank 16" in card
    assert main([*shlex.split(evaluate)[1:], "--max_new_tokens", "4"]) == 0


def test_the_lines_on_rewards_run(folder_of, my_images):
    section = PAGE.partition("## On rewards\n")[2]
    (typed,) = re.findall(r"```bash\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    typed = shlex.split(typed.replace("\\\n", "").replace(" my_captioner", f" {folder_of('qwen2_5_vl')}"))
    assert main([*typed[1:], *FEW_STEPS, "--num_samples", "2"]) == 0
    card = Path("my_rewarded_captioner", "README.md").read_text()
    assert "Describe the photo in one sentence." in card and "LoRA of rank 16" in card


def test_smaller_captioners_are_trained_whole(folder_of, my_images, capsys):
    typed = ["train", "--model", str(folder_of("florence2")), "--train_dir", str(my_images)]
    typed += ["--validation_share", "0.2", "--output_dir", "mine"]
    assert main([*typed, *FEW_STEPS]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("Recipe few_images_cross_entropy") and "`--recipe few_images` uses them" in first
    typed[2] = str(folder_of("blip"))
    assert main([*typed[:-1], "other", *FEW_STEPS, "--recipe", "lora", "--scst"]) == 2
    assert "`--scst` and `--recipe lora` exclude each other" in capsys.readouterr().err


def test_the_recipe_for_large_captioners_fits_the_family(folder_of, tmp_path):
    """Pix2Struct has no gradient checkpointing."""
    for name, expected in (("pix2struct", False), ("florence2", True)):
        model = ModelArguments(model=str(folder_of(name)))
        changed, training, line = with_lora(model, CaptioningTrainingArguments(str(tmp_path), use_cpu=True), "lora")
        assert changed.use_peft and training.gradient_checkpointing is expected and "it was chosen" in line
