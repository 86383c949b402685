"""Measure decoding with the default captioner: natural caption lengths, and the effect of packed weights.

    python benchmarks/trained_decoding.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k

Trained captioners end their captions by themselves. The first table compares `generate()` with the stock method of
transformers on batches of eight validation photographs, at natural length and with 20 tokens in every caption. The
second one has the captions of all validation photographs, one at a time, with every kind of packed weights. Weights of
fewer bits change captions of random weights, so that only a trained captioner shows what they cost.
"""

import argparse
import copy
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from decoding import STOCK
from decoding_rivals import with_stock_search
from provenance import processor_name, write_results

from hf_captioners.data import load_captions
from hf_captioners.loading import load_captioner
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.modeling.layers_packed import PACKING, can_pack

RESULTS = Path(__file__).parent / "results" / "trained_decoding.json"
BATCH = 8
LENGTHS: dict[str, dict[str, int]] = {"natural": {}, "20 tokens": {"min_new_tokens": 20}}


def with_packed_weights(captioner: Any, kind: str) -> Any:
    """Return a captioner with the same weights that generates with packed copies."""
    packed = copy.deepcopy(captioner, {id(parameter): parameter for parameter in captioner.parameters()})
    packed.optimize_for_generation(kind)
    return packed


def lengths(captioner: Any, regions: list[Any], rounds: int, options: dict[str, int]) -> list[dict[str, Any]]:
    """Measure CPU seconds per image at both caption lengths, by the stock method and this library."""
    decoders = {
        STOCK: with_stock_search(captioner),
        "this library": captioner,
        "this library, float32 packed": with_packed_weights(captioner, "float32"),
    }
    rows = []
    for name, length in LENGTHS.items():
        seconds: dict[str, list[float]] = {decoder: [] for decoder in decoders}
        captions: dict[str, list[Any]] = {}
        for batch in regions * rounds:
            for decoder, model in decoders.items():
                start = time.process_time()
                sequences = model.generate(encoder_outputs=batch.copy(), **options, **length)
                seconds[decoder].append((time.process_time() - start) / BATCH)
                captions.setdefault(decoder, []).extend(sequences.tolist())
        tokens = captions[STOCK]
        ends = captioner.generation_config.eos_token_id
        words = statistics.mean(len(row) - 1 - row[1:].count(ends) for row in tokens)
        for decoder, values in seconds.items():
            median = statistics.median(values)
            row = {
                "length": name,
                "tokens": round(words, 1),
                "decoder": decoder,
                "seconds": round(median, 4),
                "speed": round(statistics.median(seconds[STOCK]) / median, 2),
                "equal": sum(a == b for a, b in zip(captions[decoder], tokens, strict=True)) // rounds,
                "images": len(tokens) // rounds,
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def images_of(batch: Any) -> list[Any]:
    """Split a batch of encoder outputs into those of single images."""
    sizes = {name: value.split(1) for name, value in batch.items() if isinstance(value, torch.Tensor)}
    assert len(sizes) == len(batch), "encoder outputs are tensors [images, ...]"
    return [type(batch)(**dict(zip(sizes, image, strict=True))) for image in zip(*sizes.values(), strict=True)]


def packed_weights(
    captioner: Any, processor: Any, regions: list[Any], references: list[list[str]], options: dict[str, int]
) -> list[dict[str, Any]]:
    """Measure captions, CIDEr-D and CPU seconds per image for each packing, plain weights first."""
    rows, plain = [], []
    for kind in ("plain", *(kind for kind in PACKING if can_pack(kind))):
        model = captioner if kind == "plain" else with_packed_weights(captioner, kind)
        start, captions = time.process_time(), []
        for image in (image for batch in regions for image in images_of(batch)):
            ids = model.generate(encoder_outputs=image, **options)
            captions += processor.batch_decode(ids, skip_special_tokens=True)
        seconds = (time.process_time() - start) / len(references)
        plain = plain or captions
        score = compute_caption_metrics(captions, references, metrics=("cider_d",))["cider_d"]
        equal = sum(a == b for a, b in zip(captions, plain, strict=True))
        rows.append({"weights": kind, "equal": equal, "cider_d": score, "seconds": round(seconds, 4)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Encode the photographs once, decode them in every way, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captioner", nargs="?", help="directory of a captioner; default: the default captioner")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--images", type=int, default=1000, help="validation photographs; default: 1000")
    parser.add_argument("--timed", type=int, default=5, help="batches of 8 photographs that are timed; default: 5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = {"num_beams": 5, "max_new_tokens": 20}
    captioner, processor = load_captioner(args.captioner, dtype=torch.float32)
    photographs = load_captions("caption_folder", data_dir=args.data_dir, split="validation")
    photographs = photographs.select(range(args.images // BATCH * BATCH))
    with torch.inference_mode():
        regions = [
            captioner.eval().model.encoder(**processor(images=batch["image"], return_tensors="pt"))
            for batch in photographs.iter(BATCH)
        ]
        result = {
            "model_type": captioner.config.model_type,
            "machine": f"{processor_name()}, 1 thread, torch {torch.__version__.split('+')[0]}",
            "beams": options["num_beams"],
            "images": len(photographs),
            "rounds": args.rounds,
            "lengths": lengths(captioner, regions[: args.timed], args.rounds, options),
            "weights": packed_weights(captioner, processor, regions, photographs["captions"], options),
        }
    write_results(args.output, result)


if __name__ == "__main__":
    main()
