"""Measure captioning of many images: idle time, memory, and the overhead of Ray.

    python benchmarks/scale.py waiting --images photographs
    python benchmarks/scale.py memory
    python benchmarks/scale.py ray --images photographs

Each part writes its own rows of `benchmarks/results/scale.json`; the machine does nothing else meanwhile. `waiting`
and `ray` use the default captioner as it is, in one thread: how long the loop waits for batches that one other process
prepares, and the CPU seconds of an image, those of 1,200 images less those of 200, so that the start does not count
(two starts of Ray differ by as much as 200 images).
`memory` captions 100,000 drawn images of 64 x 64 pixels with a tiny captioner of random weights, greedily.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from provenance import records_of, write_results

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

RESULTS = Path(__file__).parent / "results" / "scale.json"
COMMAND = [sys.executable, "-m", "hf_captioners.cli", "caption"]
FEW = 200  # images of the shorter job of `ray`
BETWEEN_READINGS = 0.5  # seconds; more often, the readings themselves would keep a processor from the job
TICKS = os.sysconf("SC_CLK_TCK")
WORDS = "a black white red green blue small large circle square dog man is on in of two three and the"


def waiting(images: Sequence[Path], batch_size: int) -> dict[str, Any]:
    """Caption in this process; return the seconds in which captioning waited for the next batch."""
    import torch

    from hf_captioners.captioning import batches
    from hf_captioners.default_model import default_model

    torch.set_num_threads(1)
    seconds = []

    def timed(*arguments: Any) -> Iterator[Any]:
        prepared = prepare(*arguments)
        while True:
            start = time.perf_counter()
            try:
                batch = next(prepared)
            except StopIteration:
                return
            finally:
                seconds.append(time.perf_counter() - start)
            yield batch

    prepare, batches.read_ahead = batches.read_ahead, timed
    pipeline = batches.load_pipeline(str(default_model().folder), device="cpu")
    start = time.perf_counter()
    names = [str(path) for path in images]
    captioned = sum(
        len(batch_result.records) for batch_result in batches.caption_batches(pipeline, names, batch_size, workers=1)
    )
    total = time.perf_counter() - start
    return {"images": captioned, "batch_size": batch_size, "seconds": total, "waiting": sum(seconds)}


def write_tiny_captioner(folder: Path) -> None:
    """Save a minimal captioner with random weights."""
    import torch
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    from hf_captioners.training.starting import ModelArguments, start_captioner

    torch.manual_seed(0)
    vision = ViTConfig(
        image_size=64, patch_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    ViTModel(vision).save_pretrained(folder / "vision")
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder / "vision")
    sizes = ["hidden_size=32", "encoder_layers=1", "decoder_layers=1", "num_heads=2", "intermediate_size=64"]
    start = ModelArguments(
        architecture="transformer",
        vision_model=str(folder / "vision"),
        min_word_count=1,
        image_size=64,
        model_config=sizes,
    )
    for part in start_captioner(start, [WORDS])[:2]:
        part.save_pretrained(folder / "captioner")


def draw_images(folder: Path, count: int) -> None:
    """Write images of 64 x 64 pixels, a thousand per folder."""
    from PIL import Image, ImageDraw

    for number in range(count):
        place = folder / f"{number // 1000:03d}"
        if number % 1000 == 0:
            place.mkdir(parents=True)
        image = Image.new("RGB", (64, 64), (number % 256, number // 256 % 256, 128))
        ImageDraw.Draw(image).ellipse((8, 8, 16 + number % 47, 56), (255, 255 - number % 256, 0))
        image.save(place / f"{number:06d}.png", compress_level=1)


def processes_of(parent: int) -> list[int]:
    """Return a process and all its descendants."""
    processes, left = [], [parent]
    while left:
        process = left.pop()
        processes.append(process)
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            with suppress(OSError):
                left += map(int, children.read_text().split())
    return processes


def megabytes(parent: int) -> float:
    """Return the memory of a process and its descendants in MB, shared pages counted once."""
    total = 0
    for process in processes_of(parent):
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024


def memory(count: int, every: int) -> dict[str, Any]:
    """Caption drawn images; return the memory of all processes at regular numbers of images."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_tiny_captioner(folder)
        draw_images(folder / "images", count)
        output = folder / "captions.jsonl"
        typed = [
            str(folder / "images"),
            "--model",
            str(folder / "captioner"),
            "--output",
            str(output),
            "--workers",
            "1",
        ]
        typed += ["--batch_size", "50", "--num_beams", "1", "--max_new_tokens", "10", "--device", "cpu"]
        process = subprocess.Popen([*COMMAND, *typed], stderr=subprocess.DEVNULL)
        working, measurements, lines = output.with_name(output.name + ".partial"), [], 0
        while not working.exists() and process.poll() is None:
            time.sleep(0.1)
        with open(working, "rb") as file:
            while process.poll() is None:
                lines += sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
                if lines >= every * (len(measurements) + 1):
                    measurements.append({"images": lines, "megabytes": round(megabytes(process.pid), 1)})
                time.sleep(0.02)
        if process.returncode:
            raise SystemExit("The command failed.")
        captioned = output.read_bytes().count(b"\n")
    return {"images": captioned, "every": measurements}


def works_for_ray(process: int) -> bool:
    """Return True if a process runs a Ray actor or task, and does not manage a cluster."""
    with suppress(OSError):
        name = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return name.startswith("ray::") and "IDLE" not in name
    return False


def cpu_seconds(arguments: Sequence[str]) -> float:
    """Run `hf-captioners caption`; return the CPU seconds of all its processes."""
    before = os.times()
    child = subprocess.run([*COMMAND, *arguments], stderr=subprocess.PIPE)
    if child.returncode:
        raise SystemExit(child.stderr.decode())
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def ray_cpu_seconds(arguments: Sequence[str]) -> float:
    """Run `hf-captioners caption` on Ray; return the CPU seconds of the command and of Ray's actors and tasks."""
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, start_new_session=True)
    own: dict[int, float] = {}
    workers: dict[int, float] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            for one in processes_of(process.pid):
                with suppress(OSError, IndexError):
                    fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
                    spent = (int(fields[11]) + int(fields[12])) / TICKS
                    if one == process.pid:
                        own[one] = spent
                    elif one in workers or works_for_ray(one):
                        workers[one] = spent
            ended.wait(BETWEEN_READINGS)

    watching = threading.Thread(target=watch)
    watching.start()
    error = process.communicate()[1]
    ended.set()
    watching.join()
    if process.returncode:
        raise SystemExit(error.decode())
    return sum(own.values()) + sum(workers.values())


def ray(images: Sequence[Path], rounds: int, batch_size: int) -> dict[str, Any]:
    """Measure CPU seconds per image without Ray, and with one actor and one reading task."""
    engines: dict[str, list[str]] = {"command line": [], "Ray": ["--engine", "ray", "--actors", "1"]}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    few, many = min(FEW, len(images) // 2), len(images)
    for _ in range(rounds):
        for name, options in engines.items():
            spent = []
            for count in (few, many):
                with tempfile.TemporaryDirectory() as folder:
                    (Path(folder) / "images").mkdir()
                    for path in images[:count]:
                        (Path(folder) / "images" / path.name).symlink_to(path.absolute())
                    typed = [f"{folder}/images", "--output", f"{folder}/captions.jsonl", "--workers", "1"]
                    typed += ["--batch_size", str(batch_size), "--device", "cpu", *options]
                    spent.append((ray_cpu_seconds if options else cpu_seconds)(typed))
            seconds[name].append((spent[1] - spent[0]) / (many - few))
            print(name, spent, flush=True)
    rows = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "images": [few, many],
        "rounds": rounds,
        "batch_size": batch_size,
        "cpu_seconds_an_image": rows,
        "every_round": seconds,
        "ratio": rows["Ray"] / rows["command line"],
    }


def main() -> None:
    """Run the selected part, and add its rows to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("waiting", "memory", "ray"))
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--count", type=int, help="images; default: 2,000, 100,000 and 1,200")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--every", type=int, default=5000, help="images between two readings of the memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    count = args.count or {"waiting": 2000, "memory": 100_000, "ray": 1200}[args.part]
    photographs = sorted(args.images.rglob("*.jpg"))[:count] if args.images else []
    if args.part != "memory" and len(photographs) < count:
        parser.error(f"`--images` has {len(photographs)} photographs, expected {count}.")
    if args.part == "waiting":
        figures = waiting(photographs, args.batch_size)
    elif args.part == "memory":
        figures = memory(count, args.every)
    else:
        figures = ray(photographs, args.rounds, args.batch_size)
    results = json.loads(args.output.read_text()) if args.output.exists() else {}
    results[args.part] = figures | {"machine": f"{platform.machine()}, {os.cpu_count()} processors"}
    write_results(args.output, results, records_of(args.output))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
