"""Gather what self-critical training changed, from the folders that its runs left.

    hf-captioners reproduce self_critical --table scenes --vision_model MOBILENETV2
    python benchmarks/self_critical.py runs/reproduce/self_critical --commands commands.txt

Every run evaluates the captioner that it starts from, and again while it trains: compared are that first evaluation and
the best one of all later ones, by the same search on the same pictures.
"""

import argparse
import json
import os
import platform
from pathlib import Path

FIGURES = ("cider_d", "bleu_4", "distinct", "length", "bad_endings")


def gather(folder: Path) -> dict:
    """What one run changed."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    evaluated = [entry for entry in history if "eval_cider_d" in entry]
    first = evaluated[0]
    best = max((entry for entry in evaluated if entry["step"]), key=lambda entry: entry["eval_cider_d"])
    return {
        **{name: result[name] for name in ("table", "row", "seed", "seconds")},
        "steps": best["step"],
        "before": {name: first[f"eval_{name}"] for name in FIGURES},
        "after": {name: best[f"eval_{name}"] for name in FIGURES},
    }


def main() -> None:
    """Gather and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output folder of `hf-captioners reproduce`")
    parser.add_argument("--commands", type=Path, required=True, help="text file with the commands that made the runs")
    parser.add_argument("--output", type=Path, default="benchmarks/results/self_critical.json")
    args = parser.parse_args()
    runs = [gather(path.parent) for path in sorted(args.folder.rglob("result.json"))]
    figures = {
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU",
        "commands": args.commands.read_text(encoding="utf-8"),
        "runs": runs,
    }
    args.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for run in runs:
        print(run["table"], run["row"], run["seed"], run["before"]["cider_d"], "->", run["after"]["cider_d"])


if __name__ == "__main__":
    main()
