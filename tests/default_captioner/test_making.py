"""The distribution of the default captioner, made from a trained one, built, installed and used."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open

from hf_captioners.captioning import CaptionBatches
from tests.hub.card_rules import card_errors

SOURCE = Path(__file__).parents[2] / "default_captioner"
FROZEN = SOURCE / "frozen_captions.json"
WEIGHTS = SOURCE / "hf_captioners_default" / "captioner"


def load_maker():
    spec = importlib.util.spec_from_file_location("make_default_captioner", SOURCE / "make_default_captioner.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(captioner, images, run_folder):
    """A distribution with the folder of an untrained captioner."""
    copy = shutil.copytree(SOURCE, run_folder / "distribution", ignore=shutil.ignore_patterns("captioner", "build"))
    folder = copy / "hf_captioners_default" / "captioner"
    load_maker().main([captioner, "--validation_dir", str(images), "--split", "train", "--output", str(folder)])
    return folder


def test_it_is_stored_in_half_and_computed_in_full(made, captioner, images):
    """With the captions of the trained one; without code, paths and names of classes."""
    assert {path.stat().st_mode & 0o444 for path in made.iterdir()} == {0o444}
    assert not list(made.glob("*.py")) and "auto_map" not in "".join(p.read_text() for p in made.glob("*config.json"))
    config = json.loads((made / "config.json").read_text())
    assert config["dtype"] == "float32" and "id2label" not in config["vision_config"]
    assert "_name_or_path" not in json.dumps(config)
    with safe_open(made / "model.safetensors", "pt") as file:
        dims = {(len(file.get_slice(name).get_shape()) > 1, file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    assert dims == {(True, "F16"), (False, "F32")}
    facts = json.loads((made / "default_model.json").read_text())
    assert facts["terms"] == "weights for research and education only" and facts["data"] == "images train (10 images)"
    assert set(facts["metrics"]) == {"cider_d", "bleu_4"}
    paths = [str(path) for path in sorted(images.glob("*.png"))]
    stored = CaptionBatches(str(made), device="cpu")
    assert {parameter.dtype for parameter in stored.pipeline.model.parameters()} == {torch.float32}
    whole = CaptionBatches(captioner, device="cpu")({"image": paths})
    assert stored({"image": paths})["score"] == pytest.approx(whole["score"], abs=0.5)


def test_notice_and_licences(made):
    """In the checkpoint, its card and the wheel."""
    notice = (made / "NOTICE").read_text()
    assert notice == (SOURCE / "NOTICE").read_text()
    assert (SOURCE / "LICENSES" / "BSD-3-Clause.txt").read_text().strip() in notice
    for words in ("not under the Apache-2.0", "Artificial Intelligence Research", "ImageNet-1k", "ios-demo-app"):
        assert words in notice
    card = (made / "README.md").read_text()
    assert "license: other" in card and "[NOTICE](NOTICE)" in card


def test_the_card_is_as_the_hub_wants_it(made):
    """That of a folder that is made, and the stored one, which has the section on confidence too."""
    stored = SOURCE / "hf_captioners_default" / "captioner"
    for folder in (made, stored):
        card = ModelCard.load(folder / "README.md")
        assert card_errors(card.data.to_dict()) == []
        assert (card.data.license, card.data.language, card.data.datasets) == ("other", "en", ["flickr8k"])
        assert card.data.library_name == "transformers" and card.data.pipeline_tag == "image-to-text"
        assert {result.metric_type for result in card.data.eval_results} == {"bleu", "cider"}
        assert "| vision model | MobileNetV2" in card.text and "| language model | none" in card.text
    facts = json.loads((stored / "default_model.json").read_text())
    name, parameters = (re.search(rf"\| {row} \| (.+) \|", card.text)[1] for row in ("architecture", "parameters"))
    text = (stored / "README.md").read_text()
    assert text.startswith(load_maker().card(facts, name, int(parameters.replace(",", ""))))


USE = """
import sys, transformers, hf_captioners, torch
pipe = transformers.pipeline("image-captioning")
print(pipe.model.dtype, repr(pipe(sys.argv[1])[0]["generated_text"]))
"""


def test_the_wheel_is_found_and_used_offline(made, images, fork_server, tmp_path):
    """In the pipeline, which says who speaks, and on the command line."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(made.parents[1])]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("hf_captioners_default-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".py")] == ["hf_captioners_default/__init__.py"]
    assert sum(name.endswith(("NOTICE", "BSD-3-Clause.txt", "NonCommercial.txt")) for name in names) == 4
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1"}
    image = str(images / "scene_000.png")
    done = fork_server.run(["-c", USE, image], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    dtype, _, caption = done.stdout.strip().partition(" ")
    assert dtype == "torch.float32" and done.stderr.count("Captioner: hf-captioners-default 1.0.0; CIDEr-D") == 1
    assert "weights for research and education only." in done.stderr and "No model was supplied" not in done.stderr
    done = fork_server.run(["-m", "hf_captioners.cli", "caption", image], env=env, cwd=tmp_path)
    assert done.returncode == 0 and repr(done.stdout.rstrip("\n")) == caption, done.stderr
    assert done.stderr.count("Captioner: hf-captioners-default 1.0.0; CIDEr-D") == 1


@pytest.mark.skipif(not (FROZEN.exists() and WEIGHTS.exists()), reason="the weights are not in this checkout")
def test_frozen_captions():
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    found = CaptionBatches(str(WEIGHTS), device="cpu")({"image": [str(SOURCE.parent / name) for name in frozen]})
    assert dict(zip(frozen, found["caption"], strict=True)) == frozen
