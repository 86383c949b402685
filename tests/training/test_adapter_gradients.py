"""Adapter matrices that training reaches: those of a plain run of transformers and PEFT."""

from functools import partial

import peft
import pytest
import torch
from transformers import AutoModelForImageTextToText, TrainerCallback

from hf_captioners.loading import load_captioner
from hf_captioners.pipelines.image_captioning import IMAGE_CAPTIONERS
from hf_captioners.training.adapters import ALL_LINEAR, AdapterArguments, add_adapter
from hf_captioners.training.progress import describe_run
from tests.plain_transformers import TEXTS, PlainCaptioner
from tests.tiny_families import FAMILIES, FAST, write_family
from tests.variants import slow_unless

STEPS, RATE = 4, 1e-2
INSTRUCTED = slow_unless(FAST.__contains__, [name for name in FAMILIES if name not in IMAGE_CAPTIONERS])


@pytest.fixture(scope="module")
def folder_of(once_a_run):
    return lambda name: once_a_run(f"family_{name}", partial(write_family, model_type=name))


def without_gradient(model):
    """Return the adapter matrices whose gradient is missing or zero."""
    return {
        name
        for name, weight in model.named_parameters()
        if "lora_" in name and (weight.grad is None or not weight.grad.any())
    }


class KeepGradients(TrainerCallback):
    """Notes the matrices without gradient before each step of the optimizer."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.missing = without_gradient(model)


def plain_batch(captioner, image, caption):
    """Return the inputs and labels of a caption, as the documentation of transformers trains a family."""
    processor, tokenizer, name = captioner.processor, captioner.tokenizer, captioner.model_type
    if captioner.model.config.is_encoder_decoder:
        return {**captioner.inputs([image]), "labels": tokenizer(caption, return_tensors="pt")["input_ids"]}
    if name == "paligemma":
        return processor(images=[image], text=[TEXTS[name]], suffix=[caption], return_tensors="pt", padding=True)
    if name in TEXTS:
        inputs = processor(images=[image], text=[f"{TEXTS[name]} {caption}"], return_tensors="pt")
        return {**inputs, "labels": inputs["input_ids"].clone()}
    question = [{"type": "image", "image": image}, {"type": "text", "text": "Describe this image."}]
    answer = [{"type": "text", "text": caption}]
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    inputs = processor.apply_chat_template([chat], tokenize=True, return_dict=True, return_tensors="pt")
    return {**inputs, "labels": inputs["input_ids"].clone()}


def plain_run(folder, targets, rows):
    """Take four steps with an adapter of PEFT, and return the matrices without gradient at the last one."""
    captioner = PlainCaptioner(folder)
    config = peft.LoraConfig(r=4, lora_dropout=0.0, target_modules=targets)
    torch.manual_seed(0)
    # In evaluation mode: Florence-2 leaves out layers by chance in training.
    model = peft.get_peft_model(AutoModelForImageTextToText.from_pretrained(folder), config).eval()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], RATE)
    for row in list(rows)[:STEPS]:
        optimizer.zero_grad()
        model(**plain_batch(captioner, row["image"], row["captions"][0])).loss.backward()
        optimizer.step()
    return without_gradient(model), {name for name, _ in model.named_parameters() if "lora_" in name}


@pytest.mark.parametrize("targets", [None, ALL_LINEAR])
@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_the_same_matrices_learn(model_type, targets, folder_of, make_trainer, scenes):
    """After four steps; and each part that is said to be trained has matrices with a gradient."""
    model, processor = load_captioner(str(folder_of(model_type)))
    chosen = None if targets is None else [targets]
    arguments = AdapterArguments(use_peft=True, lora_r=4, lora_dropout=0.0, lora_target_modules=chosen)
    kept, adapted = KeepGradients(), add_adapter(model, arguments)
    settings = {"max_steps": STEPS, "learning_rate": RATE, "eval_strategy": "no", "save_strategy": "no"}
    trainer = make_trainer(adapted, processing_class=processor, callbacks=[kept], **settings)
    trainer.train()
    layers = sorted(adapted.peft_config["default"].target_modules)
    expected, matrices = plain_run(folder_of(model_type), layers, scenes["train"])
    assert kept.missing == expected
    assert {name for name, weight in adapted.named_parameters() if weight.requires_grad} == matrices
    line = describe_run(trainer, "a checkpoint")[1]
    parts = [part.split()[0] for part in line.removeprefix("Trained weights: ").partition(";")[0].split(", ")]
    parts = [part for part in parts if part.replace("_", "").isalpha()]
    learning = matrices - expected
    assert parts and all(any(f".{part}." in name for name in learning) for part in parts), (line, sorted(learning)[:3])
