"""Damaged checkpoints: every command names the file, what is wrong and what to do, before anything large is built."""

import json
import pickle
import resource
import shutil
from pathlib import Path

import pytest
import torch

from hf_captioners.captioning.batches import caption_batches, load_pipeline
from hf_captioners.cli import main
from hf_captioners.loading import load_captioner, load_vision_part

ADVICE = "Copy the file again, or download it again"


@pytest.fixture
def copied(captioner, tmp_path):
    """A copy of the captioner that may be damaged."""
    return Path(shutil.copytree(captioner, tmp_path / "captioner"))


def commands(model, images, folder):
    image = str(images / "scene_000.png")
    data = ["--train_dir", str(images), "--validation_dir", str(images)]
    return [
        ["caption", image, "--model", str(model), "--output", str(folder / "o.jsonl")],
        ["evaluate", str(model), str(images), "--split", "train"],
        ["explain", image, "--model", str(model), "--output", str(folder / "o.png")],
        ["train", "--model", str(model), *data, "--output_dir", str(folder / "out"), "--use_cpu"],
    ]


def test_weights_that_are_cut_in_every_command(copied, images, tmp_path, capsys):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for command in commands(copied, images, tmp_path):
        assert main(command) == 2, command
        message = capsys.readouterr().err
        assert f"{weights} ({weights.stat().st_size:,} bytes) is damaged" in message, command
        assert ADVICE in message and "Traceback" not in message


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.001, 0.3, 0.9])
def test_weights_that_are_cut_anywhere(copied, share):
    weights = copied / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=rf"model.safetensors \(.* bytes\) is damaged: .*{ADVICE}"):
        load_captioner(str(copied))


@pytest.mark.parametrize("name", ["../outside.safetensors", "{folder}/outside.safetensors", "sub/x.safetensors", ".."])
def test_weights_outside_of_the_checkpoint_are_not_read(copied, name):
    """An index could name any file of the machine."""
    name = name.format(folder=copied.parent)
    shutil.move(copied / "model.safetensors", copied.parent / "outside.safetensors")
    index = copied / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"x": name}}))
    with pytest.raises(ValueError, match=r"index\.json names the file .*, expected one beside it"):
        load_captioner(str(copied))
    for content in ("[]", '{"weight_map": 1}'):
        index.write_text(content)
        with pytest.raises(ValueError, match=r"index\.json is damaged: it has no object `weight_map`"):
            load_captioner(str(copied))


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("content", ["harmful", "cut", "empty"])
def test_pickled_weights(copied, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    weights = copied / "pytorch_model.bin"
    torch.save({"weight": torch.ones(300)}, weights)
    whole = weights.read_bytes()
    weights.write_bytes({"harmful": pickle.dumps(Harmful()), "cut": whole[: len(whole) // 2], "empty": b""}[content])
    (copied / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=rf"pytorch_model.bin \(.*{ADVICE}.*save_pretrained"):
        load_captioner(str(copied))
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_other_files_that_are_cut(copied, name):
    path = copied / name
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match=f"{name} is damaged: it is no JSON .*{ADVICE}"):
        load_captioner(str(copied))


CHANGES = {
    "null": lambda config: None,
    "list": lambda config: [config],
    "text as sub-configuration": lambda config: config | {"text_config": "x"},
    "list as sub-configuration": lambda config: config | {"vision_config": [1]},
    "text as number": lambda config: config | {"srau_threshold": "0.2"},
    "number as text": lambda config: config | {"fusion": 3},
    "list as number": lambda config: config | {"encoder_ffn_dim": [3]},
    "no heads": lambda config: config | {"encoder_attention_heads": 0},
    "negative layers": lambda config: config | {"text_config": config["text_config"] | {"n_layer": -1}},
    "a million layers": lambda config: config | {"text_config": config["text_config"] | {"n_layer": 10**6}},
    "a million layers of the encoder": lambda config: config | {"encoder_layers": 10**6},
    "a million layers of the vision model": lambda config: (
        config | {"vision_config": config["vision_config"] | {"num_hidden_layers": 10**6}}
    ),
    "no layers": lambda config: config | {"text_config": config["text_config"] | {"n_layer": 0}},
    "deep": lambda config: None,
    "wide": lambda config: config | {"text_config": config["text_config"] | {"n_embd": 64_000}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_configurations(copied, change, tmp_path, images, capsys):
    path = copied / "config.json"
    config = CHANGES[change](json.loads(path.read_text()))
    path.write_text("[" * 100_000 if change == "deep" else json.dumps(config))
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert main(commands(copied, images, tmp_path)[0]) == 2
    after = resource.getrusage(resource.RUSAGE_SELF)
    message = capsys.readouterr().err
    assert str(copied) in message and "error:" in message, message
    assert after.ru_utime - before.ru_utime < 5
    assert after.ru_maxrss - before.ru_maxrss < 300 * 1024


@pytest.mark.parametrize(
    "field",
    [
        *({"num_beams": value} for value in ("x", 0, -1, 1.5, True, [1], 2**40)),
        *({"decoder_start_token_id": value} for value in (float("inf"), "a", [], [None], -1)),
        *({"length_penalty": value} for value in ("x", float("nan"), [1.0])),
        *({"max_new_tokens": value} for value in ("6", 6.0)),
    ],
    ids=str,
)
def test_generation_configurations(copied, field):
    path = copied / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | field))
    with pytest.raises(ValueError, match=rf"generation_config.json is damaged: `{next(iter(field))}` is .*{ADVICE}"):
        load_captioner(str(copied))


@pytest.mark.parametrize("part", ["added_tokens", "model", "pre_tokenizer", "decoder"])
def test_tokenizers_with_missing_parts_are_named(copied, part):
    """Their readers raise errors of many types, which do not name the file."""
    path = copied / "tokenizer.json"
    content = json.loads(path.read_text())
    del content[part]
    path.write_text(json.dumps(content))
    try:
        load_captioner(str(copied))
    except ValueError as error:
        assert str(copied) in str(error)
    else:
        assert part in ("pre_tokenizer", "decoder"), "a tokenizer may lack these"


def test_captioners_that_fail_in_decoding_are_named(captioner, images, monkeypatch):
    """A value that is sound by its type may still not fit."""
    pipeline = load_pipeline(captioner, device="cpu")
    for error in (TypeError("no number"), RuntimeError("sizes"), ValueError("no range")):
        monkeypatch.setattr(pipeline.model, "generate", _raiser(error))
        with pytest.raises(ValueError, match=f"{captioner} cannot caption .*{error}") as raised:
            list(caption_batches(pipeline, [str(images / "scene_000.png")]))
        assert raised.value.__cause__ is error


def _raiser(error):
    def generate(*arguments, **options):
        raise error

    return generate


def test_parts_of_a_captioner(vision_model, language_model, tmp_path, images, capsys):
    vision = shutil.copytree(vision_model, tmp_path / "vision")
    language = shutil.copytree(language_model, tmp_path / "language")
    for folder in (vision, language):
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"vision/model.safetensors \(.* bytes\) is damaged"):
        load_vision_part(str(vision))
    command = ["train", "--train_dir", str(images), "--validation_dir", str(images)]
    command += ["--language_model", str(language), "--vision_model", vision_model]
    assert main([*command, "--output_dir", str(tmp_path / "out"), "--use_cpu"]) == 2
    assert "language/model.safetensors" in capsys.readouterr().err
