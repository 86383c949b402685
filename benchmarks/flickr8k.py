"""Evaluate a captioner trained on Flickr8k on its 1,000 validation photographs.

    python benchmarks/flickr8k.py runs/flickr8k/seed_1 runs/flickr8k/seed_2 \
        --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --output benchmarks/results/flickr8k_visualgpt.json

The script captions each photograph with beam search and scores the captions against all five references. The shuffled
control scores the same captions against the references of the adjacent photograph. The scores, means if there are
captioners of several seeds, are written together with the records of the training runs. The result file of a captioner
may stand for it: its captions are not written again.
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

from provenance import run_records, write_results
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_captioners.data import load_captions
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.reproduce.recipe import Recipe


def write_captions(model_dir: str, rows, options: dict[str, int], batch_size: int) -> list[str]:
    """Caption all images; return the captions."""
    model = AutoModelForImageTextToText.from_pretrained(model_dir)
    processor = AutoProcessor.from_pretrained(model_dir)
    captions = []
    for start in range(0, len(rows), batch_size):
        inputs = processor(images=rows[start : start + batch_size]["image"], return_tensors="pt")
        captions += processor.batch_decode(model.generate(**inputs, **options))
    return captions


def training_record(model_dir: Path, seconds: float | None) -> dict:
    """Return epochs, steps and duration of a training from its files; `seconds` overrides the duration."""
    state = json.loads((model_dir / "trainer_state.json").read_text())
    evaluated = [entry for entry in state["log_history"] if "eval_cider_d" in entry]
    best = max(evaluated, key=lambda entry: entry["eval_cider_d"], default=None)
    if seconds is None:
        seconds = sum(entry["train_runtime"] for entry in state["log_history"] if "train_runtime" in entry)
    record = {"epochs": state["epoch"], "steps": state["global_step"], "seconds": seconds}
    return record | ({} if best is None else {"best_epoch": best["epoch"]})


def evaluate(model_dir: str, rows, options: dict[str, int], batch_size: int, seconds: float | None) -> dict:
    """Return scores and captions of a captioner, and its training record."""
    start = time.time()
    captions = write_captions(model_dir, rows, options, batch_size)
    captioning_seconds = time.time() - start
    references = rows["captions"]
    metrics = compute_caption_metrics(captions, references, metrics=("bleu", "bleu_no_penalty", "cider_d"))
    shuffled = compute_caption_metrics(captions[1:] + captions[:1], references, metrics=("cider_d",))
    return {
        **{name: value for name, value in metrics.items() if name.startswith(("bleu", "cider"))},
        "cider_d_shuffled": shuffled["cider_d"],
        "distinct_captions": len(set(captions)),
        "training": training_record(Path(model_dir), seconds),
        "captioning_seconds": round(captioning_seconds),
        "examples": captions[:5],
    }


def published_row(args: argparse.Namespace) -> dict:
    """Return the published scores of a recipe, in percent."""
    row = Recipe.load(Path(args.recipe)).published
    assert row is not None, f"{args.recipe} reproduces nothing"
    bleu = {name: values[0] for name, values in row.regimes[args.row_regime].published.items() if "bleu" in name}
    return {"row": f"Table {row.table}, {row.row}", "conditions": args.conditions, "figures": bleu}


def main() -> None:
    """Caption the photographs, score and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="model", help="captioners, or result files, of one seed each")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--max_new_tokens", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument(
        "--training_seconds", type=float, nargs="+", help="training times of all runs, if some were killed and resumed"
    )
    parser.add_argument("--commands", help="text file with the commands that trained the captioner")
    parser.add_argument("--recipe", help="recipe whose published scores are compared, with --row_regime")
    parser.add_argument("--row_regime", default="flickr8k", help="regime of that recipe")
    parser.add_argument("--conditions", default="", help="conditions of the published scores")
    parser.add_argument("--title", default="VisualGPT", help="name of the captioner on the page of results")
    parser.add_argument("--output", default="benchmarks/results/flickr8k_visualgpt.json")
    args = parser.parse_args()
    rows = load_captions("caption_folder", data_dir=args.data_dir, split="validation")
    options = {"num_beams": args.beams, "max_new_tokens": args.max_new_tokens}
    seconds = args.training_seconds or [None] * len(args.models)
    if len(seconds) != len(args.models):
        parser.error(f"`--training_seconds` has {len(seconds)} numbers, expected one for each of {len(args.models)}.")
    timed = zip(args.models, seconds, strict=True)
    runs, records = [], []
    for model, training_time in timed:
        if model.endswith(".json"):
            earlier = json.loads(Path(model).read_text(encoding="utf-8"))
            if (earlier["images"], earlier["beams"]) != (len(rows), args.beams):
                parser.error(f"{model} has other images, or another number of beams.")
            runs += earlier["runs"]
            records += earlier["provenance"]
        else:
            runs.append(evaluate(model, rows, options, args.batch_size, training_time))
            records += run_records(model)
    scores = [name for name in runs[0] if name.startswith(("bleu", "cider"))]
    result = {
        "model": args.title,
        "images": len(rows),
        "beams": args.beams,
        **(runs[0] | {name: statistics.fmean(run[name] for run in runs) for name in scores}),
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU, shared with other work",
        "commands": Path(args.commands).read_text() if args.commands else None,
        "published": published_row(args) if args.recipe else None,
        "runs": runs,
    }
    write_results(
        args.output, result, records, measured_here=not all(model.endswith(".json") for model in args.models)
    )
    print(", ".join(f"{name} {result[name]:.4f}" for name in ("cider_d", "cider_d_shuffled", "bleu_4")))


if __name__ == "__main__":
    main()
