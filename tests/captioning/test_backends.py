"""The library that captions where none is typed, and the default captioner on onnxruntime."""

import json
import shutil
from pathlib import Path

import PIL.Image
import pytest

from hf_captioners.captioning import CaptionBatches, backends
from hf_captioners.captioning.backends import choose_backend
from hf_captioners.captioning.batches import job_settings, load_pipeline
from hf_captioners.captioning.caption_files import CaptionFile
from hf_captioners.cli import main
from hf_captioners.default_model import list_models
from hf_captioners.onnx import OnnxCaptioner
from hf_captioners.onnx.onnx_captioner import threads_of_environment

PHOTO = Path(__file__).parents[2] / "docs" / "photo.jpg"
CAPTION = "a man is riding a dirt bike in the woods"
pytestmark = pytest.mark.skipif(not list_models(), reason="the default captioner is not installed")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(backends, "has_gpu", lambda: False)


def test_onnxruntime_where_it_does_all_that_is_asked_for(no_gpu, monkeypatch, tmp_path):
    folder = list_models()[0].folder
    assert {choose_backend(model, {}) for model in (None, "default", str(folder), [str(folder)])} == {"onnx"}
    assert choose_backend(None, {"num_beams": 3, "prompt": "a"}, "cpu", "float32") == "onnx"
    for options in ({"num_beams": 0}, {"penalty_alpha": 0.6}, {"num_return_sequences": 9}, {"bookkeeping": "live"}):
        assert choose_backend(None, options) == "torch", options
    assert choose_backend(None, {}, "cuda") == choose_backend(None, {}, dtype="bfloat16") == "torch"
    assert choose_backend(None, {}, needs_torch=True) == choose_backend([str(folder)] * 2, {}) == "torch"
    assert choose_backend(str(tmp_path), {}) == choose_backend("owner/name", {}) == "torch"
    monkeypatch.setattr(backends, "has_gpu", lambda: True)
    assert (choose_backend(None, {}), choose_backend(None, {}, "cpu")) == ("torch", "onnx")
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert choose_backend(None, {}, "cpu") == "torch"
    shutil.copy(folder / "captioner.json", tmp_path)  # graphs alone: no other library reads them
    assert choose_backend(str(tmp_path), {}, "cuda") == "onnx"


def test_the_default_captioner_has_one_set_of_weights():
    """The graphs read those of the checkpoint, and caption as it does."""
    (listed,) = list_models()
    sizes = {path.name: path.stat().st_size for path in listed.folder.iterdir()}
    assert sum(sizes.values()) - sizes["model.safetensors"] < 1e6 and sum(sizes.values()) < 30e6
    assert json.loads((listed.folder / "captioner.json").read_text())["files"].keys() >= {"model.safetensors"}
    (record,) = OnnxCaptioner()(str(PHOTO), return_scores=True)
    found = {
        backend: CaptionBatches(backend=backend, device="cpu")({"image": [str(PHOTO)]})
        for backend in backends.BACKENDS
    }
    assert record["generated_text"] == found["torch"]["caption"][0] == found["onnx"]["caption"][0] == CAPTION
    assert record["score"] == pytest.approx(found["torch"]["score"][0], abs=1e-4)


def test_a_job_is_not_resumed_with_the_other_library(no_gpu, tmp_path, capsys):
    output, photo = tmp_path / "captions.jsonl", str(PHOTO)
    settings = job_settings(load_pipeline(backend="onnx"), [photo])
    CaptionFile(output, settings).close()
    typed = ["caption", photo, "--output", str(output), "--resume"]
    assert main([*typed, "--backend", "torch", "--device", "cpu"]) == 2
    assert "other settings: backend was 'onnx', is 'torch'" in capsys.readouterr().err
    assert main(typed) == 0
    assert json.loads(output.read_text())["caption"] == CAPTION


def test_options_that_an_exported_captioner_does_not_have(no_gpu, capsys):
    assert main(["caption", str(PHOTO), "--instruction", "Describe it."]) == 2
    assert "`--instruction` is 'Describe it.', and an exported captioner reads images" in capsys.readouterr().err
    for typed, said in (
        (
            "num_beam=3",
            "`--generate` has 'num_beam', which is no option of an exported captioner. Did you mean `num_beams`?",
        ),
        ("num_beams=0", "num_beams` is 0, expected a whole number from 1 to 1,000"),
    ):
        assert main(["caption", str(PHOTO), "--backend", "onnx", "--generate", typed]) == 2
        assert said in capsys.readouterr().err


def test_threads_are_those_of_the_environment(monkeypatch):
    for text, expected in (("3", 3), ("4,2", 4), ("", 0), ("all", 0)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert threads_of_environment() == expected
    with pytest.raises(ValueError, match="`threads` is 0, expected at least 1"):
        load_pipeline(backend="onnx", threads=0)


def test_reading_at_a_reduced_size_keeps_the_size_of_the_captioner(tmp_path):
    """And is part of what captions depend on."""
    PIL.Image.open(PHOTO).resize((2400, 3000)).save(tmp_path / "large.jpg")
    pipeline, paths = load_pipeline(backend="onnx"), [str(tmp_path / "large.jpg")]
    whole, reduced = (CaptionBatches(pipeline, reduced_reading=value).preparation() for value in (False, True))
    assert (whole.min_side, reduced.min_side) == (None, 288)
    pixels = [preparation(paths).items[0]["pixel_values"] for preparation in (whole, reduced)]
    assert pixels[0].shape == pixels[1].shape and 0 < abs(pixels[0] - pixels[1]).mean() < 0.04
    settings = [job_settings(pipeline, paths, reduced_reading=True), job_settings(pipeline, paths)]
    assert settings[0] != settings[1]
