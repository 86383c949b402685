"""Fine-tune a captioner on the photographs whose captions are least confident, and on as many random ones.

    python benchmarks/correct_doubtful.py --data_dir $HF_CAPTIONERS_DATA_DIR/coco --output_dir runs/doubtful

All trainings are scored on the same 127 photographs. Of the other 150, those whose captions have the least confidence
are corrected first, or random ones: `k` photographs with a caption of a person each, on which `hf-captioners train
--model` runs with its defaults. The draws differ in the random photographs and in the seed of the training. A training
that was measured is not run again. Results: `benchmarks/results/correct_doubtful.json`.
"""

import argparse
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from correction_loop import link_photographs
from provenance import ROOT, records_of, write_results

from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.data_set import caption_data_set, load_split
from hf_captioners.captioning.scoring import MetricSettings, score_matched
from hf_captioners.cli import main as command
from hf_captioners.confidence.assessing import Assessor
from hf_captioners.default_model import default_model
from hf_captioners.processing.image_reading import read_image

RESULTS = ROOT / "benchmarks" / "results" / "correct_doubtful.json"
TEST_PHOTOGRAPHS = 127
ORDERS = ("doubtful", "random")
METRICS = ("cider_d", "support")


def scores_of(captioner: str, folder: Path) -> dict[str, float]:
    """Evaluate a captioner on the test split of a folder."""
    rows = load_split(str(folder), None, "test", {})
    matched = caption_data_set(load_pipeline(captioner, device="cpu"), rows, batch_size=25)
    metrics = score_matched(matched, MetricSettings(METRICS)).metrics
    return {name: metrics[name] for name in METRICS}


def by_doubt(captioner: str, source: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by the `confidence` of their captions, lowest first."""
    pipeline = load_pipeline(captioner, backend="onnx", threads=1)
    assessor = Assessor(pipeline)
    for row in rows:
        (record,) = assessor.caption_prepared([pipeline.prepare(read_image(source / row["file_name"]))])[0]
        row["confidence"] = record["confidence"]
    return sorted(rows, key=lambda row: (row["confidence"] is not None, row["confidence"]))


def trained(
    args: argparse.Namespace, chosen: list[dict[str, Any]], test: list[dict[str, Any]], place: Path, seed: int
):
    """Fine-tune on photographs; return the metrics on the test photographs."""
    shutil.rmtree(place, ignore_errors=True)  # of a training that was interrupted
    link_photographs(args.data_dir, place / "images", chosen, test, captions=1)
    typed = ["train", "--model", args.model, "--train_dir", str(place / "images"), "--output_dir"]
    typed += [str(place / "trained"), "--feature_cache_dir", str(args.output_dir / "features"), "--seed", str(seed)]
    if command([*typed, "--disable_tqdm", "true"]):
        raise SystemExit("the training failed")
    return scores_of(str(place / "trained"), place / "images")


def main() -> None:
    """Run all trainings without results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with metadata.jsonl")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--model", help="calibrated captioner to begin with; default: the default captioner")
    parser.add_argument("--counts", type=int, nargs="+", default=[50, 100, 25])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.model = args.model or str(default_model().folder)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in (args.data_dir / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    random.Random(0).shuffle(rows)
    test, pool = rows[:TEST_PHOTOGRAPHS], by_doubt(args.model, args.data_dir, rows[TEST_PHOTOGRAPHS:])
    results = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"runs": []}
    results |= {"test_photographs": len(test), "photographs": len(pool)}
    runs = results["runs"]
    done = {(run["images"], run["order"], run["draw"]) for run in runs}
    if "before" not in results:
        link_photographs(args.data_dir, args.output_dir / "before", [], test, captions=1)
        results["before"] = scores_of(args.model, args.output_dir / "before")
    for count in args.counts:
        for draw in range(args.draws):
            for order in ORDERS:
                if (count, order, draw) in done:
                    continue
                chosen = pool[:count] if order == "doubtful" else random.Random(draw).sample(pool, count)
                start = time.process_time()
                place = args.output_dir / f"{count}_{order}_{draw}"
                after = trained(args, chosen, test, place, draw)
                run = {"images": count, "order": order, "draw": draw, **after}
                runs.append(run | {"cpu_seconds": round(time.process_time() - start, 1)})
                write_results(args.output, results, records_of(args.output))
                print(runs[-1], flush=True)


if __name__ == "__main__":
    main()
