"""Measure the effect of the reward `self_retrieval` beside CIDEr-D, on drawn scenes.

    python benchmarks/self_retrieval.py --vision_model MOBILENETV2 [--output benchmarks/results/self_retrieval.json]

For each seed, Show, Attend and Tell is trained with cross-entropy. Two self-critical runs start from it, on images
that it has not seen (of images that it knows, it tells the own one from its caption already): one is rewarded with
CIDEr-D, the other one with CIDEr-D and `self_retrieval`. Their captions of the validation images are compared by
retrieval among 16: the share of captions whose own image is the most likely one among 16, in blocks of 16 images.
The likelihoods are those of a captioner of another seed, which was trained with cross-entropy only and rewards no run.
Figures of other seeds and rewards that the output file holds already are kept.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import DatasetDict
from provenance import records_of, write_results

from hf_captioners.data import load_captions
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, SCSTArguments, SCSTTrainer
from hf_captioners.training.scst.self_retrieval import SelfRetrieval
from hf_captioners.training.starting import ModelArguments, start_captioner

AMONG = 16
REWARDED = "test"  # split of the images of self-critical training
JUDGE_SEED = 100
REWARDS = {"cider_d": (["cider_d"], [1.0]), "cider_d + self_retrieval": (["cider_d", "self_retrieval"], [1.0, 0.3])}
COMMON: dict[str, Any] = {
    "use_cpu": True,
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_steps": 10,
    "disable_tqdm": True,
    "per_device_eval_batch_size": 52,
    "generation_max_new_tokens": 24,
    "evaluate_loss": False,
    "report_to": [],
}


def cross_entropy(args: argparse.Namespace, images: DatasetDict, seed: int, folder: Path, epochs: float) -> None:
    """Train a captioner with cross-entropy and save it, unless it exists."""
    if (folder / "model.safetensors").is_file():
        return
    torch.manual_seed(seed)
    start = ModelArguments(
        architecture="show_attend_tell",
        vision_model=args.vision_model,
        image_size=args.image_size,
        model_config=dict.fromkeys(("hidden_size", "embedding_size", "attention_size"), 128),  # type: ignore[arg-type]
    )
    captions = (caption for captions in images["train"]["captions"] for caption in captions)
    model, processor = start_captioner(start, captions)
    arguments = CaptioningTrainingArguments(
        str(folder),
        seed=seed,
        learning_rate=2e-3,
        num_train_epochs=epochs,
        captions_per_image=2,
        train_sampling_strategy="group_by_length",
        feature_cache_dir=args.features,
        **COMMON,
    )
    trainer = CaptioningTrainer(model, arguments, images["train"], images["validation"], processor)
    trainer.train()
    trainer.save_model()


def self_critical(
    args: argparse.Namespace, images: DatasetDict, seed: int, start: Path, rewards: str, folder: Path
) -> SCSTTrainer:
    """Train a saved captioner on rewards."""
    model, processor = start_captioner(ModelArguments(model=str(start)))
    functions, weights = REWARDS[rewards]
    arguments = SCSTArguments(
        str(folder),
        seed=seed,
        learning_rate=args.learning_rate,
        max_steps=args.scst_steps,
        per_device_train_batch_size=args.batch_size,
        sampling=args.sampling,
        temperature=args.temperature,
        num_samples=4,
        reward_funcs=functions,
        reward_weights=weights,
        feature_cache_dir=args.features,
        **COMMON,
    )
    trainer = SCSTTrainer(model, arguments, images[REWARDED], images["validation"], processor)
    trainer.train()
    return trainer


def untrained(args: argparse.Namespace, images: DatasetDict, start: Path, folder: Path) -> CaptioningTrainer:
    """Return a trainer of a saved captioner, for captioning without further training."""
    model, processor = start_captioner(ModelArguments(model=str(start)))
    arguments = CaptioningTrainingArguments(str(folder), feature_cache_dir=args.features, **COMMON)
    return CaptioningTrainer(model, arguments, images["train"], images["validation"], processor)


def retrieval(judge: SelfRetrieval, captions: list[str], pixels: list[Any]) -> float:
    """Return the share of captions whose own image is the most probable of 16."""
    hits = []
    for first in range(0, len(captions), AMONG):
        block = slice(first, first + AMONG)
        likelihood = judge.log_likelihood(captions[block], pixels[block])  # [images, captions]
        hits += (likelihood.argmax(0) == torch.arange(AMONG)).tolist()
    return float(np.mean(hits))


def measure(trainer: CaptioningTrainer, judge: SelfRetrieval, images: DatasetDict) -> dict[str, float]:
    """Caption the validation images and compute metrics and retrieval."""
    rows = images["validation"]
    captions = trainer.caption(rows, num_beams=3)
    result = compute_caption_metrics(captions, rows["captions"], ["cider_d", "cider_d_shuffled"])
    scores = {name: result[name] for name in result["variants"]}
    return scores | {"retrieval": retrieval(judge, captions, list(rows["image"]))}


def main() -> None:
    """Train all runs, and write their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vision_model", required=True, help="a MobileNetV2, as a local folder or a name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train", type=int, default=304, help="training images")
    parser.add_argument("--validation", type=int, default=208, help="validation images, a multiple of 16")
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--rewarded", type=int, default=304, help="images of self-critical training")
    parser.add_argument("--epochs", type=float, default=4, help="of cross-entropy")
    parser.add_argument("--judge_epochs", type=float, default=8, help="of cross-entropy, of the captioner that judges")
    parser.add_argument("--batch_size", type=int, default=16, help="images in a step of self-critical training")
    parser.add_argument("--scst_steps", type=int, default=150)
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=list(REWARDS))
    parser.add_argument("--sampling", default="multinomial", help="of self-critical training: multinomial or beams")
    parser.add_argument("--temperature", type=float, default=0.5, help="of multinomial sampling")
    parser.add_argument("--learning_rate", type=float, default=1e-4, help="of self-critical training")
    parser.add_argument(
        "--work_dir", default="runs/self_retrieval", help="captioners that are there are not trained again"
    )
    parser.add_argument("--output", default="benchmarks/results/self_retrieval.json")
    args = parser.parse_args()
    counts = {"train": args.train, "validation": args.validation, REWARDED: args.rewarded}
    images = load_captions("scenes", num_images=counts, image_size=args.image_size)
    output, began = Path(args.output), time.process_time()
    earlier_runs = json.loads(output.read_text(encoding="utf-8"))["runs"] if output.is_file() else []
    runs = [run for run in earlier_runs if run["seed"] not in args.seeds or run["rewards"] not in args.rewards]
    setting = {"among": AMONG, "weights": {name: weights for name, (_, weights) in REWARDS.items()}, **counts}
    setting |= {
        "epochs": args.epochs,
        "judge_epochs": args.judge_epochs,
        "batch_size": args.batch_size,
        "scst_steps": args.scst_steps,
        "learning_rate": args.learning_rate,
        "sampling": args.sampling,
        "temperature": args.temperature,
        "image_size": args.image_size,
    }
    place = Path(args.work_dir)
    args.features = str(place / "features")
    cross_entropy(args, images, JUDGE_SEED, place / "judge", args.judge_epochs)
    judge = SelfRetrieval(*start_captioner(ModelArguments(model=str(place / "judge"))))
    for seed in args.seeds:
        start = place / f"start_{seed}"
        cross_entropy(args, images, seed, start, args.epochs)
        before = measure(untrained(args, images, start, place / "untrained"), judge, images)
        for rewards in args.rewards:
            with tempfile.TemporaryDirectory() as folder:
                trainer = self_critical(args, images, seed, start, rewards, Path(folder))
                after = measure(trainer, judge, images)
            run = {"seed": seed, "rewards": rewards, "before": before, "after": after}
            runs.append(run)
            print(json.dumps(run), f"{time.process_time() - began:.0f} CPU s", flush=True)
            hardware = f"2 {platform.machine()} cores, no GPU"
            content = {
                "hardware": hardware,
                "setting": setting,
                "runs": sorted(runs, key=lambda one: (one["rewards"], one["seed"])),
            }
            write_results(output, content, records_of(output))


if __name__ == "__main__":
    main()
