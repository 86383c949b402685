"""Command lines that are run in a new environment: every command, README's lines, and imports of each extra."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PHOTOGRAPH = "a man is riding a dirt bike in the woods"  # as README says
TRAINED = [
    "--max_steps",
    "1",
    "--use_cpu",
    "--recipe",
    "none",
    "--generation_num_beams",
    "1",
    "--cache_features",
    "false",
]
# README's first lines of Python.
README_CODE = """
import hf_captioners
from transformers import pipeline

captioner = pipeline("image-captioning")
print(captioner("photo.jpg")[0]["generated_text"])
"""
PUBLIC_NAMES = """
import importlib
for package in ("", ".captioning", ".data", ".metrics", ".training"):
    module = importlib.import_module("hf_captioners" + package)
    for name in module.__all__:
        getattr(module, name)
print("all names")
"""
# Modules of the library that need an extra, or its packages where no module does.
OF_EXTRAS = {
    "app": "import hf_captioners.review.server, starlette, uvicorn",
    "default": "import hf_captioners_default, onnxruntime",
    "docs": "import mkdocs, material, mkdocstrings",
    "excel": "import openpyxl",
    "export": "import hf_captioners.onnx.exporting, onnx, onnxscript, onnxruntime",
    "heif": "import pillow_heif",
    "metrics-data": "from hf_captioners.metrics import Meteor; Meteor()",
    "peers": "import peft, torchao",
    "peft": "import peft",
    "ray": "import hf_captioners.captioning.ray_engine, ray.data",
    "regions": "import h5py, scipy, pycocotools",
    "serve": "import hf_captioners.server, aiohttp",
    "smolvlm": "import num2words",
    "space": "import gradio",
}


@dataclass(frozen=True)
class Typed:
    """Command line to run, with the text and the exit status that are expected of it.

    Args:
        arguments: of `hf-captioners`, or of `python` if the first one is `-c`.
        said: text that it prints.
        status: its exit status.
    """

    arguments: tuple[str, ...]
    said: str = ""
    status: int = 0


def write_inputs(folder: Path, docs: Path) -> None:
    """Write the inputs of the command lines: photographs, a folder of images with captions, caption tables.

    Args:
        folder: where the lines are typed.
        docs: folder with `photo.jpg` and `plane.jpg`.
    """
    images = folder / "my_images"
    images.mkdir()
    rows = []
    for name, caption in (("photo.jpg", "A man rides a dirt bike."), ("plane.jpg", "A plane is in the sky.")):
        content = (docs / name).read_bytes()
        (folder / name).write_bytes(content)
        for copy in range(12):
            (images / f"{copy}_{name}").write_bytes(content)
            rows.append({"file_name": f"{copy}_{name}", "captions": [caption, caption]})
    (folder / "features").mkdir()
    (images / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tables = {"written": [{"image_id": 1, "caption": "a dog runs"}, {"image_id": 2, "caption": "a red car"}]}
    tables["references"] = [{"image_id": 1, "caption": "a dog runs"}, {"image_id": 2, "caption": "a car"}]
    for name, lines in tables.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def lines_of_every_environment(commands: list[str]) -> Iterator[Typed]:
    """Yield command lines that need no captioner: the help of every command, and commands without models.

    Args:
        commands: names of all commands.
    """
    yield Typed(("--version",), "hf-captioners ")
    for command in commands:
        yield Typed((command, "--help"), f"usage: hf-captioners {command}")
    yield Typed(("-c", PUBLIC_NAMES), "all names")
    yield Typed(("env",), "torch")
    yield Typed(("cache", "--feature_cache_dir", "features"))
    yield Typed(("check-data", "my_images"), "Nothing is wrong")
    yield Typed(("score", "written.jsonl", "references.jsonl"), "cider_d")
    yield Typed(("reproduce", "visualgpt", "--table", "1", "--dry_run"), "hf-captioners train --dataset coco")
    yield Typed(("caption", "missing.jpg", "--model", "nowhere"), "missing.jpg", 2)


def lines_with_default(extras: set[str]) -> Iterator[Typed]:
    """Yield README's lines, and commands with the default captioner and with one trained from it.

    Args:
        extras: those that are installed.
    """
    yield Typed(("caption", "photo.jpg"), PHOTOGRAPH)
    yield Typed(("-c", README_CODE), PHOTOGRAPH)
    yield Typed(("caption", "my_images", "--sidecar"))
    yield Typed(("train", "--model", "default", "--train_dir", "my_images", "--output_dir", "mine", *TRAINED), "Saved")
    yield Typed(("caption", "photo.jpg", "--model", "mine", "--output", "captions.jsonl"))
    yield Typed(("evaluate", "mine", "my_images", "--split", "train", "--metrics", "bleu"), "bleu")
    yield Typed(("explain", "photo.jpg", "--model", "mine", "--output", "explained"))
    if "export" in extras:
        yield Typed(("export", "mine", "--output_dir", "exported"), "Wrote exported")
        yield Typed(("caption", "photo.jpg", "--model", "exported", "--backend", "onnx"))
    else:
        yield Typed(("export", "mine", "--output_dir", "exported"), "pip install 'hf-captioners[export]'", 2)
    yield Typed(("push", "mine", "somebody/mine"), "", 2)  # offline


def lines_without_default() -> Iterator[Typed]:
    """Yield command lines whose error tells what to install."""
    yield Typed(("caption", "photo.jpg"), "pip install 'hf-captioners[default]'", 2)
    yield Typed(("train", "--model", "default", "--train_dir", "my_images", "--output_dir", "mine"), "default]", 2)


def lines(commands: list[str], extras: set[str]) -> list[Typed]:
    """Return the command lines for an environment.

    Args:
        commands: names of all commands.
        extras: those that are installed.
    """
    of_extras = [Typed(("-c", OF_EXTRAS[extra])) for extra in sorted(extras)]
    if extras and "default" not in extras:  # of one extra by itself: the rest is as without it
        return [
            Typed(("--version",), "hf-captioners "),
            Typed(("env",), "torch"),
            Typed(("-c", PUBLIC_NAMES)),
            *of_extras,
        ]
    typed = list(lines_of_every_environment(commands))
    typed += lines_with_default(extras) if "default" in extras else lines_without_default()
    return typed + of_extras
