"""Fine-tune a captioner on a few photographs that a person captioned, and score it on the others.

    python benchmarks/correction_loop.py --data_dir $HF_CAPTIONERS_DATA_DIR/coco --output_dir runs/loop

Of each draw, `k` photographs are the training data, with one caption each (as a person corrects them) or with all, and
the others are captioned before and after. `hf-captioners train --model` runs with its defaults; `--options` changes
them. A draw that was measured is not run again. Results: `benchmarks/results/correction_loop.json`.

With `--new_words N --earlier_dir FLICKR8K`, captions that use an added word are counted, and those of 200 photographs
of the captioner's own data set that the added words change before any step.
"""

import argparse
import json
import random
import re
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
from hf_captioners.loading import load_captioner
from hf_captioners.metrics.caption_files import MatchedCaptions
from hf_captioners.training.new_words import add_words, unknown_words

EARLIER = 200  # photographs of the captioner's own data set
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


def caption(captioner: str, folder: Path, split: str = "test", count: int | None = None) -> MatchedCaptions:
    """Return the captions and references of the first `count` images (None: all) of a split of a folder."""
    rows = load_split(str(folder), None, split, {})
    rows = rows if count is None else rows.select(range(count))
    return caption_data_set(load_pipeline(captioner, device="cpu"), rows, batch_size=25)


def score(matched: MatchedCaptions) -> float:
    """Return the CIDEr-D of captions."""
    return score_matched(matched, MetricSettings(("cider_d",))).metrics["cider_d"]


def use_of_words(matched: MatchedCaptions, words: set[str]) -> dict[str, int]:
    """Count captions that use one of these words, and those that use one that a reference of the image has."""
    used = [words & set(words_of(text)) for text in matched.predictions]
    right = [some & set(words_of(" ".join(texts))) for some, texts in zip(used, matched.references, strict=True)]
    return {"added_words": len(words), "used": sum(map(bool, used)), "used_rightly": sum(map(bool, right))}


def words_of(text: str) -> list[str]:
    """Split a text into words in lower case."""
    return re.findall(r"\w+", text.lower())


def effect_of_new_words(args: argparse.Namespace, place: Path, after: MatchedCaptions) -> dict:
    """Return how the captions of a trained captioner use the added words, and what adding them changes at once."""
    rows = load_split(str(place / "images"), None, "train", {})
    model, processor = load_captioner(args.model)
    words = unknown_words((text for texts in rows["captions"] for text in texts), processor, args.new_words)
    for part in add_words(model, processor, words):
        part.save_pretrained(place / "started")
    captioners = (args.model, str(place / "started"))
    first, second = (caption(name, args.earlier_dir, "validation", EARLIER).predictions for name in captioners)
    changed = sum(one != other for one, other in zip(first, second, strict=True))
    return {"new_words": args.new_words, **use_of_words(after, set(words)), "changed_before": changed}


def measure(args: argparse.Namespace, count: int, captions: int | None, draw: int) -> dict:
    """Fine-tune on one random draw of photographs; return the scores."""
    new_words = ["--new_words", str(args.new_words)] if args.new_words else []
    place = args.output_dir / "_".join(map(str, (count, captions or "all", draw, *new_words[1:])))
    write_draw(args.data_dir, place / "images", count, captions, draw)
    before = score(caption(args.model, place / "images"))
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
    if command([*typed, *cache, *new_words, *args.options]):
        raise SystemExit("the training failed")
    seconds = time.perf_counter() - start
    matched = caption(str(place / "trained"), place / "images")
    more = effect_of_new_words(args, place, matched) if args.new_words else {}
    return {
        "images": count,
        "captions": captions or 5,
        "draw": draw,
        "before": before,
        "after": score(matched),
        "seconds": seconds,
        **more,
    }


def main() -> None:
    """Run all draws without results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with metadata.jsonl")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--model", help="captioner to begin with; default: the default captioner")
    parser.add_argument("--counts", type=int, nargs="+", default=[25, 50, 100, 150])
    parser.add_argument("--captions", type=int, nargs="+", default=[1, 0], help="captions an image; 0: all")
    parser.add_argument("--new_words", type=int, default=0, help="add words with this many occurrences; 0: none")
    parser.add_argument("--earlier_dir", type=Path, help="Flickr8k, with validation/metadata.jsonl, for --new_words")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further arguments of `train`, last")
    args = parser.parse_args()
    if args.new_words and args.earlier_dir is None:
        parser.error("--new_words needs --earlier_dir")
    args.model = args.model or str(default_model().folder)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    runs = json.loads(args.output.read_text())["runs"] if args.output.exists() else []
    done = {(run["images"], run["captions"], run["draw"], run.get("new_words", 0)) for run in runs}
    for draw in range(args.draws):
        for count in args.counts:
            for captions in args.captions:
                if (count, captions or 5, draw, args.new_words) in done:
                    continue
                runs.append(measure(args, count, captions or None, draw))
                write_results(args.output, {"runs": runs}, records_of(args.output))
                gains = [
                    r["after"] - r["before"] for r in runs if (r["images"], r["captions"]) == (count, captions or 5)
                ]
                print(runs[-1], f"mean gain {statistics.mean(gains):.3f}", flush=True)


if __name__ == "__main__":
    main()
