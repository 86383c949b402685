"""Checkpoints of an earlier version give the same logits and captions."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForImageTextToText, AutoProcessor

from hf_captioners.architectures import ARCHITECTURES
from tests.comparisons import assert_computed_alike

FROZEN = Path(__file__).with_name("frozen")
NAMES = sorted(path.parent.name for path in FROZEN.glob("*/config.json"))
LARGEST = 300_000  # bytes


def test_there_is_one_of_every_architecture():
    assert {name for name, row in ARCHITECTURES.items() if row.package is None} == set(NAMES)


def require_equal_figures(folder: Path) -> None:
    """Check that a checkpoint loads whole, and gives the logits and captions that are stored with it."""
    model, report = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    inputs, expected = load_file(folder / "inputs.safetensors"), load_file(folder / "expected.safetensors")
    with torch.no_grad():
        assert_computed_alike(model(**inputs).logits, expected["logits"], tolerance=1e-5)
        captions = model.generate(pixel_values=inputs["pixel_values"], num_beams=3, max_new_tokens=6)
    assert torch.equal(captions, expected["captions"])
    assert expected["logits"].std() > 0.1, "constant logits"


@pytest.mark.parametrize("name", NAMES)
def test_equal_figures(name, place):
    require_equal_figures(FROZEN / name)
    processor = AutoProcessor.from_pretrained(FROZEN / name)
    assert type(processor).__name__ == f"{ARCHITECTURES[name].prefix}Processor"
    assert processor.tokenizer.decode(processor.tokenizer("a dog")["input_ids"]).strip()


@pytest.mark.parametrize("change", ["renamed", "other values"])
def test_a_changed_weight_is_found(change, tmp_path):
    """A weight that the present code calls otherwise, or whose layout is another one, fails the check above."""
    folder = shutil.copytree(FROZEN / "show_attend_tell", tmp_path / "captioner")
    weights = load_file(folder / "model.safetensors")
    name = max((name for name in weights if "vision" not in name), key=lambda name: weights[name].numel())
    weight = weights.pop(name)
    weights[f"{name}_renamed" if change == "renamed" else name] = weight if change == "renamed" else -weight
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(AssertionError):
        require_equal_figures(folder)


def test_equal_probabilities_of_a_detector():
    folder = FROZEN / "auxiliary" / "attribute_detector"
    detector, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    expected = load_file(folder / "expected.safetensors")["probabilities"]
    with torch.no_grad():
        found = detector(**load_file(folder / "inputs.safetensors")).probabilities
    assert_computed_alike(found, expected, tolerance=1e-5)
    assert expected.std() > 0.01, "constant probabilities"


@pytest.mark.parametrize("name", [*NAMES, "auxiliary/attribute_detector"])
def test_small(name):
    assert sum(path.stat().st_size for path in (FROZEN / name).iterdir()) < LARGEST
