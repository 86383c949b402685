"""Fine-tune a captioner on a few photographs that a person captioned, and score it on the others.

    python benchmarks/correction_loop.py --data_dir $HF_CAPTIONERS_DATA_DIR/coco --output_dir runs/loop

Of each draw, `k` photographs are the training data, with one caption each (as a person corrects them) or with all, and
the others are captioned before and after. `hf-captioners train --model` runs with its defaults; `--options` changes
them. A draw that was measured is not run again. Results: `benchmarks/results/correction_loop.json`.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch
from provenance import records_of, write_results

from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.data_set import caption_data_set, load_split
from hf_captioners.captioning.scoring import MetricSettings, score_matched
from hf_captioners.cli import main as command
from hf_captioners.default_model import default_model

RESULTS = Path(__file__).parent / "results" / "correction_loop.json"


def write_draw(source: Path, folder: Path, count: int, captions: int | None, draw: int) -> None:
    """Write a data folder with `count` random training photographs, and the others as test split."""
    rows = [json.loads(line) for line in (source / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    random.Random(draw).shuffle(rows)
    link_photographs(source, folder, rows[:count], rows[count:], captions)


def link_photographs(source: Path, folder: Path, train: list[dict], test: list[dict], captions: int | None) -> None:
    """Write a data folder of links to photographs; training photographs keep this many captions (None: all)."""
    for split, chosen in (("train", train), ("test", test)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        lines = []
        for row in chosen:
            name = Path(row["file_name"]).name
            if not (folder / split / name).exists():
                (folder / split / name).symlink_to((source / row["file_name"]).absolute())
            texts = row["captions"][: captions if split == "train" else None]
            lines.append(json.dumps({"file_name": name, "captions": texts}) + "\n")
        (folder / split / "metadata.jsonl").write_text("".join(lines), encoding="utf-8")


def score(captioner: str, folder: Path) -> float:
    """Return the CIDEr-D of a captioner on the test split of a folder."""
    rows = load_split(str(folder), None, "test", {})
    matched = caption_data_set(load_pipeline(captioner, device="cpu"), rows, batch_size=25)
    return score_matched(matched, MetricSettings(("cider_d",))).metrics["cider_d"]


def measure(args: argparse.Namespace, count: int, captions: int | None, draw: int) -> dict:
    """Fine-tune on one random draw of photographs; return the scores."""
    place = args.output_dir / f"{count}_{captions or 'all'}_{draw}"
    write_draw(args.data_dir, place / "images", count, captions, draw)
    before = score(args.model, place / "images")
    start = time.perf_counter()
    typed = [
        "train",
        "--model",
        args.model,
        "--train_dir",
        str(place / "images"),
        "--output_dir",
        str(place / "trained"),
    ]
    cache = ["--feature_cache_dir", str(args.output_dir / "features"), "--seed", str(draw), "--disable_tqdm", "true"]
    if command([*typed, *cache, *args.options]):
        raise SystemExit("the training failed")
    seconds = time.perf_counter() - start
    after = score(str(place / "trained"), place / "images")
    return {
        "images": count,
        "captions": captions or 5,
        "draw": draw,
        "before": before,
        "after": after,
        "seconds": seconds,
    }


def main() -> None:
    """Run all draws without results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with metadata.jsonl")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--model", help="captioner to begin with; default: the default captioner")
    parser.add_argument("--counts", type=int, nargs="+", default=[25, 50, 100, 150])
    parser.add_argument("--captions", type=int, nargs="+", default=[1, 0], help="captions an image; 0: all")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further arguments of `train`, last")
    args = parser.parse_args()
    args.model = args.model or str(default_model().folder)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    runs = json.loads(args.output.read_text())["runs"] if args.output.exists() else []
    done = {(run["images"], run["captions"], run["draw"]) for run in runs}
    for draw in range(args.draws):
        for count in args.counts:
            for captions in args.captions:
                if (count, captions or 5, draw) in done:
                    continue
                runs.append(measure(args, count, captions or None, draw))
                write_results(args.output, {"runs": runs}, records_of(args.output))
                gains = [
                    r["after"] - r["before"] for r in runs if (r["images"], r["captions"]) == (count, captions or 5)
                ]
                print(runs[-1], f"mean gain {statistics.mean(gains):.3f}", flush=True)


if __name__ == "__main__":
    main()
