"""Compare ZoDIAC's default pool of intensities with that of the released code, on drawn scenes.

    python benchmarks/zodiac_pools.py --vision_model MOBILENETV2 [--output benchmarks/results/zodiac_pools.json]

For each pool and seed, a small ZoDIAC is trained with cross-entropy. It captions the validation images in batches of
16 and one by one, with the pool that it was trained with and with the other one. Measured are CIDEr-D, captions that
change with the batch, and differences of log-probabilities: of reference words in a batch and alone, and of generated
words when they are generated and when the caption is read at once.
"""

import argparse
import json
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from provenance import write_results
from torch import Tensor

from hf_captioners.data import load_captions
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments
from hf_captioners.training.starting import ModelArguments, start_captioner

POOLS = ("mean", "released")
BATCH, BEAMS, TOKENS = 16, 3, 24
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "ffn_dim": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "region_dropout": 0.1,
}


def train(args: argparse.Namespace, images: DatasetDict, pool: str, seed: int, folder: Path) -> None:
    """Train a captioner and save it, unless it exists."""
    if (folder / "model.safetensors").is_file():
        return
    torch.manual_seed(seed)
    start = ModelArguments(
        architecture="zodiac",
        vision_model=args.vision_model,
        image_size=args.image_size,
        model_config=SIZES | {"intensity_pool": pool},  # type: ignore[arg-type]
    )
    captions = (caption for captions in images["train"]["captions"] for caption in captions)
    model, processor = start_captioner(start, captions)
    arguments = CaptioningTrainingArguments(
        str(folder),
        seed=seed,
        learning_rate=args.learning_rate,
        num_train_epochs=args.epochs,
        captions_per_image=2,
        feature_cache_dir=args.features,
        use_cpu=True,
        eval_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=20,
        report_to=[],
    )
    trainer = CaptioningTrainer(model, arguments, images["train"], images["validation"], processor)
    trainer.train()
    trainer.save_model()


def load(folder: Path, pool: str) -> tuple[Any, Any]:
    """Load a captioner from a folder, and set its pool of intensities."""
    model, processor = start_captioner(ModelArguments(model=str(folder), model_config=[f"intensity_pool={pool}"]))
    return model.eval(), processor


def batches(rows: dict[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """Split tensors into batches."""
    count = len(rows["region_features"])
    for first in range(0, count, size):
        yield {name: value[first : first + size] for name, value in rows.items()}


def caption(model: Any, processor: Any, regions: dict[str, Tensor], size: int) -> list[str]:
    """Caption images in batches of this size."""
    captions: list[str] = []
    for batch in batches(regions, size):
        sequences = model.generate(**batch, num_beams=BEAMS, max_new_tokens=TOKENS)
        captions += processor.post_process_image_text_to_text(sequences)
    return captions


def logprobs(model: Any, regions: dict[str, Tensor], labels: Tensor) -> Tensor:
    """Return log-probabilities of labels `[B, T]`, read in one pass; 0 at padding."""
    start = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**regions, decoder_input_ids=start).logits.log_softmax(-1)
    chosen = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return chosen.masked_fill(labels < 0, 0.0)


def batch_difference(model: Any, processor: Any, regions: dict[str, Tensor], rows: Dataset) -> list[float]:
    """Return differences between log-probabilities of reference words in a batch and alone, without padding."""
    texts = [captions[0] for captions in rows["captions"]]
    differences: list[float] = []
    for number, batch in enumerate(batches(regions, BATCH)):
        texts_of_batch = texts[number * BATCH : (number + 1) * BATCH]
        labels = processor(text_target=texts_of_batch, return_tensors="pt")["labels"]
        together = logprobs(model, batch, labels)
        for row, single in enumerate(batches(batch, 1)):
            length = int((labels[row] >= 0).sum())
            alone = logprobs(model, single, labels[row : row + 1, :length])[0]
            differences += (alone - together[row, :length]).abs().tolist()
    return differences


def step_difference(model: Any, regions: dict[str, Tensor]) -> list[float]:
    """Return differences between log-probabilities of greedy captions in decoding steps and in one pass."""
    differences: list[float] = []
    for batch in batches(regions, BATCH):
        out = model.generate(
            **batch, num_beams=1, max_new_tokens=TOKENS, return_dict_in_generate=True, output_logits=True
        )
        words = out.sequences[:, 1:]
        steps = torch.stack(out.logits, dim=1).float().log_softmax(-1).gather(-1, words[..., None])[..., 0]
        at_once = logprobs(model, batch, words)
        ended = (words == model.config.eos_token_id).cumsum(1)
        real = (ended - (words == model.config.eos_token_id).long()) == 0
        differences += (steps - at_once)[real].abs().tolist()
    return differences


@torch.no_grad()
def measure(folder: Path, pool: str, rows: Dataset) -> dict[str, float]:
    """Return all measurements of a captioner loaded with a pool."""
    model, processor = load(folder, pool)
    pixels = processor(images=list(rows["image"]), return_tensors="pt")["pixel_values"]
    features = model.get_region_features(pixels)
    regions = {"region_features": features.region_features, "region_boxes": features.region_boxes}
    captions, began = {}, time.process_time()
    for size in (BATCH, 1):
        captions[size] = caption(model, processor, regions, size)
        if size == BATCH:
            seconds = time.process_time() - began
    scores = {size: compute_caption_metrics(texts, rows["captions"], ["cider_d"]) for size, texts in captions.items()}
    of_batch, of_steps = batch_difference(model, processor, regions, rows), step_difference(model, regions)
    changed = sum(one != other for one, other in zip(captions[BATCH], captions[1], strict=True))
    return {
        "cider_d": scores[BATCH]["cider_d"],
        "cider_d_alone": scores[1]["cider_d"],
        "changed_captions": changed / len(rows),
        "batch_difference": sum(of_batch) / len(of_batch),
        "batch_difference_max": max(of_batch),
        "step_difference": sum(of_steps) / len(of_steps),
        "step_difference_max": max(of_steps),
        "seconds": seconds,
    }


def main() -> None:
    """Train all captioners, and write their measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vision_model", required=True, help="a MobileNetV2, as a local folder or a name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train", type=int, default=208, help="training images")
    parser.add_argument("--validation", type=int, default=64, help="validation images, a multiple of 16")
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--epochs", type=float, default=12)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument(
        "--work_dir", default="runs/zodiac_pools", help="captioners that are there are not trained again"
    )
    parser.add_argument("--output", default="benchmarks/results/zodiac_pools.json")
    args = parser.parse_args()
    counts = {"train": args.train, "validation": args.validation}
    images = load_captions("scenes", num_images=counts, image_size=args.image_size)
    args.features = str(Path(args.work_dir, "features"))
    setting = {**counts, **SIZES, "image_size": args.image_size, "epochs": args.epochs, "batch": BATCH, "beams": BEAMS}
    setting |= {"learning_rate": args.learning_rate}
    runs, began = [], time.process_time()
    for seed in args.seeds:
        for trained in POOLS:
            folder = Path(args.work_dir, f"{trained}_{seed}")
            train(args, images, trained, seed, folder)
            for read in POOLS:
                run = {"seed": seed, "trained": trained, "read": read, **measure(folder, read, images["validation"])}
                runs.append(run)
                print(json.dumps(run), f"{time.process_time() - began:.0f} CPU s", flush=True)
        # After every seed, so that an interrupted measurement leaves whole ones.
        content = {"hardware": f"2 {platform.machine()} cores, no GPU", "setting": setting, "runs": runs}
        write_results(args.output, content)


if __name__ == "__main__":
    main()
