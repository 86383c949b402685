"""Compare a detector's regions with the grid of its backbone, from finished runs on drawn scenes.

    python examples/train_detector.py --output_dir runs/scene_detector
    hf-captioners train image_transformer/scene_regions.yaml \
        --vision_model runs/scene_detector --output_dir runs/scene_regions
    hf-captioners train image_transformer/scene_regions.yaml \
        --vision_model runs/scene_detector/backbone --output_dir runs/scene_grid
    python benchmarks/regions.py runs/scene_detector --regions runs/scene_regions --grid runs/scene_grid

Both captioners are the Image Transformer of the same recipe and seed, trained for equally many steps.
"""

import argparse
import json
import os
import platform
from pathlib import Path

from PIL import Image
from provenance import run_records, write_results

from hf_captioners.loading import load_captioner

SCORES = ("bleu_4", "cider_d", "cider_d_shuffled", "images")


def figures_of(folder: Path) -> dict:
    """Return the scores and the training length of a finished run."""
    results = json.loads((folder / "test_results.json").read_text(encoding="utf-8"))
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    model, processor = load_captioner(str(folder))
    regions_of_image = model.get_region_features(**processor(images=Image.new("RGB", (128, 128)), return_tensors="pt"))
    regions = regions_of_image.region_features.shape[1]
    return {name: results[name] for name in SCORES} | {"steps": state["global_step"], "regions": regions}


def main() -> None:
    """Read the runs, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detector", type=Path, help="output of examples/train_detector.py")
    parser.add_argument("--regions", type=Path, required=True, help="captioner on the detector's regions")
    parser.add_argument("--grid", type=Path, required=True, help="captioner on the grid of its backbone")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/regions.json"))
    args = parser.parse_args()
    result = {
        "detector": json.loads((args.detector / "detection.json").read_text(encoding="utf-8")),
        "regions": figures_of(args.regions),
        "grid": figures_of(args.grid),
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU, shared with other work",
    }
    runs = [record for path in (args.detector, args.regions, args.grid) for record in run_records(path)]
    write_results(args.output, result, runs, measured_here=False)
    print({name: result[name]["cider_d"] for name in ("regions", "grid")})


if __name__ == "__main__":
    main()
