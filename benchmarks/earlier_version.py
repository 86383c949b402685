"""Compare CPU seconds and peak memory of this version's command line with those of an earlier commit.

    python benchmarks/earlier_version.py --commit e18b850 --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k/validation \\
        --vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf --tokenizer gpt2

The last commit and the earlier one run in the same Python environment, in turn. Each trains captioners of its own for
one step: Show, Attend and Tell at the size of its Flickr8k recipe, and a VisualGPT of width 256 with 6 layers. Then
`caption`, `extract-features` and `train` run as somebody types them. CPU seconds are user and system time of the
command with its children; figures are medians of the rounds. Results: `benchmarks/results/earlier_version.json`.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provenance import records_of, write_results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "earlier_version.json"
PACKAGES = {
    "hf_captioners": "hf_captioners",
    "modeling": "hf_captioners/modeling",
    "processing": "hf_captioners/processing",
}
SIZES = {
    "show_attend_tell": {
        "architecture": "show_attend_tell",
        "model_config": {"vision_grid_size": 7, "attention_size": 256},
        "per_device_train_batch_size": 64,
    },
    "visualgpt": {
        "architecture": "visualgpt",
        "model_config": {"vision_grid_size": 7, "encoder_layers": 3},
        "per_device_train_batch_size": 25,
    },
}
QUIET = {"eval_strategy": "no", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "image_size": 288}
# What a captioner cannot do without; the rest of the time to the first caption is the library's.
NEEDED = "from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationMixin, Pipeline"
KILOBYTE = 1024  # unit of peak memory on Linux


def sources(commit: str, place: Path) -> Path:
    """Export the packages of a commit to a folder from which they can be imported."""
    archive = place.with_suffix(".tar")
    subprocess.run(["git", "-C", ROOT, "archive", f"--output={archive}", commit, *PACKAGES], check=True)
    shutil.unpack_archive(archive, place)
    for package, inside in PACKAGES.items():
        if inside != package:
            shutil.copytree(place / package, place / inside, dirs_exist_ok=True)
    return place


class Version:
    """Version of the library whose commands are measured.

    Args:
        name: `now` or `earlier`.
        folder: see `sources`.
        place: folder of what its commands write.
        log: file of what they print.
    """

    def __init__(self, name: str, folder: Path, place: Path, log: Path) -> None:
        self.name, self.folder, self.place, self.log = name, folder, place, log
        place.mkdir()

    def run(self, *typed: Any) -> dict[str, float]:
        """Run a command; return its CPU seconds and the peak memory of its largest process in bytes.

        Raises:
            RuntimeError: it failed.
        """
        return self.python("-m", "hf_captioners.cli", *map(str, typed))

    def python(self, *typed: str) -> dict[str, float]:
        """Run Python with this version; see `run`."""
        environment = os.environ | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, *typed]
        with open(self.log, "a") as log:
            child = subprocess.Popen(command, env=environment, cwd=self.place, stdout=log, stderr=log)
            _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{command} ended with {child.returncode}: {self.log.read_text()[-3000:]}")
        return {"cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * KILOBYTE}

    def train(self, captioner: str, args: argparse.Namespace, name: str, **options: Any) -> dict[str, float]:
        """Train a captioner into the folder `name` of this version."""
        parts = {"vision_model": str(args.vision_model)}
        if captioner == "visualgpt":
            parts["language_model"] = str(args.language_model)
        recipe = self.place / f"{name}.yaml"
        recipe.write_text(json.dumps(SIZES[captioner] | QUIET | parts | options))  # JSON is YAML, too
        output = self.place / name
        shutil.rmtree(output, ignore_errors=True)
        return self.run("train", recipe, "--train_dir", args.photographs, "--output_dir", output)

    def caption(self, captioner: str, images: Path, *options: Any) -> dict[str, float]:
        """Caption images with a captioner of this version."""
        output = self.place / "captions.jsonl"
        output.unlink(missing_ok=True)
        command = ("caption", images, "--model", self.place / captioner, "--device", "cpu", "--output", output)
        return self.run(*command, "--num_beams", 5, *options)


def startup(version: Version, args: argparse.Namespace) -> float:
    """Measure the CPU seconds to the caption of one photograph."""
    return version.caption("show_attend_tell", args.first)["cpu"]


def captioning(version: Version, args: argparse.Namespace) -> float:
    """Measure the CPU seconds of captioning all photographs."""
    return version.caption("show_attend_tell", args.photographs)["cpu"]


def extraction(version: Version, args: argparse.Namespace) -> float:
    """Measure the CPU seconds of extracting the features of all photographs."""
    output = version.place / "features"
    shutil.rmtree(output, ignore_errors=True)
    size = ("--vision_grid_size", 7, "--image_size", 288)
    data = ("--data_dir", args.photographs, "--vision_model", args.vision_model, "--output", output)
    device = "--use_cpu" if version.name == "now" else "--cpu"
    return version.run("extract-features", *data, *size, device)["cpu"]


def memory(version: Version, args: argparse.Namespace) -> float:
    """Measure the extra peak memory in bytes of captioning 64 images with 5 beams over one image with one word."""
    many = version.caption("visualgpt", args.photographs, "--batch_size", 64, "--max_new_tokens", 20)
    few = version.caption("visualgpt", args.first, "--batch_size", 1, "--max_new_tokens", 1)
    return many["memory"] - few["memory"]


def epoch(captioner: str) -> Callable[[Version, argparse.Namespace], float]:
    """Return a function that measures an epoch: the difference between two epochs and one."""

    def measure(version: Version, args: argparse.Namespace) -> float:
        features = {"feature_cache_dir": str(version.place / "cache")}
        one, two = (
            version.train(captioner, args, "epochs", num_train_epochs=epochs, **features)["cpu"] for epochs in (1, 2)
        )
        return two - one

    return measure


MEASURES = {
    "startup": ("CPU seconds to the first caption", startup),
    "caption": ("CPU seconds of `caption`, Show, Attend and Tell", captioning),
    "extract": ("CPU seconds of `extract-features`", extraction),
    "memory": ("peak memory of `caption`, 64 images at a time, VisualGPT, MB", memory),
    "train_visualgpt": ("CPU seconds of an epoch, VisualGPT", epoch("visualgpt")),
    "train_show_attend_tell": ("CPU seconds of an epoch, Show, Attend and Tell", epoch("show_attend_tell")),
}


def compare(name: str, versions: list[Version], args: argparse.Namespace) -> dict[str, Any]:
    """Measure both versions; return a table row."""
    text, measure = MEASURES[name]
    values_of: dict[str, list[float]] = {version.name: [] for version in versions}
    for _ in range(args.rounds):
        for version in versions:
            values_of[version.name].append(measure(version, args))
    row: dict[str, Any] = {which: statistics.median(values) for which, values in values_of.items()}
    if name == "startup":
        row["floor"] = statistics.median(versions[0].python("-c", NEEDED)["cpu"] for _ in range(args.rounds))
    images = 1 if name == "startup" else args.images
    return {"measure": text, **row, "ratio": row["now"] / row["earlier"], "images": images}


def prepare(args: argparse.Namespace, place: Path) -> None:
    """Write the photographs with captions, and the language model."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    args.photographs, args.language_model = place / "photographs", place / "gpt2"
    args.photographs.mkdir()
    rows = (args.data_dir / "metadata.jsonl").read_text(encoding="utf-8").splitlines()[: args.images]
    for row in rows:
        name = json.loads(row)["file_name"]
        shutil.copyfile(args.data_dir / name, args.photographs / name)
    (args.photographs / "metadata.jsonl").write_text("\n".join(rows) + "\n")
    args.first = args.photographs / json.loads(rows[0])["file_name"]
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=256, n_layer=6, n_head=4)
    GPT2LMHeadModel(config).save_pretrained(args.language_model)
    tokenizer.save_pretrained(args.language_model)


def main() -> None:
    """Measure all commands, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True, help="the earlier commit")
    parser.add_argument("--data_dir", type=Path, required=True, help="photographs with a metadata.jsonl")
    parser.add_argument("--vision_model", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True, help="of a GPT-2")
    parser.add_argument("--images", type=int, default=500, help="photographs that are used")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = json.loads(args.output.read_text())["rows"] if args.output.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        versions = [
            Version(name, sources(commit, place / f"{name}_sources"), place / name, place / "log.txt")
            for name, commit in (("now", "HEAD"), ("earlier", args.commit))
        ]
        prepare(args, place)
        for version in versions:
            for captioner in SIZES:
                version.train(captioner, args, captioner, max_steps=1)
        for name in args.measures:
            rows[name] = compare(name, versions, args)
            print(json.dumps(rows[name]), flush=True)
            result = {"commit": args.commit, "rounds": args.rounds, "machine": platform.machine(), "rows": rows}
            write_results(args.output, result, records_of(args.output))


if __name__ == "__main__":
    main()
