"""A list of damage, against torch and onnxruntime: one line names the captioner, before anything large is made."""

import json
import resource

import pytest

from hf_captioners.cli import main
from tests.variants import slow_unless

from .damaged_captioners import BACKENDS, DAMAGES, ONNX, TORCH, damaged

FAST = (
    *("configuration: cut", "weights: cut", "tokenizer: missing", "tokenizer: without model"),
    "tokenizer: decoder that doubles",
    *("weights: NaN in the decoder", "weights: huge in the decoder"),
    *(
        "generation: num_beams = 1000000",
        "generation: max_new_tokens = 1000000000",
        "generation: max_new_tokens = 500",
    ),
    *("token: start is not in the vocabulary", "image: size of a million pixels", "image: std 0"),
)
# Of the settings of images, torch says the image that cannot be prepared.
BY_IMAGE = ("image: size", "image: crop", "image: negative", "image: mean of text", "image: unknown filter")


@pytest.fixture
def sound(source, exported):
    """A captioner with 40 positions and its export, by back-end."""
    return {TORCH: source, ONNX: exported}


def caption(model, backend, images, output):
    typed = ["--backend", backend, *(["--device", "cpu"] if backend == TORCH else [])]
    return main(["caption", str(images / "scene_000.png"), "--model", str(model), *typed, "--output", str(output)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sound_captioner(backend, sound, images, tmp_path):
    assert caption(sound[backend], backend, images, tmp_path / "o.jsonl") == 0
    assert json.loads((tmp_path / "o.jsonl").read_text())["score"] < -1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", slow_unless(FAST.__contains__, DAMAGES))
def test_damage_is_named_in_one_line(name, backend, sound, images, tmp_path, capsys):
    folder = damaged(sound[backend], tmp_path, backend, DAMAGES[name])
    capsys.readouterr()
    before = resource.getrusage(resource.RUSAGE_SELF)
    status = caption(folder, backend, images, tmp_path / "o.jsonl")
    after = resource.getrusage(resource.RUSAGE_SELF)
    said = capsys.readouterr().err
    if backend == TORCH and name.startswith(BY_IMAGE):
        assert status == 1 and f"The image {images / 'scene_000.png'} cannot be prepared: " in said
    else:
        lines = said.splitlines()
        assert status == 2 and lines[-1].startswith("hf-captioners caption: error: "), said
        assert str(folder) in lines[-1] and len([line for line in lines if "error: " in line]) == 1, said
    assert "Traceback" not in said
    assert after.ru_utime - before.ru_utime < 5
    assert after.ru_maxrss - before.ru_maxrss < 300 * 1024
