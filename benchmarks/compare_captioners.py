"""Compare a captioner with smaller forms of it: exported, 8-bit weights, trimmed vocabulary.

    python benchmarks/compare_captioners.py runs/aoanet runs/aoanet_float32 runs/aoanet_int8 \
        --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --output benchmarks/results/exported_captions.json

All caption the same validation photographs, one after another in one thread, with beam search. The result has how many
captions are equal, CIDEr-D against all references, the size of weights and tokenizer, and CPU seconds per photograph.
"""

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from provenance import write_results

from hf_captioners.data import load_captions
from hf_captioners.loading import load_captioner
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.onnx import OnnxCaptioner
from hf_captioners.onnx.onnx_facts import FACTS_FILE

FILES = ("*.safetensors", "tokenizer.json", "onnx/*.onnx")


def captioning_function(folder: Path, options: dict[str, Any]) -> Callable[[Any], str]:
    """Load an exported folder or a checkpoint as a function from a photograph to its caption."""
    if (folder / FACTS_FILE).is_file():
        captioner = OnnxCaptioner(folder, threads=1)
        return lambda photo: captioner(photo, **options)[0]["generated_text"]
    model, processor = load_captioner(str(folder), dtype=torch.float32)

    def caption(photo: Any) -> str:
        with torch.inference_mode():
            return processor.decode(model.generate(**processor(images=photo, return_tensors="pt"), **options)[0])

    return caption


def main() -> None:
    """Caption photographs with each captioner, compare captions and scores, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captioner", type=Path, help="directory of the captioner")
    parser.add_argument("others", type=Path, nargs="+", help="exported folders, or directories of other captioners")
    parser.add_argument("--names", nargs="+", help="names for the table; default: those of the folders")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--images", type=int, default=1000, help="the first validation photographs; default: 1000")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--commands", type=Path, help="text file with the commands that made the captioners")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = {"num_beams": args.beams, "max_new_tokens": 20}
    rows = load_captions("caption_folder", data_dir=args.data_dir, split="validation")
    rows = rows.select(range(min(args.images, len(rows))))
    references = rows["captions"]
    captions: list[list[str]] = []
    table = []
    folders = [args.captioner, *args.others]
    for name, folder in zip(args.names or [folder.name for folder in folders], folders, strict=True):
        caption = captioning_function(folder, options)
        caption(rows[0]["image"])  # the first call prepares more
        start = time.process_time()
        captions.append([caption(row["image"]) for row in rows])
        spent = (time.process_time() - start) / len(rows)
        size = sum(path.stat().st_size for pattern in FILES for path in folder.glob(pattern))
        table.append(
            {
                "what": name,
                "equal": sum(a == b for a, b in zip(captions[0], captions[-1], strict=True)),
                "cider_d": compute_caption_metrics(captions[-1], references, metrics=("cider_d",))["cider_d"],
                "distinct": len({*captions[-1]}),
                "megabytes": round(size / 1e6, 1),
                "cpu_seconds": round(spent, 3),
            }
        )
        print(table[-1], flush=True)
    result = {
        "images": len(rows),
        "beams": args.beams,
        "machine": f"{platform.machine()}, 1 thread",
        "rows": table,
        "examples": captions[0][:5],
        "commands": args.commands.read_text() if args.commands else None,
    }
    write_results(args.output, result)


if __name__ == "__main__":
    main()
