"""A program of a user with types, as `mypy --strict` and pyright check it. It is never run."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, assert_type

import hf_captioners
from hf_captioners import (
    CaptionerEnsemble,
    CaptioningProcessor,
    CaptioningTrainer,
    CaptioningTrainingArguments,
    VisualGPTConfig,
    VisualGPTForConditionalGeneration,
    compute_caption_metrics,
    load_captioner,
    load_captions,
)
from hf_captioners.captioning import CaptionBatches
from hf_captioners.data import DataReport
from hf_captioners.interfaces import Captioner, GenerationOptions, Processor
from hf_captioners.onnx import OnnxCaptioner


def caption(name: str, photograph: Path) -> list[str]:
    model, processor = load_captioner(name, dtype="bfloat16")
    assert_type(model, Captioner)
    assert_type(processor, Processor)
    inputs = processor(images=str(photograph), return_tensors="pt").to(model.device)
    tokens = model.generate(**inputs, num_beams=3, max_new_tokens=20)
    return processor.batch_decode(tokens, skip_special_tokens=True)


def caption_column(images: list[str]) -> MutableMapping[str, Any]:
    options: GenerationOptions = {"num_beams": 3, "bookkeeping": "live"}
    batches = CaptionBatches("my_captioner", column="image", device="cpu", instruction="Describe it.", **options)
    return batches({"image": images})


def caption_without_torch(folder: str) -> str:
    text: str = OnnxCaptioner(folder)("photo.jpg", num_beams=3)[0]["generated_text"]
    return text


def train(folder: str) -> None:
    report = DataReport()
    images = load_captions("caption_folder", data_dir=folder, report=report)
    model, processor = load_captioner()
    arguments = CaptioningTrainingArguments("my_captioner", num_train_epochs=1, generation_num_beams=3)
    CaptioningTrainer(model, arguments, images["train"], images["validation"], processor).train()


def own_model() -> int:
    config = VisualGPTConfig(text_config={"n_layer": 1}, srau_threshold=0.3, encoder_layers=2)
    assert_type(config.srau_threshold, float | int)
    model = VisualGPTForConditionalGeneration(config)
    assert_type(model.config, VisualGPTConfig)
    ensemble = CaptionerEnsemble([model, model], weights=[0.5, 0.5])
    return len(ensemble.members)


def score(captions: list[str], references: list[list[str]]) -> float:
    scores = compute_caption_metrics(captions, references, metrics=["cider_d"])
    assert_type(scores, dict[str, Any])
    return float(scores["cider_d"])


def describe(processor: CaptioningProcessor) -> str:
    assert_type(hf_captioners.list_architectures(), list[str])
    return f"{hf_captioners.__version__} {processor.decode([1, 2])}"
