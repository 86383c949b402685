"""Measure the CPU time of a vision model: whole or split batches, merged batch norms, freed memory kept or given back.

    python benchmarks/vision.py --vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf

Every row is a process of its own with one thread, median of `--repeats` passes over one batch; rows are repeated in
turn. "batch as a whole" and "memory given back" together are what plain torch does.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from provenance import write_results
from transformers import AutoConfig

WHOLE, PIECES, MERGED = "whole", "pieces", "pieces, batch norms merged"
ROWS = [(at_once, kept) for at_once in (WHOLE, PIECES, MERGED) for kept in (False, True)]


def measure(vision_model: str, batch: int, size: int, repeats: int, at_once: str, kept: bool) -> dict:
    """Return the median user and system seconds of a batch."""
    from hf_captioners.cli.memory import keep_freed_memory

    if kept and not keep_freed_memory():
        raise SystemExit("This C library has no such setting.")
    import torch

    from hf_captioners.features.extraction import GridExtractor
    from hf_captioners.modeling.layers_vision import VisionBackbone

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if at_once == WHOLE:
        VisionBackbone.pieces = staticmethod(lambda pixel_values: [pixel_values])
    extractor = GridExtractor.from_vision_model(vision_model, image_size=size)
    if at_once == MERGED:
        extractor.fold_batch_norms()
    inputs, seconds = {"pixel_values": torch.randn(batch, 3, size, size)}, []
    extractor(inputs)
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_SELF)
        extractor(inputs)
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds.append((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))
    user, system = (statistics.median(times) for times in zip(*seconds, strict=True))
    return {"user": user, "system": system}


def main() -> None:
    """Measure every setting in processes of its own, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vision_model", required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=288)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/vision.json"))
    args = parser.parse_args()
    if args.row:
        at_once, kept = args.row
        seconds = measure(args.vision_model, args.batch, args.size, args.repeats, at_once, kept == "True")
        print(json.dumps(seconds))
        return
    measured: dict[tuple[str, bool], list[dict]] = {row: [] for row in ROWS}
    for _ in range(3):
        for at_once, kept in ROWS:
            command = [sys.executable, __file__, *sys.argv[1:], "--row", at_once, str(kept)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            measured[at_once, kept].append(json.loads(said.splitlines()[-1]))
    rows = [
        {"images": at_once, "memory": "kept" if kept else "given back"}
        | {name: statistics.median(run[name] for run in runs) for name in ("user", "system")}
        for (at_once, kept), runs in measured.items()
    ]
    total = rows[0]["user"] + rows[0]["system"]
    rows = [row | {"ratio": total / (row["user"] + row["system"])} for row in rows]
    model = AutoConfig.from_pretrained(args.vision_model).model_type
    setting = {"batch": args.batch, "size": args.size, "model": model}
    figures = {"setting": setting, "machine": f"{platform.machine()}, 1 thread", "rows": rows}
    write_results(args.output, figures)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
