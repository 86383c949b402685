"""Compare a training step of an untrained LLaVA (20 million weights) in this library and in transformers' Trainer.

    python benchmarks/other_models_step.py [--output benchmarks/results/other_models_step.json]

The Trainer of transformers has its batches of 8 pairs collated in memory before it starts, the same ones as
`CaptioningTrainer`, which reads the images and encodes the captions in each step. Both train in turn; figures are
medians of 7 rounds in CPU seconds of one thread, and the ratio is the median of the ratios of rounds.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from provenance import write_results
from small_models import redrawn, vision_language_model
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_captioners.data import load_captions
from hf_captioners.loading import load_captioner
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

BATCH, SKIPPED = 8, 2  # pairs of a batch, steps of a round that are not measured
COMMON: dict[str, Any] = {
    "use_cpu": True,
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_steps": 1000,
    "disable_tqdm": True,
    "report_to": [],
    "learning_rate": 1e-4,
    "max_grad_norm": 1.0,
}


class StepClock(TrainerCallback):
    """Trainer callback that records the CPU time at the end of every step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Record the CPU time."""
        self.ends.append(time.process_time())


def seconds_of(trainer: Trainer) -> float:
    """Train; return the CPU seconds per step."""
    clock = StepClock()
    trainer.add_callback(clock)
    trainer.train()
    trainer.remove_callback(clock)
    return (clock.ends[-1] - clock.ends[SKIPPED - 1]) / (len(clock.ends) - SKIPPED)


def main() -> None:
    """Measure both trainers in rounds, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="of a round")
    parser.add_argument("--output")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = load_captions("scenes", num_images={"train": BATCH * args.steps}, image_size=64, split="train")
    texts = [text for captions in rows["captions"] for text in captions]
    figures: dict[str, list[float]] = {"trainer": [], "plain": []}
    with tempfile.TemporaryDirectory() as folder:
        model, processor = vision_language_model(texts, patch=8, hidden=384, layers=5)
        redrawn(model, 0).save_pretrained(folder)
        processor.save_pretrained(folder)
        model, processor = load_captioner(folder)
        plain_model, _ = load_captioner(folder)
        arguments = CaptioningTrainingArguments(
            str(Path(folder, "run")),
            captions_per_image=1,
            per_device_train_batch_size=BATCH,
            max_steps=args.steps,
            **COMMON,
        )
        trainer = CaptioningTrainer(model, arguments, rows, processing_class=processor)
        batches = list(trainer.get_train_dataloader())
        plain = Trainer(
            plain_model,
            TrainingArguments(
                str(Path(folder, "plain")), max_steps=args.steps, per_device_train_batch_size=1, **COMMON
            ),
            data_collator=lambda items: items[0],
            train_dataset=batches,  # type: ignore[arg-type]
        )
        for _ in range(args.rounds):
            figures["trainer"].append(seconds_of(trainer))
            figures["plain"].append(seconds_of(plain))
            print({name: round(values[-1], 4) for name, values in figures.items()}, flush=True)
    ratios = [one / other for one, other in zip(figures["trainer"], figures["plain"], strict=True)]
    row = {
        "parameters": int(model.num_parameters()),
        "batch_size": BATCH,
        "tokens": int(batches[0]["input_ids"].numel()),
        **{f"{name}_seconds": round(statistics.median(values), 4) for name, values in figures.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    print(row)
    if args.output:
        write_results(args.output, row)


if __name__ == "__main__":
    main()
