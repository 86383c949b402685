"""Measure the detector's share of the time from a photograph to its caption.

    python benchmarks/detector.py

An RT-DETR with a ResNet-18 and an Image Transformer of the published size on its 50 best queries, with random weights,
on one thread: CPU seconds per image of the vision part, and of `generate()` with 5 beams and 20 forced tokens, which
includes it. Medians of `--repeats` passes over one batch.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from provenance import write_results
from timing import median_cpu_seconds
from transformers import RTDetrConfig, RTDetrForObjectDetection

from hf_captioners.modeling.configuration_image_transformer import ImageTransformerConfig
from hf_captioners.modeling.modeling_image_transformer import ImageTransformerForConditionalGeneration

RESULTS = Path(__file__).parent / "results" / "detector.json"
BACKBONE = {
    "model_type": "rt_detr_resnet",
    "layer_type": "basic",
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "out_features": ["stage2", "stage3", "stage4"],
}
DETECTOR = {"encoder_in_channels": [128, 256, 512], "decoder_layers": 3, "hidden_expansion": 0.5}
REGIONS, TOKENS = 50, 20


def row(model: Any, size: int, images: int, repeats: int) -> dict[str, float]:
    """Measure CPU seconds of detection and captioning for images of one size."""
    pixels = torch.randn(images, 3, size, size)
    forced = {"num_beams": 5, "min_new_tokens": TOKENS, "max_new_tokens": TOKENS}
    with torch.no_grad():
        part = median_cpu_seconds(lambda: model.get_region_features(pixel_values=pixels), repeats)
        whole = median_cpu_seconds(lambda: model.generate(pixel_values=pixels, **forced), repeats)
    return {"size": size, "vision": part / images, "caption": whole / images}


def main() -> None:
    """Measure all image sizes, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[640, 384], help="sides of the images in pixels")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    detector = RTDetrForObjectDetection(RTDetrConfig(backbone_config=BACKBONE, **DETECTOR))
    choice = {"vision_max_regions": REGIONS, "vision_grid_size": None, "region_feature_size": detector.config.d_model}
    config = ImageTransformerConfig(vision_config=detector.config, **choice)
    model = ImageTransformerForConditionalGeneration(config).eval()
    model.optimize_for_generation()
    rows = []
    for size in args.sizes:
        rows.append(row(model, size, args.images, args.repeats))
        print(json.dumps(rows[-1]), flush=True)
    setting = {"images": args.images, "regions": REGIONS, "tokens": TOKENS, "parameters": model.num_parameters()}
    result = {"setting": setting, "machine": f"{platform.machine()}, 1 thread", "rows": rows}
    write_results(args.output, result)


if __name__ == "__main__":
    main()
