"""Make the folder of the default captioner from a trained one.

    python default_captioner/make_default_captioner.py TRAINED --validation_dir FLICKR8K --frozen IMAGE ...

Matrices and convolutions are stored in float16, everything else in float32; the configuration says float32, in which
the captioner is computed. Code, local paths and names of classes are left out, terms and figures are added.
The figures are those of the stored form; they may differ from those of the trained captioner by 0.002 CIDEr-D.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCardData
from safetensors.torch import load_file, save_file

from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.columns import CaptionBatches
from hf_captioners.captioning.data_set import caption_data_set, load_split
from hf_captioners.captioning.scoring import MetricSettings, score_matched
from hf_captioners.default_model import FACTS_FILE
from hf_captioners.hub.bundling import NOTICE
from hf_captioners.loading import load_captioner
from hf_captioners.metrics.registry import hub_names, score_titles
from hf_captioners.output_files import write_text

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "benchmarks"))

from provenance import run_records, write_results  # noqa: E402

FOLDER = HERE / "hf_captioners_default" / "captioner"
NAME, VERSION = "hf-captioners-default", "1.0.0"
TERMS = "weights for research and education only"
SUMMARY = f"{TERMS.capitalize()}: they were learned from Flickr8k, on a backbone that was trained on ImageNet-1k."
MAX_BYTES, MAX_DIFFERENCE = 24_000_000, 0.002
# Of config.json, at any depth: code, and what only describes where parts came from or names classes of ImageNet.
LEFT_OUT = {"auto_map", "custom_pipelines", "_name_or_path", "id2label", "label2id"}
FIGURES = ("cider_d", "bleu_4")
RESULTS = HERE.parent / "benchmarks" / "results" / "default_captioner.json"
"""What is measured when the folder of this distribution is made; `benchmarks/write_results.py` puts it on a page."""
CARD = """---
{metadata}
---
# {name}

A captioner of photographs, which `hf_captioners` uses where none is named:

```python
import hf_captioners
from transformers import pipeline

print(pipeline("image-captioning")("photo.jpg")[0]["generated_text"])
```

{summary} See [NOTICE](NOTICE).

| property | value |
|---|---|
| architecture | {architecture} |
| parameters | {parameters:,} |
| vision model | MobileNetV2 of torchvision, trained on ImageNet-1k |
| language model | none: the decoder learned English from the captions of Flickr8k alone |
| training data | the 6,000 training photographs of Flickr8k with five captions each |

On {data}, by which its checkpoints were chosen:

| metric | value |
|---|---|
{rows}

Captions may be wrong: it knows the words and scenes of 6,000 photographs of people and dogs in action. Check them
before you use them.
"""


def make(trained: str, output: Path, validation_dir: str | None = None, split: str = "validation") -> dict[str, Any]:
    """Write the folder of the default captioner.

    Args:
        trained: folder of a trained captioner with its backbone.
        output: folder to write; it is replaced.
        validation_dir: folder of the data set on which both forms are measured. None: no figures.
        split: its split.

    Returns:
        The facts of `default_model.json`.

    Raises:
        ValueError: the captioner has no backbone, does not fit into float16 or the size, or loses quality.
    """
    model, processor = load_captioner(trained, dtype="float32")
    if model.config.vision_config is None:
        raise ValueError(f"{trained} reads stored features; expected a captioner of images.")
    model.config.weights_license = {
        "license": "other",
        "license_name": NAME,
        "base_model": NAME,
        "summary": SUMMARY,
        "notice": (HERE / NOTICE).read_text(encoding="utf-8"),
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        for code in folder.glob("*.py"):
            code.unlink()
        for path in folder.glob("*.json"):
            if path.name.endswith("config.json"):
                values = without_code(json.loads(path.read_text(encoding="utf-8")))
                write_text(path, json.dumps(values, indent=2) + "\n")
        store_in_half(folder / "model.safetensors")
        facts, results = described(trained, folder, validation_dir, split)
        write_text(folder / FACTS_FILE, json.dumps(facts, indent=2) + "\n")
        write_text(folder / "README.md", card(facts, type(model).__name__, model.num_parameters()))
        size = results["bytes"] = sum(path.stat().st_size for path in folder.iterdir())
        if size > MAX_BYTES:
            raise ValueError(f"The captioner has {size:,} bytes, expected at most {MAX_BYTES:,}.")
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        for path in folder.iterdir():
            shutil.copyfile(path, output / path.name)  # with the usual permissions, not those of temporary files
    if validation_dir is not None and output == FOLDER:
        write_results(RESULTS, results, run_records(trained))
    return facts


def card(facts: dict[str, Any], architecture: str, parameters: int) -> str:
    """Return the card of the default captioner.

    Args:
        facts: the facts of `default_model.json`.
        architecture: class of the model.
        parameters: number of its parameters.
    """
    types, titles = hub_names(), score_titles()
    results = [
        EvalResult(
            task_type="image-to-text",
            task_name="Image captioning",
            dataset_type="flickr8k",
            dataset_name=facts["data"],
            metric_type=types[name],
            metric_name=titles[name],
            metric_value=value,
        )
        for name, value in facts["metrics"].items()
    ]
    data = ModelCardData(
        language="en",
        license="other",
        license_name=NAME,
        license_link=NOTICE,
        library_name="transformers",
        pipeline_tag="image-to-text",
        tags=["image-captioning", "hf-captioners", "show_attend_tell"],
        datasets=["flickr8k"],
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=NAME,
        eval_results=results or None,
    )
    rows = "\n".join(f"| {titles[name]} | {value:.4f} |" for name, value in facts["metrics"].items())
    known = {"architecture": architecture, "parameters": parameters, "data": facts["data"], "rows": rows}
    return CARD.format(name=NAME, summary=SUMMARY, metadata=data.to_yaml(), **known)


def without_code(values: Any) -> Any:
    """Return a configuration without the fields of `LEFT_OUT`, at any depth."""
    if isinstance(values, list):
        return [without_code(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {name: without_code(value) for name, value in values.items() if name not in LEFT_OUT}


def store_in_half(path: Path) -> None:
    """Store the tensors of two and more dimensions in float16.

    Raises:
        ValueError: a value is too large for it.
    """
    weights = load_file(path)
    for name, values in weights.items():
        if values.ndim > 1 and values.dtype == torch.float32:
            weights[name] = values.half()
            if not bool(torch.isfinite(weights[name]).all()):
                raise ValueError(f"{name} has values up to {values.abs().max():.3g}, too large for float16.")
    save_file(weights, path, metadata={"format": "pt"})


def described(
    trained: str, folder: Path, validation_dir: str | None, split: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts of the stored captioner, and what was measured of it and of the trained one.

    Raises:
        ValueError: its CIDEr-D differs from that of the trained captioner by more than 0.002.
    """
    facts = {"name": f"{NAME} {VERSION}", "metrics": {}, "data": "no data", "terms": TERMS}
    if validation_dir is None:
        return facts, {}
    rows = load_split(validation_dir, None, split, {})
    before, after = (measured(source, rows) for source in (trained, str(folder)))
    print(f"trained: {before}\nstored: {after}")
    if abs(before["cider_d"] - after["cider_d"]) > MAX_DIFFERENCE:
        raise ValueError(f"CIDEr-D is {after['cider_d']:.4f} when stored, and was {before['cider_d']:.4f}.")
    data = f"{Path(validation_dir).resolve().name} {split} ({len(rows):,} images)"
    known = facts | {"metrics": {name: round(after[name], 4) for name in FIGURES}, "data": data}
    return known, {"data": data, "trained": before, "stored": after}


def measured(source: str, rows: Any) -> dict[str, float]:
    """Return the metrics of a captioner, with its generation configuration."""
    matched = caption_data_set(load_pipeline(source, device="cpu"), rows, batch_size=25)
    metrics = score_matched(matched, MetricSettings(("bleu", "cider_d", "cider_d_shuffled"))).metrics
    distinct = len(set(matched.predictions)) / len(matched.predictions)
    return {**{name: metrics[name] for name in (*FIGURES, "cider_d_shuffled")}, "distinct": distinct}


def freeze(folder: Path, images: Sequence[str]) -> None:
    """Write the captions of images, which a test holds, by their paths from the root of the repository."""
    if not images:
        return
    captions = CaptionBatches(str(folder), device="cpu")({"image": list(images)})["caption"]
    names = [Path(image).resolve().relative_to(HERE.parent).as_posix() for image in images]
    text = json.dumps(dict(zip(names, captions, strict=True)), indent=2, ensure_ascii=False)
    write_text(HERE / "frozen_captions.json", text + "\n")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder to write, and the images whose captions are frozen."""
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--frozen", nargs="+", default=[], metavar="IMAGE", help="images whose captions a test holds")
    parser.add_argument("--graphs", action="store_true", help="add graphs for onnxruntime")


def finish(args: argparse.Namespace) -> None:
    """Freeze the captions of images, and add graphs, as `add_output_arguments` says."""
    freeze(args.output, args.frozen)
    if args.graphs:
        from hf_captioners.onnx.shared_weights import add_graphs

        print(f"graphs: logits differ by {add_graphs(args.output):.1e}")


def main(argv: Sequence[str] | None = None) -> None:
    """Make the folder, and the frozen captions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", help="folder of a trained captioner")
    parser.add_argument("--validation_dir", help="folder with the images and captions on which figures are measured")
    parser.add_argument("--split", default="validation", help="its split; default: validation")
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    print(json.dumps(make(args.trained, args.output, args.validation_dir, args.split), indent=2))
    finish(args)


if __name__ == "__main__":
    main()
