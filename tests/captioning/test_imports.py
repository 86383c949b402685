"""Modules that the captioning of files imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from hf_captioners.default_model import list_models

PHOTO = Path(__file__).parents[2] / "docs" / "photo.jpg"
WITHOUT_TORCH = """
import json, shutil, sys
from pathlib import Path
from hf_captioners.cli import main

def require_none_of(*names):
    assert not set(names) & set(sys.modules), sorted(set(names) & set(sys.modules))

Path("photos").mkdir()
for name in "ab":
    shutil.copy(sys.argv[1], f"photos/{name}.jpg")
Path("photos/metadata.jsonl").write_text("".join(
    json.dumps({"file_name": f"{name}.jpg", "text": "a man rides a bike"}) + chr(10) for name in "ab"
))
typed = ["--batch_size", "1", "--workers", "1", "--device", "cpu"]
assert main(["caption", "photos", *typed, "--output", "captions.jsonl", "--bad_words", "dog"]) == 0
assert main(["caption", "photos", "--device", "cpu", "--sidecar", "--shard", "1/2", "--max_new_tokens", "3"]) == 0
import hf_captioners.review.server, hf_captioners.server.application
require_none_of("torch", "transformers", "datasets", "timm")
evaluated = ["photos", "--split", "train", "--backend", "onnx", "--metrics", "bleu", "--num_beams", "1"]
assert main(["evaluate", "default", *evaluated]) == 0
require_none_of("torch", "transformers", "timm")
"""


@pytest.mark.skipif(not list_models(), reason="the default captioner is not installed")
def test_the_default_captioner_needs_no_torch(tmp_path):
    """To caption files, and for the servers of captions and corrections; nor for figures with `--backend onnx`."""
    command = [sys.executable, "-c", WITHOUT_TORCH, str(PHOTO)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("runs on onnxruntime.") == 2  # of `caption`, twice
    assert "a man is riding a dirt bike in the woods" in (tmp_path / "captions.jsonl").read_text()


@pytest.mark.slow
def test_files_are_captioned_without_libraries_of_data_sets():
    """datasets takes a second to import, timm another one."""
    code = (
        "import sys, hf_captioners.captioning.batches; "
        "heavy = {'datasets', 'pandas', 'timm'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
