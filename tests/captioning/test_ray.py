"""`caption --engine ray`: the rows and errors of the command without it, also when it is killed and resumed.

The commands run in processes of their own, which start Ray, or use the cluster of `RAY_ADDRESS`.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from hf_captioners.captioning.columns import PreparedBatch
from hf_captioners.captioning.ray_engine import RayEngine, table_of, value_of
from hf_captioners.cli import main

from .awkward_images import write_awkward_images

SECONDS = 900  # of a job


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    folder = tmp_path_factory.mktemp("awkward")
    write_awkward_images(folder)
    return folder


def command_of(folder, captioner, output, *more):
    options = ["--num_beams", "1", "--device", "cpu", "--batch_size", "4", "--max_new_tokens", "8"]
    return ["caption", str(folder), "--model", str(captioner), "--output", str(output), *options, *more]


def start(command, tmp_path, log):
    environment = os.environ | {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "hf_captioners.cli", *command],
        cwd=tmp_path,
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def run(command, tmp_path):
    with open(tmp_path / "log.txt", "w") as log:
        status = start(command, tmp_path, log).wait(SECONDS)
    return status, (tmp_path / "log.txt").read_text()


def faults(text):
    return re.findall("^not captioned: .*$", text, re.MULTILINE)


def test_wrong_arguments_are_told(captioner, tmp_path, capsys, monkeypatch):
    for typed, said in (
        (["--actors", "2"], "`--actors` is about an engine: give `--engine ray`"),
        (["--engine", "ray", "--actors", "0"], "`--actors` is 0, expected at least 1"),
    ):
        assert main(command_of(tmp_path, captioner, tmp_path / "captions.jsonl", *typed)) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    assert main(command_of(tmp_path, captioner, tmp_path / "captions.jsonl", "--engine", "ray")) == 2
    assert "pip install 'hf-captioners[ray]'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_rows_and_errors_are_equal(awkward, captioner, tmp_path, capsys, workers):
    """In the same order; nothing is written into the home folder."""
    pytest.importorskip("ray")
    assert main(command_of(awkward, captioner, tmp_path / "here.jsonl")) == 1
    expected = faults(capsys.readouterr().err)
    command = command_of(awkward, captioner, tmp_path / "ray.jsonl", "--engine", "ray", "--workers", workers)
    status, log = run(command, tmp_path)
    assert status == 1, log[-3000:]
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert faults(log) == expected and len(expected) == 5
    assert not (tmp_path / ".ray").exists()


@pytest.mark.slow
def test_a_killed_job_is_resumed(awkward, captioner, tmp_path):
    """Five times, after a random number of rows."""
    pytest.importorskip("ray")
    assert main(command_of(awkward, captioner, tmp_path / "here.jsonl")) == 1
    output, partial = tmp_path / "ray.jsonl", tmp_path / "ray.jsonl.partial"
    command = command_of(awkward, captioner, output, "--engine", "ray", "--workers", "1", "--resume")
    moments = sorted(random.Random(1).sample(range(2, 29), 5))
    for lines in moments:
        with open(tmp_path / "log.txt", "w") as log:
            job = start(command, tmp_path, log)
            while job.poll() is None and (not partial.exists() or partial.read_bytes().count(b"\n") < lines):
                time.sleep(0.01)
            assert job.poll() is None, (tmp_path / "log.txt").read_text()[-3000:]
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert run(command, tmp_path)[0] == 1
    assert output.read_bytes() == (tmp_path / "here.jsonl").read_bytes()


def test_nothing_is_left_of_a_job():
    """Ray is not started for it; the extra may be absent."""
    engine = object.__new__(RayEngine)
    assert list(engine.columns(None, [], 1, {})) == []


def test_values_pass_as_tables():
    """Tensors keep their number format, also those that NumPy does not have, and errors stand beside them."""
    tensors = {"a": torch.rand(2, 3), "b": torch.rand(2).bfloat16(), "c": torch.tensor(True)}
    value = PreparedBatch([tensors], [None, "too thin"])
    found = value_of(table_of("column", value), "column")
    assert found.errors == value.errors and found.items[0].keys() == tensors.keys()
    for name, tensor in value.items[0].items():
        assert found.items[0][name].dtype == tensor.dtype and torch.equal(found.items[0][name], tensor)
