"""What you have at hand: a folder of images with captions, a small GPT-2, a small vision model, a captioner."""

import json

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
    YolosConfig,
    YolosForObjectDetection,
    YolosImageProcessor,
)

from hf_captioners.data import load_captions
from hf_captioners.training.starting import ModelArguments, start_captioner

SIDE = 32


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A name that is no directory is not looked for in the network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def scenes(run_folder):
    """10 drawn images with five captions each."""
    cache = run_folder / "scenes"
    return load_captions("scenes", num_images={"train": 10}, image_size=SIDE, split="train", cache_dir=cache)


@pytest.fixture(scope="session")
def images(once_a_run, scenes):
    """A folder of images with metadata.jsonl."""

    def fill(folder):
        with open(folder / "metadata.jsonl", "w") as file:
            for index, row in enumerate(scenes):
                row["image"].save(folder / f"scene_{index:03d}.png")
                file.write(json.dumps({"file_name": f"scene_{index:03d}.png", "captions": row["captions"]}) + "\n")

    return once_a_run("images", fill)


@pytest.fixture(scope="session")
def language_model(once_a_run, scenes):
    """A GPT-2 of two layers with a byte-level BPE."""

    def fill(folder):
        base, end = ByteLevelBPETokenizer(), "<|endoftext|>"
        texts = [f" {caption}" for captions in scenes["captions"] for caption in captions]
        base.train_from_iterator(texts, vocab_size=300, special_tokens=[end], show_progress=False)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=base._tokenizer, bos_token=end, eos_token=end, unk_token=end
        )
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=96, n_embd=32, n_layer=2, n_head=2, eos_token_id=0)
        GPT2LMHeadModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return str(once_a_run("language_model", fill))


@pytest.fixture(scope="session")
def vision_model(once_a_run):
    """A ViT of one layer and 16 patches."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

    def fill(folder):
        torch.manual_seed(1)
        ViTModel(ViTConfig(image_size=SIDE, patch_size=8, **sizes)).save_pretrained(folder)
        ViTImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)

    return str(once_a_run("vision_model", fill))


@pytest.fixture(scope="session")
def detector(once_a_run):
    """A YOLOS of one layer that looks for 6 things."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

    def fill(folder):
        torch.manual_seed(0)
        config = YolosConfig(image_size=[SIDE, SIDE], num_detection_tokens=6, **sizes)
        YolosForObjectDetection(config).save_pretrained(folder)
        YolosImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)

    return str(once_a_run("detector", fill))


@pytest.fixture(scope="session")
def captioner(once_a_run, language_model, vision_model):
    """An untrained VisualGPT of these parts, saved."""

    def fill(folder):
        torch.manual_seed(2)
        parts = ModelArguments(language_model=language_model, vision_model=vision_model)
        model, processor = start_captioner(parts)
        model.generation_config.update(max_new_tokens=6, num_beams=2)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)

    return str(once_a_run("captioner", fill))
