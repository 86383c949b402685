"""Collect the results of a study from the output folders of its runs.

    hf-captioners reproduce self_critical --table scenes --vision_model MOBILENETV2
    python benchmarks/gather_runs.py runs/reproduce/self_critical --commands commands.txt \
        --output benchmarks/results/self_critical.json

For a run of self-critical training two evaluations are kept: the initial one of the captioner, and the last one. Both
use the same decoding on the same images. An earlier output of this script may stand for a folder.
"""

import argparse
import json
import os
import platform
from pathlib import Path

from provenance import run_records, write_results

EVALUATED = ("cider_d", "bleu_4", "distinct", "length", "bad_endings")


def gather(path: Path) -> dict | None:
    """Read the results of one run from its `result.json`; None if it is unfinished."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if result["status"] != "done":
        return None
    history = json.loads(path.with_name("trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    evaluated = [entry for entry in history if "eval_cider_d" in entry]
    kept = ("table", "row", "regime", "seed", "seconds", "figures")
    run = {name: result[name] for name in kept if name in result}  # an interrupted run has no time
    arguments = result["arguments"]
    if "--learning_rate" in arguments:
        run["learning_rate"] = float(arguments[arguments.index("--learning_rate") + 1])
    if evaluated and not evaluated[0]["step"]:
        for when, entry in (("before", evaluated[0]), ("after", evaluated[-1])):
            run[when] = {"step": entry["step"]} | {name: entry[f"eval_{name}"] for name in EVALUATED}
    return run


def main() -> None:
    """Collect the results of all runs, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", type=Path, help="output folders of `hf-captioners reproduce`, or outputs")
    parser.add_argument("--commands", type=Path, required=True, help="text file with the commands of the runs")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    runs, records = [], []
    for part in args.parts:
        if part.suffix == ".json":
            earlier = json.loads(part.read_text(encoding="utf-8"))
            runs += earlier["runs"]
            records += earlier["provenance"]
            continue
        gathered = {path: gather(path) for path in sorted(part.rglob("result.json"))}
        complete = {path: run for path, run in gathered.items() if run}
        if len(complete) < max(len(gathered), 1):
            parser.error(f"{len(complete)} of {len(gathered)} runs in {part} are complete, expected all.")
        runs += complete.values()
        records += [record for path in complete for record in run_records(path.parent, part)]
    figures = {
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU",
        "commands": args.commands.read_text(encoding="utf-8"),
        "after": "last",
        "runs": runs,
    }
    write_results(args.output, figures, records, measured_here=False)
    print(f"{len(runs)} runs")


if __name__ == "__main__":
    main()
