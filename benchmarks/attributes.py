"""Measure an attribute detector, and the gain of its attributes in Entangled Transformers (ETA), on Flickr8k.

    hf-captioners attributes evaluate --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --features runs/regions \
        --detector runs/attributes --output detector.json
    python benchmarks/attributes.py runs/attributes --detector_figures detector.json --oracle runs/eta_oracle \
        --detected runs/eta --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --features runs/regions --commands commands.txt

One captioner was trained with the words of the captions themselves (the oracle of the paper's Table 2), the other one
with detected words. Both caption the validation photographs with beam search; the second one also with the words that
were detected in the next photograph. Each pair of rows is compared with the paired bootstrap over photographs.
"""

import argparse
import json
import os
import platform
from pathlib import Path

from datasets import Dataset
from flickr8k import training_record
from provenance import run_records, write_results

from hf_captioners.captioning.attributes import detection_batches, load_attribute_detector
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.data_set import caption_data_set, load_split
from hf_captioners.data import load_captions
from hf_captioners.features.formats import open_split_regions
from hf_captioners.metrics import compare_systems, compute_caption_metrics
from hf_captioners.processing.vocabulary import attribute_words
from hf_captioners.training.data_arguments import with_oracle_attributes
from hf_captioners.training.running import NUM_ATTRIBUTES

SPLIT = "validation"


def detected_words(folder: Path, features: Path, images: list[str], number: int) -> list[list[str]]:
    """Return the most probable words of each image, in the order of the images."""
    detector = load_attribute_detector(str(folder))
    source = open_split_regions(str(features), SPLIT)
    batches = detection_batches(detector, images, source, top_k=number)
    return [record["attributes"] for records, _ in batches for record in records]


def scores_of(model: Path, rows: Dataset, beams: int) -> dict:
    """Caption images; return metrics over all images and of each."""
    pipeline = load_pipeline(str(model), device="cpu")
    matched = caption_data_set(pipeline, rows, 50, num_beams=beams, max_new_tokens=20)
    metrics = compute_caption_metrics(matched.predictions, matched.references, ("bleu", "cider_d", "cider_d_shuffled"))
    return {
        **{name: metrics[name] for name in ("bleu_4", "cider_d", "cider_d_shuffled")},
        "distinct_captions": len(set(matched.predictions)),
        "per_image": metrics["per_image"]["cider_d"],
        "examples": matched.predictions[:5],
    }


def main() -> None:
    """Evaluate captioners with oracle, detected and shuffled attributes, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detector", type=Path, help="directory of the attribute detector")
    parser.add_argument(
        "--detector_figures", type=Path, required=True, help="output of `hf-captioners attributes evaluate`"
    )
    parser.add_argument("--oracle", type=Path, required=True, help="captioner trained with words of the captions")
    parser.add_argument("--detected", type=Path, required=True, help="captioner trained with detected words")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--features", type=Path, required=True, help="output of extract-features")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--commands", type=Path, required=True, help="text file with the commands of the runs")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/attributes.json"))
    args = parser.parse_args()

    rows = load_split(args.data_dir, None, SPLIT, {}, features=str(args.features))
    train = load_captions("caption_folder", data_dir=args.data_dir, split="train")
    words = attribute_words((text for texts in train["captions"] for text in texts), NUM_ATTRIBUTES)
    number = json.loads((args.detected / "config.json").read_text())["num_attributes"]
    words_of_images = detected_words(args.detector, args.features, list(rows["image_id"]), number)
    with_detected, with_next = (
        rows.add_column("attributes", column)
        for column in (words_of_images, words_of_images[1:] + words_of_images[:1])
    )
    results = {
        "oracle": scores_of(args.oracle, with_oracle_attributes(rows, words), args.beams),
        "detected": scores_of(args.detected, with_detected, args.beams),
        "shuffled": scores_of(args.detected, with_next, args.beams),
    }
    per_image = {name: result.pop("per_image") for name, result in results.items()}
    names = list(results)
    figures = {
        "images": len(rows),
        "beams": args.beams,
        "num_attributes": number,
        "detector": json.loads(args.detector_figures.read_text(encoding="utf-8")),
        "captioners": results,
        "comparisons": [
            {"first": first, "second": second, **compare_systems(per_image[first], per_image[second])._asdict()}
            for first, second in zip(names, names[1:], strict=False)
        ],
        "training": {name: training_record(getattr(args, name), None) for name in ("oracle", "detected")},
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU, shared with other work",
        "commands": args.commands.read_text(encoding="utf-8"),
    }
    runs = [record for path in (args.detector, args.oracle, args.detected) for record in run_records(path)]
    write_results(args.output, figures, runs)
    print(json.dumps({name: result["cider_d"] for name, result in results.items()}), figures["comparisons"])


if __name__ == "__main__":
    main()
