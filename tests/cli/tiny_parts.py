"""Small images, models and captioners, each written into a folder, for tests of the command line and of robustness."""

import json
from pathlib import Path

import torch
from datasets import Dataset
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
from hf_captioners.loading import load_vision_part
from hf_captioners.modeling.modeling_attribute_detector import AttributeDetectorModel
from hf_captioners.processing.vocabulary import attribute_words
from hf_captioners.training.starting import ModelArguments, start_captioner

SIDE = 32
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def draw_scenes(cache: Path) -> Dataset:
    """Draw 10 images with five captions each."""
    return load_captions("scenes", num_images={"train": 10}, image_size=SIDE, split="train", cache_dir=cache)


def write_images(folder: Path, scenes: Dataset) -> None:
    """Write images with a `metadata.jsonl`."""
    with open(folder / "metadata.jsonl", "w") as file:
        for index, row in enumerate(scenes):
            row["image"].save(folder / f"scene_{index:03d}.png")
            file.write(json.dumps({"file_name": f"scene_{index:03d}.png", "captions": row["captions"]}) + "\n")


def write_language_model(folder: Path, scenes: Dataset) -> None:
    """Write a GPT-2 with two layers and a byte-level BPE."""
    base, end = ByteLevelBPETokenizer(), "<|endoftext|>"
    texts = [f" {caption}" for captions in scenes["captions"] for caption in captions]
    base.train_from_iterator(texts, vocab_size=300, special_tokens=[end], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base._tokenizer, bos_token=end, eos_token=end, unk_token=end)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=96, n_embd=32, n_layer=2, n_head=2, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_vision_model(folder: Path) -> None:
    """Write a ViT with one layer and 16 patches."""
    torch.manual_seed(1)
    ViTModel(ViTConfig(image_size=SIDE, patch_size=8, **SIZES)).save_pretrained(folder)
    ViTImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)


def write_detector(folder: Path) -> None:
    """Write a YOLOS detector with one layer and 6 queries."""
    torch.manual_seed(0)
    config = YolosConfig(image_size=[SIDE, SIDE], num_detection_tokens=6, **SIZES)
    YolosForObjectDetection(config).save_pretrained(folder)
    YolosImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)


def write_attribute_detector(folder: Path, scenes: Dataset, vision_model: str) -> None:
    """Write an untrained attribute detector for the ten most frequent words."""
    torch.manual_seed(3)
    words = attribute_words((caption for captions in scenes["captions"] for caption in captions), 10)
    vision, _ = load_vision_part(vision_model, SIDE)
    AttributeDetectorModel.from_pretrained_parts(vision, words=words).save_pretrained(folder)


def write_captioner(folder: Path, language_model: str, vision_model: str) -> None:
    """Write an untrained VisualGPT made of these parts."""
    torch.manual_seed(2)
    parts = ModelArguments(language_model=language_model, vision_model=vision_model)
    model, processor = start_captioner(parts)
    model.generation_config.update(max_new_tokens=6, num_beams=2)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def write_word_captioner(folder: Path, scenes: Dataset, vision_model: str) -> None:
    """Write an untrained Show, Attend and Tell with hard attention."""
    torch.manual_seed(3)
    fields = ["embedding_size=12", "hidden_size=12", "attention_size=8", "attention_type=hard"]
    parts = ModelArguments(
        architecture="show_attend_tell", vision_model=vision_model, min_word_count=1, model_config=fields
    )
    model, processor = start_captioner(parts, [caption for captions in scenes["captions"] for caption in captions])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
