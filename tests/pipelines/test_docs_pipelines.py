"""All code blocks of docs/pipelines.md, docs/processors.md and of the pipeline's docstring run, in order."""

import inspect
import re
from pathlib import Path

import numpy as np
import PIL.Image
import transformers

from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline, bundle_pipeline

from .tiny_captioners import save

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("pipelines.md", "processors.md")


def test_code_blocks_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    save("visualgpt", tmp_path / "my_captioner")
    bundle_pipeline("my_captioner")
    save("blip", tmp_path / "my_blip")
    transformers.ViTImageProcessor().save_pretrained("my_backbone")
    for name, mode in (("photo.jpg", "RGB"), ("other.png", "RGBA")):
        pixels = np.random.default_rng(0).integers(0, 256, (40, 50, len(mode)), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(name)
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in PAGES]
    text = "\n".join([*pages, inspect.getdoc(ImageCaptioningPipeline)])
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    names: dict = {}
    for block in blocks:
        if "import gradio" in block:
            continue  # tests/hub/test_space_page.py runs it, where Gradio is installed
        exec(compile(block, "pipelines.md", "exec"), names)
    assert len(blocks) >= 10
    assert names["record"]["generated_text"] and len(names["record"]["tokens"]) == len(names["record"]["token_scores"])
