"""Progress messages of training: size, time, figures in one line; parts that do not fit are refused."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.utils import logging

from hf_captioners import work_progress
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments
from hf_captioners.training.progress import TimeEstimate, describe_run, log_progress, readable
from hf_captioners.training.rewards.weighted_sum import checked
from hf_captioners.training.starting import ModelArguments, require_own_tokenizer
from hf_captioners.work_progress import duration


def test_a_run_says_what_it_will_do_and_what_it_reaches(make_captioner, processor, scenes, tmp_path):
    lines = []
    settings = {"use_cpu": True, "generation_num_beams": 1, "generation_max_new_tokens": 4, "disable_tqdm": True}
    arguments = CaptioningTrainingArguments(
        str(tmp_path), per_device_train_batch_size=5, num_train_epochs=1, logging_steps=4, **settings
    )
    trainer = CaptioningTrainer(
        make_captioner(),
        arguments,
        train_dataset=scenes["train"],
        eval_dataset=scenes["validation"],
        processing_class=processor,
    )
    log_progress(trainer, lines.append, ModelArguments(language_model="my_gpt2", vision_model="my_vit").description)
    said = "\n".join(lines)
    assert "from my_gpt2 and my_vit; everything else is new" in said
    assert "Training on 12 images with 60 captions; evaluated on 6 images." in said
    assert "At most 12 steps in batches of 5, 12 steps an epoch; it stops after 5 evaluations" in said
    frozen = sum(one.numel() for one in trainer.model.parameters() if not one.requires_grad)
    assert f"frozen: {frozen:,} (vision model)." in said
    assert f"The captioner will be in {tmp_path}." in said
    begun = len(lines)
    trainer.train()
    said = "\n".join(lines[begun:])
    assert said.count("A step takes") == 1 and "the 6 steps that are left take at most" in said
    assert said.count("An evaluation takes") == 1
    assert "epoch 1.00: eval loss" in said and "eval cider d" in said and "e-1" not in said


def test_defaults_for_few_images_end_in_a_sentence(make_captioner, processor, scenes, tmp_path):
    arguments = CaptioningTrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="no")
    trainer = CaptioningTrainer(make_captioner(), arguments, train_dataset=scenes["train"], processing_class=processor)
    assert any("With 12 images" in line and "`num_train_epochs=20`" in line for line in describe_run(trainer, "x"))


@pytest.mark.parametrize(
    ("supported", "bf16", "is_told"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_cpu_with_bfloat16_products(
    make_captioner, processor, scenes, tmp_path, monkeypatch, supported, bf16, is_told
):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: supported)
    arguments = CaptioningTrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="no", bf16=bf16)
    trainer = CaptioningTrainer(make_captioner(), arguments, train_dataset=scenes["train"], processing_class=processor)
    assert any("`bf16=True` is faster" in line for line in describe_run(trainer, "x")) == is_told


def test_a_line_a_minute_where_there_is_no_terminal(make_captioner, processor, scenes, tmp_path, monkeypatch, capsys):
    lines, seconds = [], itertools.count(0, 20)
    monkeypatch.setattr(work_progress, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    settings = {"use_cpu": True, "generation_num_beams": 1, "generation_max_new_tokens": 4, "disable_tqdm": False}
    arguments = CaptioningTrainingArguments(
        str(tmp_path), per_device_train_batch_size=5, eval_strategy="no", num_train_epochs=1, **settings
    )
    trainer = CaptioningTrainer(make_captioner(), arguments, processing_class=processor, train_dataset=scenes["train"])
    capsys.readouterr()
    log_progress(trainer, lines.append, "x")
    trainer.train()
    assert sum(line.startswith("training: ") and " of 12 steps after " in line for line in lines) in range(2, 6)
    assert " of 12 steps" in "".join(lines) and "/12 [" not in capsys.readouterr().err


@pytest.mark.parametrize("is_hidden", [False, True])
def test_progress_of_steps_evaluations_and_features_where_warnings_are_silenced(
    make_captioner, processor, scenes, tmp_path, monkeypatch, capsys, is_hidden
):
    """As in commands: transformers then hides the progress of what does not ask for it."""
    lines, seconds = [], itertools.count(0, 40)
    monkeypatch.setattr(work_progress, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        settings = {"use_cpu": True, "generation_num_beams": 1, "generation_max_new_tokens": 4}
        settings |= {"disable_tqdm": True} if is_hidden else {}
        settings |= {"feature_cache_dir": str(tmp_path / "features"), "per_device_eval_batch_size": 2}
        arguments = CaptioningTrainingArguments(
            str(tmp_path / "run"), per_device_train_batch_size=5, num_train_epochs=1, **settings
        )
        rows = {"train_dataset": scenes["train"], "eval_dataset": scenes["validation"]}
        trainer = CaptioningTrainer(make_captioner(), arguments, processing_class=processor, **rows)
        capsys.readouterr()
        log_progress(trainer, lines.append, "x")
        trainer.train()
    finally:
        logging.set_verbosity(verbosity)
    said = capsys.readouterr().err
    assert any(" of 12 steps after " in line for line in lines) != is_hidden
    assert ("evaluation: captions: 4 of 6 images after 80 s, about 40 s left" in said) != is_hidden
    assert ("evaluation: loss: " in said) != is_hidden
    assert "image features: 12 of 12 images after " in said or is_hidden


def test_times_and_entries_are_readable():
    assert [duration(seconds) for seconds in (3, 300, 7200)] == ["3.0 s", "5.0 min", "2.0 h"]
    assert readable({"loss": 3.25, "epoch": 1.0, "grad_norm": 2.0}) == "epoch 1.00: loss 3.2500"
    assert readable({"train_runtime": 3.0}) is None
    lines = []
    estimate = TimeEstimate(lines.append)
    for step in range(1, 20):
        estimate.on_step_end(None, SimpleNamespace(global_step=step, max_steps=100), None)
    assert len(lines) == 1 and "the 94 steps that are left" in lines[0]


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """Folder of a language model with its tokenizer, and a function that trains another tokenizer."""

    def make(texts, size=290):
        base, end = ByteLevelBPETokenizer(), "<|endoftext|>"
        base.train_from_iterator(texts, vocab_size=size, special_tokens=[end], show_progress=False)
        return PreTrainedTokenizerFast(tokenizer_object=base._tokenizer, bos_token=end, eos_token=end)

    folder = tmp_path_factory.mktemp("language_model")
    own = make(["a red circle on the left of a blue star"] * 9)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(own), n_embd=8, n_layer=1, n_head=1, n_positions=16)).save_pretrained(
        folder
    )
    own.save_pretrained(folder)
    return folder, own, make


def test_the_tokenizer_of_another_language_model_is_refused(language_model):
    folder, own, make = language_model
    require_own_tokenizer(own, "own", str(folder))
    own.add_special_tokens({"pad_token": "<|pad|>"})
    require_own_tokenizer(own, "own", str(folder))
    words = own.get_vocab()
    assert len(words) > 262  # it has learnt some
    other = make(["quick brown foxes jump over lazy dogs near rivers"] * 9, len(words) - 1)
    with pytest.raises(ValueError, match=r"other is not the tokenizer of .* words have other ids or none, such as"):
        require_own_tokenizer(other, "other", str(folder))
    many = make(["a red circle on the left of a blue star"] * 9)
    many.add_tokens([f"word{number}" for number in range(50)])
    with pytest.raises(ValueError, match=r"many has \d+ tokens, the language model \d+\. Leave `tokenizer` out"):
        require_own_tokenizer(many, "many", str(folder))


def test_half_precision_on_a_cpu_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`fp16` needs a GPU"):
        CaptioningTrainingArguments(str(tmp_path), use_cpu=True, fp16=True)


def test_a_reward_of_a_wrong_form_is_an_error_that_commands_print():
    with pytest.raises(ValueError, match=r"returned 1.0, expected a list with a number per completion"):
        checked("mine", 1.0, ["a", "b"])
