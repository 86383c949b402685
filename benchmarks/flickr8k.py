"""Evaluate a captioner trained on Flickr8k on its 1,000 validation photographs.

    python benchmarks/flickr8k.py runs/flickr8k --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k \
        --output benchmarks/results/flickr8k_visualgpt.json

The script captions each photograph with beam search and scores the captions against all five references. The shuffled
control scores the same captions against the references of the adjacent photograph. The scores are written together
with the record of the training run.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import torch
from provenance import run_records, write_results
from transformers import AutoModelForImageTextToText, AutoProcessor

import hf_captioners
from hf_captioners.data import load_captions
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.reproduce.recipe import Recipe


def write_captions(model_dir: str, rows, beams: int, batch_size: int) -> list[str]:
    """Return the captions of all images."""
    model = AutoModelForImageTextToText.from_pretrained(model_dir)
    processor = AutoProcessor.from_pretrained(model_dir)
    captions = []
    for start in range(0, len(rows), batch_size):
        inputs = processor(images=rows[start : start + batch_size]["image"], return_tensors="pt")
        captions += processor.batch_decode(model.generate(**inputs, num_beams=beams, max_new_tokens=20))
    return captions


def training_record(model_dir: Path, seconds: float | None) -> dict:
    """Return length and duration of the run from its files; `seconds` overrides the duration."""
    state = json.loads((model_dir / "trainer_state.json").read_text())
    best = max((entry for entry in state["log_history"] if "eval_cider_d" in entry), key=lambda e: e["eval_cider_d"])
    if seconds is None:
        seconds = sum(entry["train_runtime"] for entry in state["log_history"] if "train_runtime" in entry)
    return {"epochs": state["epoch"], "best_epoch": best["epoch"], "steps": state["global_step"], "seconds": seconds}


def published_row(args: argparse.Namespace) -> dict:
    """Return the published scores of a recipe in percent."""
    row = Recipe.load(Path(args.recipe)).published
    assert row is not None, f"{args.recipe} reproduces nothing"
    bleu = {name: values[0] for name, values in row.regimes[args.row_regime].published.items() if "bleu" in name}
    return {"row": f"Table {row.table}, {row.row}", "conditions": args.conditions, "figures": bleu}


def main() -> None:
    """Caption, score and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory of the trained captioner")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument("--training_seconds", type=float, help="training time of a run that was killed and resumed")
    parser.add_argument("--commands", help="text file with the commands that trained the captioner")
    parser.add_argument("--recipe", help="recipe whose published scores are compared, with --row_regime")
    parser.add_argument("--row_regime", default="flickr8k", help="regime of that recipe")
    parser.add_argument("--conditions", default="", help="conditions of the published scores")
    parser.add_argument("--title", default="VisualGPT", help="name of the captioner on the page of results")
    parser.add_argument("--output", default="benchmarks/results/flickr8k_visualgpt.json")
    args = parser.parse_args()
    rows = load_captions("caption_folder", data_dir=args.data_dir, split="validation")
    start = time.time()
    captions = write_captions(args.model, rows, args.beams, args.batch_size)
    seconds = time.time() - start
    references = rows["captions"]
    own = compute_caption_metrics(captions, references, metrics=("bleu", "bleu_no_penalty", "cider_d"))
    shuffled = compute_caption_metrics(captions[1:] + captions[:1], references, metrics=("cider_d",))
    result = {
        "model": args.title,
        "images": len(rows),
        "beams": args.beams,
        **{name: value for name, value in own.items() if name.startswith(("bleu", "cider"))},
        "cider_d_shuffled": shuffled["cider_d"],
        "distinct_captions": len(set(captions)),
        "training": training_record(Path(args.model), args.training_seconds),
        "captioning_seconds": round(seconds),
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU, shared with other work",
        "versions": {"hf_captioners": hf_captioners.__version__, "torch": torch.__version__.split("+")[0]},
        "commands": Path(args.commands).read_text() if args.commands else None,
        "examples": captions[:5],
        "published": published_row(args) if args.recipe else None,
    }
    write_results(args.output, result, run_records(args.model))
    print(f"CIDEr-D {own['cider_d']:.4f}, shuffled control {shuffled['cider_d']:.4f}, BLEU-4 {own['bleu_4']:.4f}")


if __name__ == "__main__":
    main()
