"""Compare a cross-entropy training step with a minimal loop over the same model in plain PyTorch.

    python benchmarks/training.py --tokenizer gpt2 [--quick] [--output benchmarks/results/training.json]

The loop has its batches in memory before it starts: forward pass, `cross_entropy` over all positions, backward pass,
clipping, fused AdamW. The trainer reads a feature store, encodes captions and logs. Both train the same captions of
drawn scenes with random region features, in turn; figures are medians of the rounds, in CPU seconds of one thread.
The memory of the loss is that of one batch of 128 captions, with logits of some targets at a time or of all.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from datasets import Dataset
from decoding import with_peak_memory
from provenance import write_results
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, TrainerCallback
from transformers.utils import ModelOutput

from hf_captioners.data import load_captions
from hf_captioners.features.feature_store import FeatureStore, StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.region_source import Regions
from hf_captioners.features.regions_column import with_regions
from hf_captioners.modeling import losses_captioning
from hf_captioners.modeling.configuration_show_attend_tell import ShowAttendTellConfig
from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.modeling_show_attend_tell import ShowAttendTellForConditionalGeneration
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
from hf_captioners.processing.processing_show_attend_tell import ShowAttendTellProcessor
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor
from hf_captioners.processing.word_tokenizer import build_word_tokenizer
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

CAPTIONS, TOKENS = 128, 14  # of a batch whose loss takes memory
REGIONS, FEATURES, STEPS = 50, 2048, 12
"""Regions of an image, their width, and steps of a round, of which the first two are not measured."""


class StepClock(TrainerCallback):
    """Trainer callback that records the CPU time at the end of every step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Record the CPU time."""
        self.ends.append(time.process_time())


def captions_and_regions(images: int, folder: Path) -> Dataset:
    """Return captions of drawn scenes, and random regions stored in a folder."""
    scenes = load_captions("scenes", num_images={"train": images}, image_size=32, split="train")
    regions = np.random.default_rng(0).random((REGIONS, FEATURES), dtype=np.float32)
    with FeatureStoreWriter(folder, StoreDescription("random", "1", FEATURES, "float16", boxes=False)) as writer:
        for number, image_id in enumerate(scenes["image_id"]):
            writer.add(image_id, Regions(regions + number / images))
    return with_regions(scenes.remove_columns("image"), FeatureStore(folder))


def captioner(architecture: str, args: argparse.Namespace, rows: Dataset) -> tuple[Any, Any]:
    """Build a captioner with random weights at its paper's size, and its processor."""
    torch.manual_seed(0)
    if architecture == "VisualGPT":
        tokenizer = prepare_gpt2_tokenizer(AutoTokenizer.from_pretrained(args.tokenizer))
        text = (
            {"n_embd": 256, "n_layer": 4, "n_head": 4} if args.quick else {"n_embd": 768, "n_layer": 12, "n_head": 12}
        )
        config: Any = VisualGPTConfig(
            text_config=text | {"vocab_size": len(tokenizer)}, region_feature_size=FEATURES, **ids_of(tokenizer)
        )
        return VisualGPTForConditionalGeneration(config), VisualGPTProcessor(CaptioningImageProcessor(), tokenizer)
    tokenizer = build_word_tokenizer((text for texts in rows["captions"] for text in texts), at_least=1)
    sizes: dict[str, Any] = {"vocab_size": 10_000, "region_feature_size": FEATURES}
    config = ShowAttendTellConfig(
        **sizes, **ids_of(tokenizer), doubly_stochastic_weight=0.0
    )  # the loop has no such term
    processor = ShowAttendTellProcessor(CaptioningImageProcessor(), tokenizer)
    return ShowAttendTellForConditionalGeneration(config), processor


def ids_of(tokenizer: Any) -> dict[str, int]:
    """Return the special token ids of a configuration."""
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def seconds_by_trainer(trainer: CaptioningTrainer) -> float:
    """Measure the CPU seconds of the trainer's steps."""
    clock = StepClock()
    trainer.add_callback(clock)
    trainer.train()
    trainer.remove_callback(clock)
    return (clock.ends[-1] - clock.ends[1]) / (len(clock.ends) - 2)


def seconds_by_loop(model: Any, batches: list[dict[str, torch.Tensor]], learning_rate: float) -> float:
    """Measure the CPU seconds of the minimal loop's steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    model.train()
    ends = []
    for batch in batches:
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        logits = model(**inputs, decoder_input_ids=model.prepare_decoder_input_ids_from_labels(batch["labels"])).logits
        loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        ends.append(time.process_time())
    return (ends[-1] - ends[1]) / (len(ends) - 2)


def compare(architecture: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure an architecture by both; return a table row."""
    figures: dict[str, list[float]] = {"trainer": [], "loop": []}
    with tempfile.TemporaryDirectory() as folder:
        rows = captions_and_regions(args.batch_size * STEPS, Path(folder, "store"))
        model, processor = captioner(architecture, args, rows)
        arguments = CaptioningTrainingArguments(
            str(Path(folder, "run")),
            use_cpu=True,
            captions_per_image=1,
            per_device_train_batch_size=args.batch_size,
            num_train_epochs=1,
            eval_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        for _ in range(args.rounds):
            trainer = CaptioningTrainer(model, arguments, train_dataset=rows, processing_class=processor)
            batches = [
                {name: values.clone() for name, values in batch.items()} for batch in trainer.get_train_dataloader()
            ]
            figures["loop"].append(seconds_by_loop(model, batches, arguments.learning_rate))
            figures["trainer"].append(seconds_by_trainer(trainer))
    seconds = {name: statistics.median(values) for name, values in figures.items()}
    return {"captioner": architecture, **seconds, "ratio": seconds["trainer"] / seconds["loop"]}


def memory_of_loss(args: argparse.Namespace) -> dict[str, Any]:
    """Return the peak memory in bytes of the loss and its gradient, with the logits in pieces and at once."""
    with tempfile.TemporaryDirectory() as folder:
        rows = captions_and_regions(1, Path(folder, "store"))
        model = captioner("VisualGPT", args, rows)[0].train()
    hidden = torch.rand(CAPTIONS, TOKENS, model.config.hidden_size, requires_grad=True)
    labels = torch.randint(model.config.vocab_size, (CAPTIONS, TOKENS))
    figures = {"tokens": labels.numel()}
    outputs = ModelOutput(last_hidden_state=hidden)
    for name, logits in (("in pieces", losses_captioning.LOGITS_AT_A_TIME), ("at once", sys.maxsize)):
        with patch.object(losses_captioning, "LOGITS_AT_A_TIME", logits):
            seconds = time.process_time()
            figures[name] = with_peak_memory(lambda: model.caption_loss(outputs, labels, None, None).backward())[1]
            figures[f"{name}, CPU seconds"] = time.process_time() - seconds
    return figures


def main() -> None:
    """Measure all architectures, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="gpt2", help="name or directory of the tokenizer of GPT-2")
    parser.add_argument("--quick", action="store_true", help="a smaller VisualGPT")
    parser.add_argument("--batch_size", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file; default: none is written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for architecture in ("VisualGPT", "Show, Attend and Tell"):
        rows.append(compare(architecture, args))
        print(json.dumps(rows[-1]), flush=True)
    memory = memory_of_loss(args)
    print(json.dumps(memory))
    machine = f"{platform.machine()}, 1 thread, torch {torch.__version__.split('+')[0]}"
    if args.output is not None:
        setting = {"batch_size": args.batch_size, "regions": REGIONS, "quick": args.quick}
        figures = {"setting": setting, "machine": machine, "rows": rows, "memory": memory}
        write_results(args.output, figures)


if __name__ == "__main__":
    main()
