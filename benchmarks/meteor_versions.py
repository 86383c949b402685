"""Compare METEOR of this version and an earlier commit: CPU seconds, scores, and first use of the tables.

    python benchmarks/meteor_versions.py --commit 1be0327 --meteor pycocoevalcap/meteor \\
        --captions $HF_CAPTIONERS_DATA_DIR/metrics/show_edit_tell_xe.json.gz \\
        --references $HF_CAPTIONERS_DATA_DIR/metrics/references_karpathy_test.json.gz

Both versions run in the same Python environment, in turn, each time in a new process with one thread. CPU seconds are
medians of the rounds, without imports: of building the index of the paraphrases, in the first round, and of scoring.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from earlier_version import sources
from provenance import ROOT, write_results

from hf_captioners.metrics import PTBTokenizer

RESULTS = ROOT / "benchmarks" / "results" / "meteor_versions.json"
PROGRAM = """
import json, sys, time
import pyarrow.compute
from hf_captioners.metrics import Meteor, MeteorTables

predictions, references = json.load(open(sys.argv[1]))
meteor = Meteor(tables=MeteorTables(sys.argv[2], sys.argv[3]))
times = [time.process_time()]
meteor.score(["a"], [["a"]])
times.append(time.process_time())
result = meteor.score(predictions, references)
times.append(time.process_time())
print(json.dumps([times[1] - times[0], times[2] - times[1], result.per_image.tolist()]))
"""


def read_captions(captions: Path, references: Path) -> tuple[list[str], list[list[str]]]:
    """Read predicted and reference captions from two files, tokenised."""
    with gzip.open(captions, "rt", encoding="utf-8") as file:
        predicted = {row["image_id"]: row["caption"] for row in json.load(file)}
    written = defaultdict(list)
    with gzip.open(references, "rt", encoding="utf-8") as file:
        for row in json.load(file)["annotations"]:
            written[row["image_id"]].append(row["caption"])
    images, tokenize = [image for image in predicted if image in written], PTBTokenizer()
    return tokenize([predicted[image] for image in images]), [tokenize(written[image]) for image in images]


def measure(place: Path, arguments: list[str]) -> tuple[float, float, list[float]]:
    """Measure a version in a new process: CPU seconds of first use and of scoring, and the scores."""
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, cwd=place, check=True, capture_output=True, text=True)
    return tuple(json.loads(done.stdout))


def main() -> None:
    """Measure both versions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--meteor", type=Path, required=True, help="folder `meteor` of pycocoevalcap")
    parser.add_argument("--captions", type=Path, required=True)
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    texts = read_captions(args.captions, args.references)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "captions.json")
        file.write_text(json.dumps(texts))
        versions = {"earlier": args.commit, "now": "HEAD"}
        places = {name: sources(commit, Path(folder, name)) for name, commit in versions.items()}
        measured: dict[str, list[Any]] = {name: [] for name in versions}
        for _ in range(args.rounds):
            for name, place in places.items():
                typed = [str(file), str(args.meteor.resolve()), str(Path(folder, f"index_{name}"))]
                measured[name].append(measure(place, typed))
                print(name, *measured[name][-1][:2], flush=True)
    scores = {name: rounds[0][2] for name, rounds in measured.items()}
    figures: dict[str, Any] = {"images": len(texts[0]), "references": sum(map(len, texts[1])), "rounds": args.rounds}
    figures["largest_difference"] = max(abs(a - b) for a, b in zip(*scores.values(), strict=True))
    figures["first_use"] = {name: rounds[0][0] for name, rounds in measured.items()}
    figures["scoring"] = {
        name: statistics.median(round_values[1] for round_values in rounds) for name, rounds in measured.items()
    }
    figures["ratio"] = figures["scoring"]["earlier"] / figures["scoring"]["now"]
    write_results(args.output, figures)


if __name__ == "__main__":
    main()
