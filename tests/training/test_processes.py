"""Two processes train and evaluate as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.modeling.tiny_detectors import FAMILIES, detector_batch
from tests.modeling.tiny_detectors import make_captioner as captioner_with_detector

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path, scenes, processor, make_captioner):
    """A captioner without dropout, and rows."""
    model = make_captioner()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.encoder_dropout = model.config.cross_attention_dropout = model.config.text_config.resid_pdrop = 0.0
    model.save_pretrained(tmp_path / "captioner")
    processor.save_pretrained(tmp_path / "captioner")
    scenes["train"].save_to_disk(tmp_path / "train")
    scenes["validation"].select(range(5)).save_to_disk(tmp_path / "validation")
    return tmp_path


def run(script, processes, *arguments):
    """Run a script of this folder in a number of processes, and return its output."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*(launch if processes > 1 else [sys.executable]), str(HERE / script), *map(str, arguments)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cross_entropy", "scst"])
def test_two_processes_have_the_gradient_of_one(folder, kind):
    """1 x 6 and 2 x 3 images; in self-critical training with given samples and rewards."""
    compare_gradients(folder, kind)


def compare_gradients(folder, kind):
    """Compare the gradient of one step by one process and by two; return it."""
    files = [folder / f"{kind}-{processes}.safetensors" for processes in (1, 2)]
    for processes, (file, images) in enumerate(zip(files, (6, 3), strict=True), 1):
        run("process_gradients.py", processes, folder, file, images, kind)
    one, two = map(load_file, files)
    assert max(gradient.abs().max() for gradient in one.values()) > 1e-4
    assert one.keys() == two.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, atol=1e-5, rtol=0, msg=name)
    return one


@pytest.mark.slow
def test_two_processes_train_detectors(tmp_path):
    """Detectors of every family: each process has two of four images, their gradient is that of all together."""
    run("detector_gradients.py", 2, tmp_path)
    for family in FAMILIES:
        model = captioner_with_detector(family, freeze_vision=False).eval()
        model(**detector_batch(family)).loss.backward()
        expected = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
        found = load_file(tmp_path / family)
        assert found.keys() == expected.keys()
        assert any("encoder.vision." in name for name in found)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3, msg=f"{family}: {name}")


@pytest.mark.slow
def test_sharded_parameters(folder):
    """torch's `fully_shard` on two processes: equal losses and captions, and a checkpoint that loads without it."""
    assert "sharded, trained, saved, reloaded" in run("sharded_parameters.py", 2, folder, folder / "saved")


@pytest.mark.slow
def test_two_processes_are_equal_to_one(folder):
    """4 steps of 1 x 6 and of 2 x 3 pairs, then 5 images captioned by one and by two: each exactly once."""
    found = []
    for processes, batch_size in ((1, 6), (2, 3)):
        output = folder / f"run{processes}"
        run("two_processes.py", processes, folder, output, batch_size)
        found.append(json.loads(Path(output, "found.json").read_text()))
    one, two = found
    assert two["losses"] == pytest.approx(one["losses"], abs=2e-3)
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-3)
    assert len(one["captions"]) == 5
    assert two["captions"] == one["captions"]
    assert two["cider_d"] == pytest.approx(one["cider_d"], abs=1e-6)
