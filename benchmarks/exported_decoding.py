"""Compare the time from photograph to caption of exported captioners, this library, and `generate()` of transformers.

    python benchmarks/exported_decoding.py photo.jpg --tokenizer $HF_CAPTIONERS_DATA_DIR/gpt2_tokenizer \
        --output benchmarks/results/exported_decoding.json

A VisualGPT of the size of its paper with random weights and a MobileNetV2 as vision model captions one photograph in
one thread. All captions have the same length. In each round every decoder runs once, after one round that is not
counted, and captions with weights that are there already: packing takes no part of the time. Times are medians of user
and system seconds; they begin with the decoded photograph.
"""

import argparse
import copy
import importlib.metadata
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
import torch
from decoding_rivals import with_stock_search
from provenance import processor_with_vectors, write_results
from timing import cpu_seconds
from transformers import AutoTokenizer

from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.onnx import OnnxCaptioner, export_captioner
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor, prepare_gpt2_tokenizer

STOCK = "transformers, stock `generate()`"
IMAGE_SIZE = 224


def make_processor(tokenizer: str) -> VisualGPTProcessor:
    """Build a processor of square photographs and GPT-2 tokens."""
    images = CaptioningImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
    return VisualGPTProcessor(images, prepare_gpt2_tokenizer(AutoTokenizer.from_pretrained(tokenizer)))


def make_config(processor: VisualGPTProcessor, layers: int) -> VisualGPTConfig:
    """Return the paper's configuration with a MobileNetV2."""
    tokenizer = processor.tokenizer
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return VisualGPTConfig(
        text_config={"vocab_size": len(tokenizer), "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_layer": layers},
        vision_config={"model_type": "mobilenet_v2", "image_size": IMAGE_SIZE},
        region_feature_size=1280,
        decoder_start_token_id=ids["bos_token_id"],
        **ids,
    )


def torch_caption(model: Any, processor: Any, photo: PIL.Image.Image, options: dict[str, Any]) -> str:
    """Caption a photograph with torch."""
    with torch.inference_mode():
        inputs = processor(images=photo, return_tensors="pt")
        return processor.decode(model.generate(**inputs, **options)[0])


def in_turn(decoders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Run all decoders once per round; return user and system seconds of each."""
    seconds_of: dict[str, list[float]] = {name: [] for name in decoders}
    for place in range(rounds + 1):
        for name, caption in decoders.items():
            seconds = cpu_seconds(caption)
            if place:  # the first round reads weights and code for the first time
                seconds_of[name].append(seconds)
            print(f"round {place}  {name:<40} {seconds:8.3f} s", flush=True)
    return seconds_of


def main() -> None:
    """Measure all decoders, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo")
    parser.add_argument("--tokenizer", required=True, help="directory or name of GPT-2's tokenizer")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/exported_decoding.json"))
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    processor = make_processor(args.tokenizer)
    model = VisualGPTForConditionalGeneration(make_config(processor, args.layers)).eval()
    options = {"num_beams": args.beams, "max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
    photo = PIL.Image.open(args.photo).convert("RGB")
    sizes: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        decoders: dict[str, Callable[[], Any]] = {
            STOCK: lambda: torch_caption(with_stock_search(model), processor, photo, options),
            "this library, plain weights": lambda: torch_caption(model, processor, photo, options),
        }
        for weights in ("float32", "int8"):
            exported = export_captioner(model, Path(folder, weights), processor, weights=weights)
            sizes[weights] = exported.size / 1e6
            print(f"exported {weights}: {exported.size / 1e6:.0f} MB, {exported.largest_difference:.1e}", flush=True)
            packed = copy.deepcopy(model)
            packed.optimize_for_generation(weights)
            decoders[f"this library, packed weights, {weights}"] = partial(
                torch_caption, packed, processor, photo, options
            )
            decoders[f"onnxruntime, {weights}"] = partial(
                OnnxCaptioner(Path(folder, weights), threads=1), photo, **options
            )
        seconds_of = in_turn(decoders, args.rounds)
    measured = {name: statistics.median(seconds) for name, seconds in seconds_of.items()}
    rows = [
        {
            "what": name,
            "seconds": round(value, 3),
            "least": round(min(seconds_of[name]), 3),
            "most": round(max(seconds_of[name]), 3),
            "speedup": round(measured[STOCK] / value, 2),
        }
        for name, value in measured.items()
    ]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "onnxruntime")}
    result = {
        "setting": {"layers": args.layers, "beams": args.beams, "tokens": args.tokens, "vision": "MobileNetV2"},
        "rounds": args.rounds,
        "machine": f"{processor_with_vectors()}, 1 thread",
        "versions": versions,
        "megabytes": {name: round(size, 1) for name, size in sizes.items()},
        "rows": rows,
    }
    print(json.dumps(result, indent=1))
    write_results(args.output, result)


if __name__ == "__main__":
    main()
