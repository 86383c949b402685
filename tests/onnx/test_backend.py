"""Exported captioners for captions of many images: the command line, batches, data sets."""

import json
import pickle

import numpy as np
import PIL.Image
import pytest

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.columns import load_pipeline
from hf_captioners.cli import main


@pytest.fixture
def folder(tmp_path):
    """Three images, and a file that is none."""
    generator = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for name in "abc":
        levels = generator.integers(0, 256, (40, 50, 3), np.uint8)
        PIL.Image.fromarray(levels).save(tmp_path / "images" / f"{name}.png")
    (tmp_path / "images" / "d.png").write_bytes(b"no image")
    return tmp_path / "images"


def test_batches_equal_those_of_torch(source, exported, folder):
    batch = {"image": [str(path) for path in sorted(folder.iterdir())], "row": [0, 1, 2, 3]}
    options = {"num_beams": 3, "num_return_sequences": 2}
    found = CaptionBatches(str(exported), backend="onnx", **options)
    expected = CaptionBatches(str(source), device="cpu", **options)(dict(batch))
    for caption in (found, pickle.loads(pickle.dumps(found))):
        rows = caption(dict(batch))
        assert rows["caption"] == expected["caption"] and rows["caption"][3] is None and rows["row"] == [0, 1, 2, 3]
        assert rows["score"][0] == pytest.approx(expected["score"][0], abs=1e-4)
        assert "d.png cannot be read" in rows["error"][3]


def test_command_line(source, exported, folder, tmp_path, capsys):
    typed = ["--batch_size", "2", "--workers", "0", "--bad_words", "dog", "--allow_skipped"]
    outputs = {"torch": tmp_path / "torch.jsonl", "onnx": tmp_path / "onnx.jsonl"}
    for backend, model in (("torch", source), ("onnx", exported)):
        chosen = ["--model", str(model), "--backend", backend, "--output", str(outputs[backend])]
        assert main(["caption", str(folder), *chosen, *typed]) == 0, capsys.readouterr().err
    rows = {name: [json.loads(line) for line in path.read_text().splitlines()] for name, path in outputs.items()}
    assert [row["caption"] for row in rows["onnx"]] == [row["caption"] for row in rows["torch"]]
    assert len(rows["onnx"]) == 3
    again = ["caption", str(folder), "--model", str(exported), "--backend", "onnx", "--output", str(outputs["onnx"])]
    assert main([*again, *typed]) == 2
    assert "exists" in capsys.readouterr().err


def test_refused(source, exported, folder, capsys):
    command = ["caption", str(folder), "--backend", "onnx", "--model"]
    assert main([*command, str(source)]) == 2
    assert "no captioner.json" in capsys.readouterr().err
    assert main([*command, str(exported), "--dtype", "float16"]) == 2
    assert "leave out device, dtype and weights" in capsys.readouterr().err
    with pytest.raises(ValueError, match="`backend` is 'onx', expected one of torch, onnx"):
        load_pipeline(str(exported), backend="onx")
    study = CaptionBatches(str(exported), backend="onnx")({"image": [[str(folder / "a.png")]]})
    assert "no studies of several views" in study["error"][0]


def test_samples_are_repeated_by_their_seed(exported, folder, tmp_path):
    (folder / "d.png").unlink()
    rows = [json.dumps({"file_name": path.name, "text": "a dog"}) for path in sorted(folder.iterdir())]
    (folder / "metadata.jsonl").write_text("\n".join(rows))
    each, figures = tmp_path / "each.jsonl", tmp_path / "figures.json"
    typed = ["--backend", "onnx", "--split", "train", "--metrics", "bleu_1", "--output", str(figures)]
    sampled = ["--generate", "do_sample=true", "num_beams=1", "--per_image", str(each), "--batch_size", "2", "--seed"]
    found = []
    for seed in ("3", "3", "4"):
        assert main(["evaluate", str(exported), str(folder), *typed, *sampled, seed]) == 0
        assert json.loads(figures.read_text())["seed"] == int(seed)
        found.append(each.read_text())
    assert found[0] == found[1] != found[2]
