"""Compare the CPU time of captioning JPEG files with a vision-language model in this library and in transformers.

    python benchmarks/other_models.py --images PHOTOGRAPHS [--output benchmarks/results/other_models.json]

The model is an untrained LLaVA of 20 million parameters: its speed does not depend on its weights. The plain loop
opens the files of a batch, calls the processor and `generate()`, and decodes the tokens. Rounds alternate, and
the CPU seconds of processes that prepare images are counted, and loading and imports are not.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from provenance import ROOT, write_results

from hf_captioners.captioning.batches import caption_batches
from hf_captioners.captioning.read_ahead import workers_for
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

sys.path.insert(0, str(ROOT))
from tests.tiny_families import VICUNA, ids, tokenizer  # noqa: E402

INSTRUCTION = "Describe this image."
SIDE, PATCH, WIDTH = 224, 16, 384


def build() -> tuple[Any, Any]:
    """Build an untrained LLaVA and its processor."""
    torch.manual_seed(0)
    words = tokenizer(["<image>"], extra_special_tokens={"image_token": "<image>"})
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 5, "num_attention_heads": 6, "intermediate_size": 4 * WIDTH}
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **sizes, "image_size": SIDE, "patch_size": PATCH},
        text_config={"model_type": "llama", **sizes, **ids(words), "num_key_value_heads": 6},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=(SIDE // PATCH) ** 2,
    )
    size = {"height": SIDE, "width": SIDE}
    images = transformers.CLIPImageProcessor(size=size, crop_size=size)
    options: dict[str, Any] = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = transformers.LlavaProcessor(images, words, patch_size=PATCH, chat_template=VICUNA, **options)
    return transformers.LlavaForConditionalGeneration(config).eval(), processor


def plain(model: Any, processor: Any, files: list[str], batch_size: int, tokens: int) -> list[str]:
    """Caption files with transformers alone."""
    captions = []
    content = [{"type": "image"}, {"type": "text", "text": INSTRUCTION}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    for first in range(0, len(files), batch_size):
        images = [Image.open(file).convert("RGB") for file in files[first : first + batch_size]]
        inputs = processor(images=images, text=[text] * len(images), padding=True, return_tensors="pt")
        sequences = model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        rows = sequences[:, inputs["input_ids"].shape[1] :]
        captions += [row.strip() for row in processor.batch_decode(rows, skip_special_tokens=True)]
    return captions


def library(pipeline: Any, files: list[str], batch_size: int, tokens: int) -> list[str]:
    """Caption files with this library, with as many image reading processes as the command line uses."""
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    workers = workers_for(len(files) // batch_size)
    batches = caption_batches(pipeline, files, batch_size, workers, instruction=INSTRUCTION, **options)
    return [record["caption"] for batch in batches for record in batch.records]


def cpu_and_wall_seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the CPU seconds (children counted) and the wall-clock seconds of a call."""
    before, start = os.times(), time.perf_counter()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4]), time.perf_counter() - start


def main() -> None:
    """Measure both, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="folder of JPEG files")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each caption")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", help="result file")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    files = [str(path) for path in sorted(Path(args.images).rglob("*.jpg"))[: args.count]]
    model, processor = build()
    pipeline = ImageCaptioningPipeline(model=model, processor=processor, device="cpu")
    assert plain(model, processor, files[:8], 8, 4) == library(pipeline, files[:8], 8, 4)
    seconds: dict[str, list[tuple[float, float]]] = {"transformers": [], "hf_captioners": []}
    for _ in range(args.rounds):
        job = (files, args.batch_size, args.tokens)
        seconds["transformers"].append(cpu_and_wall_seconds(lambda job=job: plain(model, processor, *job)))
        seconds["hf_captioners"].append(cpu_and_wall_seconds(lambda job=job: library(pipeline, *job)))
        print(*(f"{name} {rounds[-1][0]:.2f} CPU s, {rounds[-1][1]:.2f} s;" for name, rounds in seconds.items()))
    medians = {name: statistics.median(cpu for cpu, _ in rounds) for name, rounds in seconds.items()}
    figures = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "images": len(files),
        "batch_size": args.batch_size,
        "new_tokens": args.tokens,
        "rounds": args.rounds,
        "cpu_seconds": medians,
        "ratio": medians["hf_captioners"] / medians["transformers"],
    }
    print(figures)
    if args.output:
        write_results(args.output, figures)


if __name__ == "__main__":
    main()
