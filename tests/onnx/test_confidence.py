"""Confidence of exported captioners: that of the captioner, whose digest the export carries."""

import shutil
from pathlib import Path

import pytest

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.image_list import find_images
from hf_captioners.confidence.calibration import Calibration, NotCalibratedError
from hf_captioners.onnx import export_captioner
from tests.cli.conftest import images, scenes  # noqa: F401
from tests.confidence.conftest import calibrated, calibration_of  # noqa: F401

pytest.importorskip("onnxscript", reason="the export needs the extra `export`")
OPTIONS = {"num_beams": 3, "max_new_tokens": 12, "min_new_tokens": 4}


@pytest.fixture(scope="module")
def exported(calibrated, run_folder):  # noqa: F811
    return export_captioner(calibrated, run_folder / "exported_with_confidence").folder


def test_an_export_has_the_confidence_of_its_captioner(calibrated, exported, images):  # noqa: F811
    paths = find_images([str(images)])[:4]
    expected = CaptionBatches(calibrated, device="cpu", confidence="search", **OPTIONS)({"image": paths})
    found = CaptionBatches(str(exported), backend="onnx", confidence="search", **OPTIONS)({"image": paths})
    assert found["caption"] == expected["caption"]
    for words, others in zip(found["words"], expected["words"], strict=True):
        assert [word["word"] for word in words] == [word["word"] for word in others]
        assert [word["confidence"] for word in words] == pytest.approx(
            [word["confidence"] for word in others], abs=2e-3
        )
    assert "## Confidence" in (exported / "README.md").read_text()


def test_samples_of_an_export_do_not_depend_on_the_batch(exported, images):  # noqa: F811
    paths = find_images([str(images)])[:3]
    captioner = CaptionBatches(str(exported), backend="onnx", confidence="samples", **OPTIONS)
    together = captioner({"image": paths})["confidence"]
    assert [captioner({"image": [path]})["confidence"][0] for path in paths] == pytest.approx(together, abs=2e-3)


def test_digests(calibrated, exported, tmp_path):  # noqa: F811
    """The source's is carried; other graphs are refused, and 8-bit weights need a calibration of their own."""
    source = Calibration.load(exported)
    assert source.source_digest == Calibration.load(Path(calibrated)).digest != source.digest
    folder = shutil.copytree(exported, tmp_path / "exported")
    graph = next(folder.rglob("decoder*.onnx"))
    graph.write_bytes(graph.read_bytes() + b"\0")
    with pytest.raises(NotCalibratedError, match="another captioner"):
        Calibration.load(folder)
    smaller = export_captioner(calibrated, tmp_path / "int8", weights="int8").folder
    with pytest.raises(NotCalibratedError, match="has no calibration"):
        Calibration.load(smaller)
    calibration_of(smaller).save(smaller)
    assert Calibration.load(smaller).source_digest is None
