"""Measure the feature store against M2's HDF5 layout, the two image processors, and loading of COCO captions.

python benchmarks/data.py --images FOLDER_OF_PHOTOGRAPHS --coco FOLDER_OF_CAPTIONS_TRAIN2014_AND_VAL2014

Everything is measured in one run on one core with warm file caches. Rates are medians of repeated passes over the same
rows. Requires h5py.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import h5py  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from known_changes import known_changes, provenance_lines  # noqa: E402
from provenance import records_of, write_results  # noqa: E402

from hf_captioners.features.feature_store import FeatureStore, StoreDescription, StoredKind  # noqa: E402
from hf_captioners.features.feature_store_writer import FeatureStoreWriter  # noqa: E402
from hf_captioners.features.region_source import Regions  # noqa: E402
from hf_captioners.processing.image_processing_captioning import (  # noqa: E402
    CaptioningImageProcessor,
    CaptioningImageProcessorFast,
)

RESULTS = Path(__file__).parent / "results" / "data.json"
PAGE = Path(__file__).parents[1] / "docs" / "region_features.md"
BEGIN, END = "<!-- made by benchmarks/data.py -->\n", "<!-- end -->\n"
STORED, BATCH, REGIONS, SIZE = 300, 20, 50, 2048
LOAD_COCO = """
import re, sys, time
from hf_captioners.data import load_captions
started = time.process_time()
loaded = load_captions("coco", sys.argv[1], official=True, with_images=False, cache_dir=sys.argv[2])
used = time.process_time() - started
captions = {split: sum(map(len, rows["captions"])) for split, rows in loaded.items()}
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(used, peak / 2**20, *captions.values())
"""


def rates(readers: dict[str, Callable[[list[str]], Any]], batches: list[list[str]]) -> dict[str, float]:
    """Return the images per CPU second of each reader, measured alternately."""
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(5):
        for name, read in readers.items():
            started = time.process_time()
            for ids in batches:
                read(ids)
            times[name].append(time.process_time() - started)
    images = sum(map(len, batches))
    return {name: images / statistics.median(each[1:]) for name, each in times.items()}


def time_stores(folder: Path) -> dict[str, Any]:
    """Measure padded reads of random images' regions (up to 50 x 2048) from the feature store and M2's HDF5 file."""
    rng = np.random.default_rng(0)
    kinds: tuple[StoredKind, ...] = ("float32", "float16", "int8")
    with h5py.File(folder / "m2.hdf5", "w") as file:
        writers = {
            kind: FeatureStoreWriter(folder / kind, StoreDescription("x", "1", SIZE, kind, False)) for kind in kinds
        }
        for number in range(STORED):
            features = np.maximum(rng.normal(size=(int(rng.integers(10, 61)), SIZE)), 0).astype(np.float32)
            file[f"{number}_features"] = features
            for writer in writers.values():
                writer.add(str(number), Regions(features))
        for writer in writers.values():
            writer.__exit__(None, None, None)
    stores = {kind: FeatureStore(folder / kind) for kind in kinds}
    file = h5py.File(folder / "m2.hdf5", "r")
    out = np.empty((BATCH, REGIONS, SIZE), np.float32)

    def released(ids: list[str]) -> np.ndarray:
        rows = []
        for image_id in ids:
            row = file[f"{image_id}_features"][()]
            missing = REGIONS - len(row)
            row = np.concatenate([row, np.zeros((missing, SIZE))]) if missing > 0 else row[:REGIONS]
            rows.append(row.astype(np.float32))
        return np.stack(rows)

    def lean(ids: list[str]) -> np.ndarray:
        for place, image_id in enumerate(ids):
            data = file[f"{image_id}_features"]
            count = min(len(data), REGIONS)
            data.read_direct(out[place], np.s_[:count], np.s_[:count])
            out[place, count:] = 0
        return out

    def stored(kind: str) -> Callable[[list[str]], np.ndarray]:
        return lambda ids: stores[kind].read_batch(ids, REGIONS, out=out)["region_features"]

    batches = [[str(number) for number in rng.integers(0, STORED, BATCH)] for _ in range(30)]
    assert all((released(ids) == stored("float32")(ids)).all() for ids in batches)
    readers = {"m2_released": released, "m2_lean": lean} | {kind: stored(kind) for kind in kinds}
    errors = {kind: writers[kind].largest_error for kind in kinds[1:]}
    return {"images_per_cpu_second": rates(readers, batches), "largest_error": errors}


def time_images(folder: Path) -> dict[str, Any]:
    """Measure the exact and the fast image processor on photographs, with 224 x 224 outputs."""
    paths = [str(path) for path in sorted(folder.rglob("*.jpg"))[:128]]
    size = {"height": 224, "width": 224}
    processors = {"exact": CaptioningImageProcessor(size=size), "fast": CaptioningImageProcessorFast(size=size)}
    values = [processor(paths, return_tensors="pt")["pixel_values"] for processor in processors.values()]
    readers = {
        name: (lambda ids, processor=processor: processor(ids, return_tensors="pt"))
        for name, processor in processors.items()
    }
    batches = [paths[first : first + 16] for first in range(0, len(paths), 16)]
    return {
        "images": len(paths),
        "images_per_cpu_second": rates(readers, batches),
        "largest_difference": float((values[0] - values[1]).abs().max()),
    }


def time_coco(folder: Path, scratch: Path) -> dict[str, float]:
    """Measure CPU seconds and peak GiB of loading all COCO captions in a new process without caches (Linux)."""
    command = [sys.executable, "-c", LOAD_COCO, str(folder), str(scratch / "cache")]
    values = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    names = ("cpu_seconds", "peak_gib", "train_captions", "validation_captions")
    return dict(zip(names, map(float, values), strict=True))


def page(figures: dict[str, Any]) -> str:
    """Format the section of the page from the measurements."""
    store, images, coco = figures["store"], figures["images"], figures["coco"]
    rate = store["images_per_cpu_second"]
    rows = [
        f"| {name} | {rate[key]:,.0f} | {rate[key] / rate['m2_released']:.1f} | {error} |"
        for name, key, error in (
            ("M2's HDF5, released loader", "m2_released", ""),
            ("M2's HDF5, lean reader", "m2_lean", ""),
            ("store, float32", "float32", "0"),
            ("store, float16", "float16", f"{store['largest_error']['float16']:.1g}"),
            ("store, int8", "int8", f"{store['largest_error']['int8']:.1g}"),
        )
    ]
    paths = images["images_per_cpu_second"]
    return "\n".join(
        [
            "",
            *provenance_lines(RESULTS.stem, records_of(RESULTS), known_changes()),
            f"Random padded reads of up to {REGIONS} x {SIZE} region features, warm caches, one core, "
            f"{figures['hardware']}:",
            "",
            "| reader | images per CPU second | speed-up over the released loader | largest error (values up to 5) |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Reading and resizing photographs to 224 x 224: `CaptioningImageProcessor` handles {paths['exact']:.0f} "
            f"images per CPU second, `CaptioningImageProcessorFast` {paths['fast']:.0f}. The largest difference of "
            f"their values is {images['largest_difference']:.2g}. The {coco['train_captions']:,.0f} + "
            f"{coco['validation_captions']:,.0f} captions of COCO load in {coco['cpu_seconds']:.1f} CPU seconds with "
            f"{coco['peak_gib']:.2f} GiB of memory.",
            "",
        ]
    )


def main() -> None:
    """Run all measurements, and write results and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--coco", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        figures = {
            "hardware": f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}",
            "store": time_stores(Path(scratch)),
            "images": time_images(args.images),
            "coco": time_coco(args.coco, Path(scratch)),
        }
    write_results(RESULTS, figures)
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(head + BEGIN + page(figures) + END + rest.partition(END)[2], encoding="utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
