"""LoRA adapters by `use_peft`: only they are trained and saved, they resume, load, merge and go on."""

import copy
import json
import os
from pathlib import Path

import peft
import pytest
import torch
from transformers import BlipImageProcessor

from hf_captioners.loading import ImageTextProcessor, load_captioner, merge_adapter
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, adapters
from hf_captioners.training.adapters import AdapterArguments, describe_adapter
from hf_captioners.training.starting import ModelArguments, start_captioner

from .scst_settings import log_of, scst_trainer, share_of_o
from .tiny_captioners import SIDE, tiny_blip, tiny_git, tiny_ved

FOREIGN = {"vision-encoder-decoder": tiny_ved, "blip": tiny_blip, "git": tiny_git}
SLOW, VED = pytest.mark.slow, "vision-encoder-decoder"
LORA = {"use_peft": True, "lora_r": 4, "lora_alpha": 8}


@pytest.fixture
def save_base(make_captioner, processor, tokenizer, tmp_path):
    """Save a tiny captioner of a kind; its folder."""

    def save(kind="visualgpt", **fields):
        torch.manual_seed(0)
        parts = make_captioner(**fields), processor
        if kind != "visualgpt":
            others = copy.deepcopy(tokenizer)
            others._processor_class = None  # of the processor that was saved with it before
            images = BlipImageProcessor(size={"height": SIDE, "width": SIDE})
            parts = FOREIGN[kind](tokenizer), ImageTextProcessor(images, others)
        for part in parts:
            part.save_pretrained(tmp_path / kind)
        return str(tmp_path / kind)

    return save


@pytest.fixture
def make_adapted(scenes, tmp_path):
    """Build a trainer of a captioner in an adapter, from the same seed every time."""

    def make(model, output="run", **fields):
        torch.manual_seed(5)
        captioner, processor = start_captioner(ModelArguments(model=model, **fields.pop("lora", LORA)))
        arguments = {"use_cpu": True, "per_device_train_batch_size": 6, "learning_rate": 5e-2, "max_steps": 6}
        arguments |= {"generation_num_beams": 1, "generation_max_new_tokens": 5, "captions_per_image": 1}
        arguments |= {"seed": 7, "logging_steps": 1, "disable_tqdm": True, "evaluate_loss": False}
        return CaptioningTrainer(
            captioner,
            CaptioningTrainingArguments(str(tmp_path / output), **(arguments | fields)),
            train_dataset=scenes["train"],
            eval_dataset=scenes["validation"],
            processing_class=processor,
        )

    return make


def captions_of(source, rows, loader=load_captioner):
    model, processor = loader(source)
    inputs = processor.image_processor([row["image"] for row in rows], return_tensors="pt")
    return model, model.generate(**inputs, max_new_tokens=5, num_beams=1)


@pytest.mark.parametrize("kind", ["visualgpt", "blip", *(pytest.param(one, marks=SLOW) for one in ("git", VED))])
def test_only_the_adapter_is_trained_and_saved(kind, save_base, make_adapted, scenes):
    base = save_base(kind)
    trainer = make_adapted(base, eval_strategy="no", save_strategy="no")
    trainable = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
    assert trainable and all("lora_" in name for name in trainable)
    if kind == "visualgpt":
        assert not any(".vision." in name for name in trainable), "it is frozen, and its features are stored"
        assert any("decoder.h.0.attn" in name for name in trainable) and any("encoder" in name for name in trainable)
    before = {name: weight.clone() for name, weight in trainer.base_model.state_dict().items() if "lora_" not in name}
    trainer.train()
    after = trainer.base_model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    losses = log_of(trainer, "loss")
    assert losses[-1] < losses[0]
    trainer.save_model()
    output = str(trainer.args.output_dir)
    files = set(os.listdir(output))
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files and "model.safetensors" not in files
    assert json.loads(Path(output, "adapter_config.json").read_text())["base_model_name_or_path"] == base

    rows = list(scenes["validation"])
    model, apart = captions_of(output, rows)
    assert type(model) is type(trainer.base_model)
    whole, merged = captions_of(output, rows, merge_adapter)
    assert torch.equal(apart, merged)
    assert not any("lora" in name for name in whole.state_dict())
    assert trainer.caption(scenes["validation"]) == trainer.encoder.decode(apart)
    _, untrained = captions_of(base, rows)
    assert untrained.shape != apart.shape or not torch.equal(untrained, apart)


def adapter_of(trainer):
    return peft.get_peft_model_state_dict(trainer.model)


def require_equal(first, second):
    assert first.keys() == second.keys() and first
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name


@SLOW
def test_a_killed_run_goes_on_and_a_finished_one_ends(save_base, make_adapted):
    base = save_base()
    steps = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 2, "eval_steps": 2}
    steps["learning_rate"] = 1e-2
    whole = make_adapted(base, "whole", load_best_model_at_end=False, **steps)
    whole.train()
    killed = make_adapted(base, "killed", load_best_model_at_end=False, **steps | {"max_steps": 4})
    killed.train()
    again = make_adapted(base, "killed", load_best_model_at_end=False, **steps)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6
    require_equal(adapter_of(again), adapter_of(whole))

    again.save_model()
    again.save_state()
    finished = make_adapted(base, "killed", **steps)
    assert finished.restore_final()
    require_equal(adapter_of(finished), adapter_of(whole))
    other = make_adapted(base, "killed", lora={**LORA, "lora_r": 2}, **steps)
    with pytest.raises(ValueError, match="is of a different adapter"):
        other.restore_final()


def test_an_adapter_is_trained_further_as_it_is(save_base, make_adapted, tmp_path):
    first = make_adapted(save_base(), "first", eval_strategy="no", save_strategy="no", max_steps=2)
    first.train()
    first.save_model()
    adapter = str(tmp_path / "first")
    again = make_adapted(adapter, "again", lora={}, eval_strategy="no", save_strategy="no", max_steps=2)
    require_equal(adapter_of(again), adapter_of(first))
    again.train()
    assert any(not torch.equal(weight, adapter_of(first)[name]) for name, weight in adapter_of(again).items())
    again.save_model()
    assert load_captioner(str(tmp_path / "again"))[0].config.model_type == "captioning_visualgpt"
    with pytest.raises(ValueError, match="is trained further as it is: leave `lora_r` out"):
        start_captioner(ModelArguments(model=adapter, use_peft=True, lora_r=2))
    with pytest.raises(ValueError, match="leave `model_config` out, or merge the adapter"):
        start_captioner(ModelArguments(model=adapter, model_config=["srau_threshold=0.3"]))
    with pytest.raises(ValueError, match="No weight of the captioner is trained.*is_trainable=True"):
        model, processor = load_captioner(adapter)
        model.requires_grad_(False)
        scenes = first.train_dataset.images.rows
        CaptioningTrainer(model, first.args, train_dataset=scenes, processing_class=processor)


@SLOW
def test_self_critical_training_of_an_adapter(save_base, scenes, tmp_path):
    """With cross-entropy before it and the divergence from the start, killed after it and resumed."""
    base = save_base()

    def trainer(output, **fields):
        torch.manual_seed(5)
        model, processor = start_captioner(ModelArguments(model=base, **LORA))
        options = {"scst_after_epochs": 0.5, "kl_weight": 0.1, "eval_strategy": "no", "max_steps": 4, "save_steps": 2}
        options |= {"save_strategy": "steps", "reward_funcs": [share_of_o], "output_dir": tmp_path / output}
        return scst_trainer(model, processor, scenes, **(options | fields))

    whole = trainer("whole")
    whole.train()
    assert log_of(whole, "kl")[-1] > 0
    start = peft.load_peft_weights(str(tmp_path / "whole/start"), device="cpu")
    require_equal(peft.get_peft_model_state_dict(whole._reference), start)
    assert any(not torch.equal(weight, start[name]) for name, weight in adapter_of(whole).items())
    trainer("killed", max_steps=2).train()
    again = trainer("killed")
    again.train(resume_from_checkpoint=True)
    require_equal(adapter_of(again), adapter_of(whole))
    again.save_model()
    loaded, _ = load_captioner(str(again.args.output_dir))
    state = loaded.state_dict()
    for name, weight in adapter_of(again).items():
        assert torch.equal(state[name.removeprefix("base_model.model.").replace(".weight", ".default.weight")], weight)


def test_the_card_says_how_it_was_adapted(save_base, make_adapted, tmp_path):
    trainer = make_adapted(save_base(), eval_strategy="no", save_strategy="no", max_steps=1)
    trainer.train()
    trainer.save_model()
    card = (tmp_path / "run/README.md").read_text()
    said = describe_adapter(trainer.model)
    assert said.startswith("LoRA of rank 4, alpha 8, dropout 0.05, of the layers c_attn, ")
    assert f"| adapter | {said} |" in card
    assert "library_name: peft" in card and "load_captioner(" in card


def test_arguments_that_do_not_fit(save_base, language_parts):
    base = save_base()
    with pytest.raises(ValueError, match="has no module 'c_atn'. Did you mean `c_attn`"):
        start_captioner(ModelArguments(model=base, use_peft=True, lora_target_modules=["c_atn"]))
    with pytest.raises(ValueError, match="lora_modules_to_save`: .* has no module 'lm_hed'. Did you mean `lm_head`"):
        start_captioner(ModelArguments(model=base, use_peft=True, lora_modules_to_save=["lm_hed"]))
    with pytest.raises(ValueError, match="new parts have to be trained whole: pass `model`"):
        start_captioner(ModelArguments(use_peft=True, **language_parts))
    for wrong in ({"lora_r": 0}, {"lora_alpha": 0}, {"lora_dropout": 1.0}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is "):
            ModelArguments(model=base, use_peft=True, **wrong)
    with pytest.raises(ValueError, match="`lora_alpha` is an argument of LoRA: pass `use_peft` too"):
        ModelArguments(model=base, lora_alpha=8)


@pytest.fixture
def language_parts():
    return {"language_model": "gpt2", "vision_model": "timm:resnet18"}


def test_chosen_layers_and_whole_modules(save_base):
    options = {"lora_target_modules": ["c_attn", "q_proj"], "lora_modules_to_save": ["ln_f"], "use_rslora": True}
    model, _ = start_captioner(ModelArguments(model=save_base(), use_peft=True, **options))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert any("ln_f.modules_to_save" in name for name in trained)
    assert all("c_attn" in name or "q_proj" in name or "ln_f" in name for name in trained), trained
    one = ModelArguments(model=save_base(), use_peft=True, lora_target_modules=[r".*decoder\.h\.1\.attn\.c_attn"])
    pattern, _ = start_captioner(one)
    trained = {name for name, weight in pattern.named_parameters() if weight.requires_grad}
    assert trained and all("decoder.h.1.attn.c_attn" in name for name in trained)


def test_a_base_that_is_gone_or_another(save_base, make_adapted, tmp_path):
    trainer = make_adapted(save_base(), eval_strategy="no", save_strategy="no", max_steps=1)
    trainer.train()
    trainer.save_model()
    config, adapter = tmp_path / "run/adapter_config.json", str(tmp_path / "run")
    content = json.loads(config.read_text())

    def changed(base):
        config.write_text(json.dumps(content | {"base_model_name_or_path": base}))

    changed(str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match="gone' as its captioner, which does not exist"):
        load_captioner(adapter)
    changed(adapter)
    with pytest.raises(ValueError, match="expected a directory or name"):
        load_captioner(adapter)
    changed(save_base("blip"))
    with pytest.raises(ValueError):
        load_captioner(adapter)
    config.write_text("[]")
    with pytest.raises(ValueError, match="adapter_config.json is damaged"):
        load_captioner(adapter)
    with pytest.raises(ValueError, match="is no adapter"):
        merge_adapter(save_base())


def test_4_bits_need_bitsandbytes_and_a_gpu(monkeypatch):
    """The refusal has one line, before anything is read."""
    with pytest.raises(ValueError, match="`load_in_4bit` is an argument of LoRA: pass `use_peft` too"):
        AdapterArguments(load_in_4bit=True)
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="`load_in_4bit` needs bitsandbytes: pip install bitsandbytes"):
        AdapterArguments(use_peft=True, load_in_4bit=True)
    monkeypatch.setattr(adapters, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`load_in_4bit` needs a GPU, and torch sees none here"):
        AdapterArguments(use_peft=True, load_in_4bit=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = AdapterArguments(use_peft=True, load_in_4bit=True).loading_options()["quantization_config"]
    assert config.load_in_4bit and config.bnb_4bit_quant_type == "nf4"
