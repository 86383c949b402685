"""Train a LLaVA with a chat template and a Florence-2 without one, from random weights, on drawn scenes.

    python benchmarks/other_models_learning.py [--output benchmarks/results/other_models_learning.json]

Each is trained with cross-entropy, then on rewards (`SCSTTrainer`, CIDEr-D). CIDEr-D is that of greedy captions of
images that neither part trains on; the shuffled control scores the same captions against the references of the next
image. The interval is that of the paired bootstrap over images. Times are CPU seconds of one thread. Figures of other
models that the output file holds already are kept.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from provenance import records_of, write_results
from small_models import encoder_decoder, redrawn, vision_language_model

from hf_captioners.data import load_captions
from hf_captioners.loading import load_captioner
from hf_captioners.metrics import CiderD, PTBTokenizer, compare_systems, shuffled_cider_d
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, SCSTArguments, SCSTTrainer

MODELS = {"llava": vision_language_model, "florence2": encoder_decoder}
COMMON: dict[str, Any] = {
    "use_cpu": True,
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_steps": 50,
    "disable_tqdm": True,
    "per_device_eval_batch_size": 50,
    "generation_num_beams": 1,
    "generation_max_new_tokens": 32,
    "report_to": [],
}


def scored(trainer: CaptioningTrainer, rows: Any) -> dict[str, Any]:
    """Caption images; return the captions, their CIDEr-D and that of the shuffled control."""
    tokenize = PTBTokenizer()
    captions = trainer.caption(rows)
    words, references = tokenize(captions), [tokenize(texts) for texts in rows["captions"]]
    own, shuffled = CiderD(references).score(words), shuffled_cider_d(words, references)
    return {"scores": own, "cider_d": float(own.mean()), "shuffled": float(shuffled.mean()), "captions": captions}


def learn(name: str, images: Any, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train a model; return its scores before and after."""
    texts = [text for captions in images["train"]["captions"] for text in captions]
    torch.manual_seed(args.seed)
    model, processor = MODELS[name](texts)
    redrawn(model, args.seed).save_pretrained(folder / "start")
    processor.save_pretrained(folder / "start")
    model, processor = load_captioner(str(folder / "start"))
    settings = {name: getattr(args, name) for name in ("images", "steps", "reward_steps", "reward_rate", "seed")}
    row: dict[str, Any] = {"model_type": name, "parameters": int(model.num_parameters()), **settings}
    begun = time.process_time()
    arguments = CaptioningTrainingArguments(
        str(folder / "cross_entropy"),
        max_steps=args.steps,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=50,
        seed=args.seed,
        **COMMON,
    )
    trainer = CaptioningTrainer(model, arguments, images["train"], images["validation"], processor)
    trainer.train()
    row["cross_entropy_seconds"] = round(time.process_time() - begun)
    before = scored(trainer, images["validation"])
    begun = time.process_time()
    rewarded = SCSTArguments(
        str(folder / "rewards"),
        max_steps=args.reward_steps,
        per_device_train_batch_size=10,
        num_samples=5,
        learning_rate=args.reward_rate,
        seed=args.seed,
        **COMMON,
    )
    trainer = SCSTTrainer(trainer.model, rewarded, images["train"], images["validation"], processor)
    trainer.train()
    row["rewards_seconds"] = round(time.process_time() - begun)
    after = scored(trainer, images["validation"])
    gain = compare_systems(after["scores"], before["scores"])
    for part, figures in (("cross_entropy", before), ("rewards", after)):
        row |= {f"{part}_cider_d": round(figures["cider_d"], 4), f"{part}_shuffled": round(figures["shuffled"], 4)}
        row[f"{part}_examples"] = figures["captions"][:3]
    row["ratio_to_shuffled"] = round(before["cider_d"] / before["shuffled"], 2)
    row["gain"] = {"difference": round(gain.difference, 4), "low": round(gain.low, 4), "high": round(gain.high, 4)}
    print(row, flush=True)
    return row


def main() -> None:
    """Train both models, and write their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--images", type=int, default=4000, help="training images")
    parser.add_argument("--steps", type=int, default=1500, help="of cross-entropy, batches of 32")
    parser.add_argument("--reward_steps", type=int, default=400, help="batches of 10 images, 5 captions each")
    parser.add_argument("--reward_rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts = {"train": args.images, "validation": 500}
    images = load_captions("scenes", num_images=counts, image_size=64)
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            row = learn(name, images, args, Path(folder))
        if args.output:
            path = Path(args.output)
            kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
            rows = [*(one for one in kept if one["model_type"] != name), row]
            write_results(path, {"rows": rows}, records_of(path))


if __name__ == "__main__":
    main()
