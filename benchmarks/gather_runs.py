"""Gather the figures of a study from the folders that its runs left.

    hf-captioners reproduce self_critical --table scenes --vision_model MOBILENETV2
    python benchmarks/gather_runs.py runs/reproduce/self_critical --commands commands.txt \
        --output benchmarks/results/self_critical.json

Of a run of self-critical training two evaluations are kept: that of the captioner which it started from, and the best
one of all later ones, by the same search on the same images.
"""

import argparse
import json
import os
import platform
from pathlib import Path

EVALUATED = ("cider_d", "bleu_4", "distinct", "length", "bad_endings")


def gather(path: Path) -> dict | None:
    """What the run with this `result.json` measured; None if it did not come to its end."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if result["status"] != "done":
        return None
    history = json.loads(path.with_name("trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    evaluated = [entry for entry in history if "eval_cider_d" in entry]
    told = ("table", "row", "regime", "seed", "seconds", "figures")
    run = {name: result[name] for name in told if name in result}  # the time of an interrupted run is not known
    if evaluated and not evaluated[0]["step"]:
        best = max((entry for entry in evaluated if entry["step"]), key=lambda entry: entry["eval_cider_d"])
        for when, entry in (("before", evaluated[0]), ("after", best)):
            run[when] = {"step": entry["step"]} | {name: entry[f"eval_{name}"] for name in EVALUATED}
    return run


def main() -> None:
    """Gather and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output folder of `hf-captioners reproduce`")
    parser.add_argument("--commands", type=Path, required=True, help="text file with the commands that made the runs")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    figures = {
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU",
        "commands": args.commands.read_text(encoding="utf-8"),
        "runs": [run for path in sorted(args.folder.rglob("result.json")) if (run := gather(path))],
    }
    args.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"{len(figures['runs'])} runs")


if __name__ == "__main__":
    main()
