"""Measure the time of the parts of a cross-entropy training epoch, apart from decoding.

    python benchmarks/training_epoch.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k \
        --vision_model MOBILENETV2 --tokenizer gpt2 [--output benchmarks/results/training_epoch.json]

One epoch of VisualGPT and of Show, Attend and Tell with the settings of their recipes on Flickr8k: 600 of the 6,000
training photographs with 5 captions each, and 100 of the 1,000 validation photographs, so that the shares are those of
the whole data set. Features of the frozen vision model are computed before. CPU seconds of one thread, counted where
they are spent; evaluation is divided into the search of captions, the loss of the references and the metrics.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from provenance import processor_name, write_results
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from hf_captioners.data import load_captions
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, evaluation_loop
from hf_captioners.training.starting import ModelArguments, start_captioner

IMAGES = {"train": 600, "validation": 100}
MODEL, DECODING = "forward, backward, optimizer", "evaluation: search of captions"
LOADING, METRICS = "data loading", "evaluation: metrics"
PARTS = (LOADING, MODEL, DECODING, "evaluation: loss of references", METRICS, "checkpoint", "everything else")
SETTINGS: dict[str, dict[str, Any]] = {
    "VisualGPT": {"group_captions": True, "per_device_train_batch_size": 50, "per_device_eval_batch_size": 50},
    "Show, Attend and Tell": {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 64},
}


class Parts:
    """Timer of CPU seconds by part of an epoch. A part that begins inside another one interrupts it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.active = [PARTS[-1]]
        self.since = time.process_time()

    def switch(self) -> None:
        """Add the time since the last switch to the active part."""
        now = time.process_time()
        self.seconds[self.active[-1]] += now - self.since
        self.since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Context that counts its time for a part."""
        self.switch()
        self.active.append(name)
        try:
            yield
        finally:
            self.switch()
            self.active.pop()

    def counted(self, stack: ExitStack, owner: Any, method: str, name: str) -> None:
        """Replace a function by one that counts its time for a part, until the stack is closed."""
        function = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        stack.enter_context(patch.object(owner, method, wrapped))


def start(name: str, args: argparse.Namespace, rows: Dataset, folder: Path) -> tuple[Any, Any]:
    """Build a captioner and its processor as the Flickr8k recipe does; a language model has random weights."""
    torch.manual_seed(0)
    common: dict[str, Any] = {"vision_model": args.vision_model, "image_size": 288}
    if name == "VisualGPT":
        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
        config = GPT2Config(n_embd=256, n_layer=4, n_head=4, n_positions=64, vocab_size=len(tokenizer))
        GPT2LMHeadModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        fields = ["vision_grid_size=7", "encoder_layers=2", "encoder_ffn_dim=512", "srau_threshold=0.2"]
        return start_captioner(ModelArguments(language_model=str(folder), model_config=fields, **common))
    fields = ["vision_grid_size=7", "attention_size=256"]
    model = ModelArguments(architecture="show_attend_tell", model_config=fields, **common)
    return start_captioner(model, (text for texts in rows["captions"] for text in texts))


def epoch(name: str, args: argparse.Namespace, rows: dict[str, Dataset]) -> dict[str, Any]:
    """Train one epoch; return CPU seconds of its parts, number of steps, and seconds of feature extraction."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        model, processor = start(name, args, rows["train"], Path(temporary, "language_model"))
        arguments = CaptioningTrainingArguments(
            str(Path(temporary, "run")),
            use_cpu=True,
            num_train_epochs=1,
            generation_max_new_tokens=24,
            disable_tqdm=True,
            **SETTINGS[name],
        )
        before = time.process_time()
        trainer = CaptioningTrainer(
            model, arguments, train_dataset=rows["train"], eval_dataset=rows["validation"], processing_class=processor
        )
        for split in rows:  # computed and stored once, for all epochs
            trainer._images_of(rows[split])
        features = time.process_time() - before
        trainer.create_optimizer()
        parts = Parts()
        for owner, method, part in (
            (trainer, "get_batch_samples", LOADING),
            (trainer, "training_step", MODEL),
            (trainer, "_clip_grad_norm", MODEL),
            (trainer.optimizer, "step", MODEL),
            (trainer, "_caption_images", DECODING),
            (trainer, "caption_loss", PARTS[3]),
            (evaluation_loop, "score_captions", METRICS),
            (trainer, "_save_checkpoint", "checkpoint"),
        ):
            parts.counted(stack, owner, method, part)
        trainer.train()
        parts.switch()
    total = sum(parts.seconds.values())
    shares = {part: seconds / total for part, seconds in parts.seconds.items()}
    return {"captioner": name, "seconds": total, "steps": trainer.state.global_step, "features": features, **shares}


def main() -> None:
    """Measure all captioners, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="folder of Flickr8k")
    parser.add_argument("--vision_model", required=True, help="name or directory of a MobileNetV2")
    parser.add_argument("--tokenizer", default="gpt2", help="name or directory of the tokenizer of GPT-2")
    parser.add_argument("--images", type=int, help="training photographs; default: 600, and a sixth for evaluation")
    parser.add_argument("--output", type=Path, help="a JSON file; default: none is written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    numbers = IMAGES if args.images is None else {"train": args.images, "validation": max(1, args.images // 6)}
    rows = {
        split: load_captions("caption_folder", data_dir=args.data_dir, split=split).select(range(number))
        for split, number in numbers.items()
    }
    results = []
    for name in SETTINGS:
        results.append(epoch(name, args, rows))
        print(json.dumps(results[-1]), flush=True)
    if args.output is not None:
        machine = f"{processor_name()}, 1 thread, torch {torch.__version__.split('+')[0]}"
        write_results(args.output, {"machine": machine, "images": numbers, "parts": PARTS, "rows": results})


if __name__ == "__main__":
    main()
