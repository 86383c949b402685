"""Checkpoints of the authors' Image Transformer: `model.pth` and `infos.pkl` through `hf-captioners convert`."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_captioners.cli import main
from tests.parity.figures import Figures, variants

from .released_files import words, write_model_and_infos

FOLDERS = [name for name in variants("image_transformer") if not name.endswith("/adjacency")]
# Of a class with one spatial layer, with keys of the full encoder, and without attention on attention.
QUICK = ("/layer2", "/main", "/refine_plain_ff")


def convert(path, *more):
    return main(["convert", "image_transformer", str(path), "--output", str(path.parent / "captioner"), *more])


def write(folder, figures, weights=None, options=None, **more):
    """Write the checkpoint of a folder of figures."""
    folder.mkdir(exist_ok=True)
    vocabulary = {str(index + 1): word for index, word in enumerate([*words(59), "UNK"])}
    own = figures.config["options"] | (options or {})
    return write_model_and_infos(folder, weights or figures.weights, own, vocabulary, **more)


def expected_figures(figures, path):
    """Write the inputs and log-probabilities of the authors' code in the form of `--expected`."""
    inputs = figures.inputs
    tensors = {
        "region_features": inputs["att_feats"],
        "region_mask": inputs["att_masks"].bool(),
        "region_relations": inputs["flag_feats"],
        "decoder_input_ids": inputs["labels"][:, :-1],
        "logprobs": figures.expected["logprobs"],
        "compared": inputs["masks"][:, 1:].bool(),
    }
    if not figures.config["options"]["mean_feats"]:
        tensors["global_features"] = inputs["fc_feats"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", [name if name.endswith(QUICK) else pytest.param(name, marks=pytest.mark.slow) for name in FOLDERS]
)
def test_the_report_agrees_with_the_authors(name, tmp_path, capsys):
    figures = Figures.load(name)
    path = write(tmp_path, figures)
    expected = str(expected_figures(figures, tmp_path / "figures.safetensors"))
    report = str(tmp_path / "report.json")
    assert convert(path, "--report", report, "--expected", expected) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["weights"]["largest_difference"] == 0
    for part in ("logits", "figures"):
        assert report[part]["numbers"] > 500 and report[part]["largest_difference"] <= 1e-5


def test_the_captioner_reads_relations_or_boxes(tmp_path, capsys):
    """The converted processor knows both, and the words of the checkpoint; boxes are related by the released rule."""
    figures = Figures.load("image_transformer/main")
    assert convert(write(tmp_path, figures)) == 0, capsys.readouterr().err
    processor = AutoProcessor.from_pretrained(tmp_path / "captioner")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "captioner")
    assert processor.tokenizer.convert_ids_to_tokens([0, 1, 60]) == ["<eos>", "aa", "UNK"]
    inputs, settings = figures.inputs, model.generation_config
    assert (settings.bookkeeping, settings.length_penalty, settings.suppress_tokens) == ("pool", 0.0, [60])
    assert model.config.overlap_rule == "released"
    count = int(inputs["att_masks"][0].sum())
    features = inputs["att_feats"][0, :count].numpy()
    boxes, relations = inputs["boxes"][0, :count].numpy(), inputs["flag_feats"][0, :count, :count].numpy()
    found = [
        model.generate(**processor(regions={"features": features, **more}, return_tensors="pt"))
        for more in ({"boxes": boxes / boxes.max()}, {"relations": relations})
    ]
    assert torch.equal(*found)
    with pytest.raises(ValueError, match="needs boxes"):
        processor(regions=features)
    with pytest.raises(ValueError, match="Divide them by the"):
        processor(regions={"features": features, "boxes": np.asarray(boxes)})


def test_unknown_missing_and_misshapen_weights_are_listed(tmp_path, capsys):
    figures = Figures.load("image_transformer/layer1")
    weights = dict(figures.weights)
    del weights["logit.bias"], weights["core.att_lstm.bias_hh"]
    weights["refiner.norm.a_2"] = torch.zeros(5)
    weights["adapter.weight"] = weights["refiner.layer1.gate.weight"] = torch.zeros(2)
    assert convert(write(tmp_path, figures, weights)) == 2
    said = capsys.readouterr().err
    assert "Unknown keys (2): adapter.weight, refiner.layer1.gate.weight." in said
    assert "lm_head.bias" in said and "model.decoder.layer.lstm.word_projection.bias" in said
    assert "model.encoder.norm.weight is [5], expected [16]" in said
    assert not (tmp_path / "captioner").exists()


class Runs:
    """Object that creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("place", ["weights", "options"])
def test_hostile_pickles_run_nothing(tmp_path, capsys, place):
    figures, hostile = Figures.load("image_transformer/main"), {"hostile": Runs(tmp_path / "ran")}
    path = write(tmp_path, figures, **(hostile if place == "options" else {}))
    if place == "weights":
        torch.save(figures.weights | hostile, path)
    assert convert(path) == 2
    assert "names `posix.system`" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and not (tmp_path / "captioner").exists()


def test_other_checkpoints_are_refused(tmp_path, capsys):
    """Each with its reason and what to do."""
    figures = Figures.load("image_transformer/main")
    cases = {
        "`caption_model` is 'aoa'). Convert it with `hf-captioners convert aoanet`": {
            "options": {"caption_model": "aoa"}
        },
        "`caption_model` is 'aoarelative', expected one of aoa3d1, aoa3": {
            "options": {"caption_model": "aoarelative"}
        },
        "`hidden_size` is 16, expected a multiple of 7 heads": {"options": {"num_heads": 7}},
        "has no `embed.0.weight`, `att_embed.0.weight`": {"weights": {"a.weight": torch.zeros(3)}},
        "Missing weights": {"options": {"caption_model": "aoa3l1"}},
    }
    for index, (said, changes) in enumerate(cases.items()):
        assert convert(write(tmp_path / str(index), figures, **changes)) == 2, said
        assert said in capsys.readouterr().err, said
    path = write(tmp_path / "plain", figures)
    assert convert(path, "--set", "num_head=4") == 2
    assert "image_transformer has no setting num_head; expected any of infos." in capsys.readouterr().err
    (path.parent / "infos_test.pkl").unlink()
    assert convert(path) == 2
    assert "There is no infos*.pkl beside" in capsys.readouterr().err
