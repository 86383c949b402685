"""Two processes train and evaluate as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.mark.slow
def test_two_processes_are_equal_to_one(tmp_path, scenes, processor, make_captioner):
    """4 steps of 1 x 6 and of 2 x 3 pairs, then 5 pictures captioned by one and by two: nobody twice, nobody left."""
    model = make_captioner()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.encoder_dropout = model.config.cross_attention_dropout = model.config.text_config.resid_pdrop = 0.0
    model.save_pretrained(tmp_path / "captioner")
    processor.save_pretrained(tmp_path / "captioner")
    scenes["train"].save_to_disk(tmp_path / "train")
    scenes["validation"].select(range(5)).save_to_disk(tmp_path / "validation")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    found = []
    for processes, batch_size in ((1, "6"), (2, "3")):
        output = str(tmp_path / f"run{processes}")
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [*(launch if processes > 1 else [sys.executable]), str(SCRIPT), str(tmp_path), output, batch_size]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(Path(output, "found.json").read_text()))
    one, two = found
    assert two["losses"] == pytest.approx(one["losses"], abs=2e-3)
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-3)
    assert len(one["captions"]) == 5
    assert two["captions"] == one["captions"]
    assert two["cider_d"] == pytest.approx(one["cider_d"], abs=1e-6)
