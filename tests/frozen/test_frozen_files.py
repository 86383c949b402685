"""Files of earlier versions: an export gives the same captions, a feature store the same regions, a run goes on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hf_captioners.cli import main
from hf_captioners.features.feature_store import FeatureStore
from hf_captioners.onnx import OnnxCaptioner

from .make_frozen import CAPTIONER, FOLDER, KINDS, OPTIONS, STEPS, TRAIN, losses_of

VERSIONS = sorted(path.parent.name for path in FOLDER.glob("*/run"))
LARGEST = 600_000  # bytes
# A step of the number formats, as a share of the largest value of a region.
TOLERANCES = {"float32": 0.0, "float16": 2**-11, "int8": 1 / 127}


@pytest.fixture(params=VERSIONS)
def version(request, tmp_path) -> Path:
    """A copy of the files of a version."""
    return shutil.copytree(FOLDER / request.param, tmp_path / "version")


@pytest.fixture
def typed(version, monkeypatch) -> Path:
    """The folder in which the run of that version is resumed."""
    work = version.parent
    shutil.copytree(CAPTIONER, work / "captioner")
    (version / "run" / "images").rename(work / "images")
    (version / "run").rename(work / "run")
    monkeypatch.chdir(work)
    return work


def require_captions(version: Path) -> None:
    """Check the captions and scores of an export."""
    captioner = OnnxCaptioner(version / "export")
    found = captioner([str(path) for path in sorted((version / "run" / "images").glob("*.png"))], **OPTIONS)
    expected = json.loads((version / "export" / "expected.json").read_text())
    assert [[one["generated_text"] for one in image] for image in found] == [
        [one["generated_text"] for one in image] for image in expected
    ]
    scores = [[one["score"] for one in image] for image in expected]
    assert [[one["score"] for one in image] for image in found] == [pytest.approx(image, abs=1e-4) for image in scores]


def require_regions(folder: Path, kind: str) -> None:
    """Check the regions of a feature store."""
    store, expected = FeatureStore(folder / kind), load_file(folder / f"{kind}.safetensors")
    assert list(store) == [f"image {number}" for number in range(5)]
    for number in range(5):
        regions, features = store[f"image {number}"], expected[f"{number}.features"]
        assert np.array_equal(regions.boxes, expected[f"{number}.boxes"])
        limit = TOLERANCES[kind] * np.abs(features).max()
        assert np.abs(regions.features.astype(np.float32) - features).max() <= limit


def require_resumed(work: Path, capsys) -> None:
    """Resume the run, and check the losses of all its steps."""
    assert main([*TRAIN, "--resume"]) == 0, capsys.readouterr().err
    assert f"Resuming from run/checkpoint-{STEPS // 2}" in capsys.readouterr().out.replace("\\", "/")
    expected = json.loads((work / "run" / "expected.json").read_text())["losses"]
    assert losses_of(work / "run") == pytest.approx(expected, abs=1e-4) and len(expected) == STEPS
    assert len(set(expected)) == STEPS


def test_an_export(version):
    require_captions(version)


@pytest.mark.parametrize("kind", KINDS)
def test_a_feature_store(version, kind):
    require_regions(version / "feature_store", kind)


def test_a_run_is_resumed(typed, capsys):
    require_resumed(typed, capsys)


@pytest.mark.parametrize("name", VERSIONS)
def test_small_and_without_paths(name):
    files = [path for path in (FOLDER / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST
    assert not [path for path in files if str(Path.home()).encode() in path.read_bytes()]


def test_other_files_are_found(version):
    """An export of another captioner, and a store of other features, fail the checks above."""
    expected = version / "export" / "expected.json"
    expected.write_text(expected.read_text().replace("ball", "cat", 1))
    with pytest.raises(AssertionError):
        require_captions(version)
    stored = version / "feature_store"
    shutil.copy(stored / "float16" / "store.json", stored / "int8" / "store.json")
    with pytest.raises((AssertionError, ValueError)):
        require_regions(stored, "int8")


def test_another_state_of_a_run_is_found(typed, capsys):
    """A run that does not go on with its optimizer ends with other losses."""
    path = typed / "run" / "checkpoint-2" / "optimizer.pt"
    state = torch.load(path, weights_only=True)
    for moments in state["state"].values():
        moments["exp_avg"] = moments["exp_avg"] * -20
    torch.save(state, path)
    with pytest.raises(AssertionError):
        require_resumed(typed, capsys)
