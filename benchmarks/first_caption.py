"""Compare the default captioner (onnxruntime) with that of an earlier commit (torch): start, speed, memory, captions.

    pip install --target earlier_packages --no-deps transformers==5.23.0
    python benchmarks/first_caption.py --commit 1be0327 --packages earlier_packages \\
        --photographs $HF_CAPTIONERS_DATA_DIR/coco/images --validation_dir $HF_CAPTIONERS_DATA_DIR/flickr8k/validation

The last commit and the earlier one, which needs an older transformers, run in turn, in one thread. Seconds are user
and system time, figures are medians of the rounds; loading is left out unless the figure is that of a start. Large
photographs are those of `--validation_dir`, enlarged to 12 megapixels, with grain of 4 levels, saved as JPEG. They are
read at a reduced size until 1 in 100 of `--large_photographs` has another caption, or all are read.
Results: `benchmarks/results/first_caption.json`; `--measures` repeats some of them.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from earlier_version import KILOBYTE, ROOT, sources
from provenance import processor_with_vectors, records_of, write_results

RESULTS = ROOT / "benchmarks" / "results" / "first_caption.json"
PHOTO = ROOT / "docs" / "photo.jpg"
BATCH = 16
LARGE_SIDE, GRAIN, QUALITY = 3464, 4.0, 92  # pixels, grey levels, of JPEG
SPEED_IMAGES, LARGE_IMAGES = 100, 20
TIE = 1e-4  # difference of the log-probabilities of two captions
HEAVY = ("torch", "transformers", "datasets", "timm")
TICKS = os.sysconf("SC_CLK_TCK")
# Peak memory of a program in KiB. `ru_maxrss` also counts that of the process which started it.
PEAK = """
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
"""
START = f"""
import json, resource, sys
from hf_captioners.cli import main
{PEAK}
assert main(sys.argv[1:]) == 0
heavy = sorted(set({HEAVY}) & set(sys.modules))
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = used.ru_utime + used.ru_stime
print(json.dumps({{"seconds": seconds, "memory": peak(), "heavy": heavy}}), file=sys.stderr)
"""
# Jobs are [name, images, batch size, options]; the memory is the peak until the job ends.
WORK = f"""
import json, sys, time
from hf_captioners.captioning.batches import caption_batches, load_pipeline
from hf_captioners.cli.memory import keep_freed_memory
{PEAK}
keep_freed_memory()
loading, jobs = json.loads(sys.argv[1])
pipeline = load_pipeline(None, device="cpu", **loading)
found = {{}}
for name, images, batch_size, options in jobs:
    list(caption_batches(pipeline, images[:1], 1, **options))
    start = time.process_time()
    rows = [row for batch in caption_batches(pipeline, images, batch_size, **options) for row in batch.records]
    seconds = time.process_time() - start
    found[name] = {{"seconds": seconds, "memory": peak(), "captions": [row["caption"] for row in rows]}}
print(json.dumps(found))
"""


class Version:
    """Sources of a version, and its way to load the default captioner.

    Args:
        folder: see `sources`.
        loading: arguments of `load_pipeline`.
        packages: folder of packages that it needs in other versions than are installed.
    """

    def __init__(self, folder: Path, loading: dict[str, Any], packages: Path | None = None) -> None:
        self.loading, self.folder = loading, folder
        places = os.pathsep.join(map(str, [folder] if packages is None else [folder, packages.resolve()]))
        self.environment = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def python(self, *typed: str) -> subprocess.CompletedProcess[str]:
        """Run Python with this version."""
        options: dict[str, Any] = {"env": self.environment, "cwd": self.folder, "capture_output": True, "text": True}
        ran = subprocess.run([sys.executable, *typed], **options)
        if ran.returncode:
            raise RuntimeError(ran.stderr[-3000:])
        return ran

    def start(self) -> dict[str, Any]:
        """Caption one photograph with the command line in a new process."""
        return json.loads(self.python("-c", START, "caption", str(PHOTO)).stderr.splitlines()[-1])

    def caption(self, *jobs: tuple[str, list[str], int, dict[str, Any]]) -> dict[str, Any]:
        """Caption images in a new process; see `WORK`."""
        return json.loads(self.python("-c", WORK, json.dumps([self.loading, jobs])).stdout.splitlines()[-1])

    def serving(self, *typed: str) -> subprocess.Popen[str]:
        """Start a command that serves until it is terminated."""
        command = [sys.executable, "-m", "hf_captioners.cli", *typed]
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, **output)


def large_photographs(folder: Path, count: int, place: Path) -> list[str]:
    """Write photographs of 12 megapixels, equal in every call; return their paths."""
    generator = np.random.default_rng(0)
    grain = np.rint(generator.normal(0, GRAIN, (LARGE_SIDE + 256, LARGE_SIDE + 256, 3))).astype(np.int8)
    paths = []
    for photo in sorted(folder.rglob("*.jpg"))[:count]:
        size = (LARGE_SIDE, LARGE_SIDE)
        image = PIL.Image.open(photo).convert("RGB").resize(size, PIL.Image.Resampling.BICUBIC)
        row, column = generator.integers(0, 256, 2)
        levels = np.asarray(image).astype(np.int16)
        levels += grain[row : row + LARGE_SIDE, column : column + LARGE_SIDE]
        path = place / photo.name
        PIL.Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8)).save(path, "JPEG", quality=QUALITY)
        paths.append(str(path))
    return paths


def starts(now: Version, earlier: Version, args: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    """Measure seconds and memory to the first caption, and the imported modules."""
    runs_of: dict[str, list[dict[str, Any]]] = {"now": [], "earlier": []}
    for _ in range(args.rounds):
        for name, version in (("now", now), ("earlier", earlier)):
            runs_of[name].append(version.start())
    rows = {
        name: {
            "seconds": statistics.median(run["seconds"] for run in runs),
            "megabytes": statistics.median(run["memory"] for run in runs) * KILOBYTE / 1e6,
            "heavy": runs[0]["heavy"],
        }
        for name, runs in runs_of.items()
    }
    yield rows | {"ratio": rows["earlier"]["seconds"] / rows["now"]["seconds"]}


def speed(now: Version, earlier: Version, args: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    """Measure seconds per photograph, one by one and in batches, for small and large ones, and the memory.

    Yields:
        After each round the medians of those so far.
    """
    images = [str(path) for path in sorted(args.photographs.iterdir())[:SPEED_IMAGES]]
    large = large_photographs(args.validation_dir, LARGE_IMAGES, place)
    jobs: list[Any] = [(f"batches of {BATCH}", images, BATCH, {}), ("one by one", images, 1, {})]
    jobs += [("large, every pixel", large, BATCH, {})]
    reduced = ("large, reduced", large, BATCH, {"reduced_reading": True})
    seconds_of: dict[str, dict[str, list[float]]] = {}
    for count in range(1, args.rounds + 1):
        for name, result in (("now", now.caption(*jobs, reduced)), ("earlier", earlier.caption(*jobs))):
            for job, one in result.items():
                row = seconds_of.setdefault(job, {})
                row.setdefault(name, []).append(one["seconds"] / len(one["captions"]))
                row.setdefault(f"{name}, megabytes", []).append(one["memory"] * KILOBYTE / 1e6)
            print(json.dumps({job: row[name][-1] for job, row in seconds_of.items() if name in row}), flush=True)
        rows = {
            job: {name: statistics.median(values) for name, values in row.items()} for job, row in seconds_of.items()
        }
        rows["large, reduced"]["earlier"] = rows["large, every pixel"]["earlier"]
        ratios = {job: row | {"ratio": row["earlier"] / row["now"]} for job, row in rows.items()}
        yield {"rounds": count, "jobs": ratios}


def servers(now: Version, earlier: Version, args: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    """Measure the seconds until `serve` answers, and the memory of `serve` and `review` after an image."""
    served = [serve_once(now) for _ in range(args.rounds)]
    folder = place / "reviewed"
    folder.mkdir()
    for path in sorted(args.photographs.iterdir())[:SPEED_IMAGES]:
        shutil.copyfile(path, folder / path.name)
    reviewed = [review_once(now, folder) for _ in range(args.rounds)]
    rows = {"serve": served, "review": reviewed}
    yield {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in rows.items()}


def serve_once(version: Version) -> dict[str, float]:
    """Start the server, request one caption and terminate it."""
    started = time.perf_counter()
    process = version.serving("serve", "--port", "0")
    try:
        address = address_in(process, r"Running on (http://\S+)")
        urllib.request.urlopen(f"{address}/health").read()
        ready = {"seconds": cpu_seconds(process.pid), "wall_seconds": time.perf_counter() - started}
        headers = {"Content-Type": "image/jpeg"}
        urllib.request.urlopen(urllib.request.Request(f"{address}/caption", PHOTO.read_bytes(), headers)).read()
        return ready | {"megabytes": peak_megabytes(process.pid)}
    finally:
        process.kill()
        process.wait()


def review_once(version: Version, folder: Path) -> dict[str, float]:
    """Start the correction page, load images and terminate it."""
    process = version.serving("review", str(folder))
    try:
        address = address_in(process, r"Open (http://\S+)")
        for path in ("", "folder", *(f"images/{number}" for number in range(10))):
            urllib.request.urlopen(address + path).read()
        return {"megabytes": peak_megabytes(process.pid)}
    finally:
        process.kill()
        process.wait()


def address_in(process: subprocess.Popen[str], pattern: str) -> str:
    """Read the address that a server prints."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if match := re.search(pattern, line):
            return match[1].rstrip("/") if "Running" in pattern else match[1]
    raise RuntimeError(f"The server did not start: {printed}")


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_megabytes(process: int) -> float:
    """Return the peak memory of a process in MB."""
    match = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process}/status").read_text())
    assert match is not None
    return int(match[1]) * KILOBYTE / 1e6


def equal(now: Version, earlier: Version, args: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    """Count equal captions of both versions on all validation photographs, and compare their scores."""
    from hf_captioners.metrics import compute_caption_metrics

    lines = (args.validation_dir / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    images = [str(args.validation_dir / row["file_name"]) for row in rows]
    captions = {
        name: version.caption(("all", images, BATCH, {}))["all"]["captions"]
        for name, version in (("now", now), ("earlier", earlier))
    }
    references = [row["captions"] for row in rows]
    scores = {name: compute_caption_metrics(texts, references)["cider_d"] for name, texts in captions.items()}
    differing = [place for place in range(len(rows)) if captions["now"][place] != captions["earlier"][place]]
    shown = [
        {
            "image": rows[place]["file_name"],
            **{name: texts[place] for name, texts in captions.items()},
            "log_probabilities": log_probabilities(images[place], [texts[place] for texts in captions.values()]),
        }
        for place in differing
    ]
    for one in shown:
        one["tie"] = abs(one["log_probabilities"][0] - one["log_probabilities"][1]) < TIE
    yield {"photographs": len(rows), "cider_d": scores, "different": shown}


def log_probabilities(image: str, captions: list[str]) -> list[float]:
    """Return log-probabilities of captions under the default captioner in float32, computed by torch."""
    import torch

    from hf_captioners import load_captioner

    model, processor = load_captioner("default", dtype="float32")
    values = []
    with torch.inference_mode():
        inputs = processor(images=PIL.Image.open(image), return_tensors="pt")
        for caption in captions:
            words = processor.tokenizer(caption, add_special_tokens=False)["input_ids"]
            tokens = torch.tensor([[model.config.decoder_start_token_id, *words, model.config.eos_token_id]])
            logits = model(**inputs, decoder_input_ids=tokens[:, :-1]).logits
            values.append(logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).sum().item())
    return values


def reduced(now: Version, earlier: Version, args: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    """Count large photographs whose caption changes when they are read at a reduced size."""
    from hf_captioners.captioning.batches import caption_batches, load_pipeline

    photos = sorted(args.validation_dir.rglob("*.jpg"))[: args.large_photographs]
    pipeline = load_pipeline(None, backend="onnx", threads=1)
    read, different, limit = 0, 0, len(photos) // 100
    for first in range(0, len(photos), BATCH):
        batch = place / "batch"
        batch.mkdir()
        for photo in photos[first : first + BATCH]:
            shutil.copyfile(photo, batch / photo.name)
        large = place / "large"
        large.mkdir()
        paths = large_photographs(batch, BATCH, large)
        captions = [
            [row["caption"] for found in caption_batches(pipeline, paths, BATCH, **options) for row in found.records]
            for options in ({}, {"reduced_reading": True})
        ]
        read += len(paths)
        different += sum(one != other for one, other in zip(*captions, strict=True))
        shutil.rmtree(batch)
        shutil.rmtree(large)
        print(f"{different} of {read} large photographs have another caption", flush=True)
        yield {"photographs": len(photos), "read": read, "different": different}
        if different >= limit:
            break


MEASURES: dict[str, Callable[[Version, Version, argparse.Namespace, Path], Iterator[dict[str, Any]]]] = {
    "starts": starts,
    "servers": servers,
    "speed": speed,
    "equal": equal,
    "reduced": reduced,
}


def main() -> None:
    """Run all measurements, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True, help="the earlier commit")
    parser.add_argument("--packages", type=Path, help="folder of packages of the earlier commit")
    parser.add_argument("--photographs", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--validation_dir", type=Path, required=True, help="photographs with a metadata.jsonl")
    parser.add_argument("--large_photographs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = json.loads(args.output.read_text())["rows"] if args.output.exists() else {}
    setting = {"commit": args.commit, "rounds": args.rounds, "machine": f"{processor_with_vectors()}, 1 thread"}
    setting |= {"images": SPEED_IMAGES, "large_images": LARGE_IMAGES, "megapixels": LARGE_SIDE**2 / 1e6}
    with tempfile.TemporaryDirectory() as folder:
        now = Version(sources("HEAD", Path(folder, "now")), {"backend": "onnx"})
        earlier = Version(sources(args.commit, Path(folder, "earlier")), {}, args.packages)
        for name in args.measures:
            place = Path(folder, f"files_of_{name}")
            place.mkdir()
            kept = records_of(args.output)
            for figures in MEASURES[name](now, earlier, args, place):
                rows[name] = figures
                print(json.dumps({name: rows[name]}), flush=True)
                write_results(args.output, setting | {"rows": rows}, kept)


if __name__ == "__main__":
    main()
