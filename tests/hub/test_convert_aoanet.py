"""Checkpoints of the authors' AoANet: `model.pth` and `infos_ID.pkl` through `hf-captioners convert`."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_captioners.cli import main
from tests.parity.figures import Figures, variants

from .released_files import words, write_model_and_infos

FOLDERS = variants("aoanet")


def convert(path, *more):
    return main(["convert", "aoanet", str(path), "--output", str(path.parent / "captioner"), *map(str, more)])


def write(folder, figures, weights=None, **more):
    """Write the checkpoint of a folder of figures; `more` as for `write_model_and_infos`, options included."""
    folder.mkdir(exist_ok=True)
    options = figures.config["options"] | more.pop("options", {})
    vocabulary = {str(index + 1): word for index, word in enumerate([*words(options["vocab_size"] - 1), "UNK"])}
    return write_model_and_infos(folder, weights or figures.weights, options, vocabulary, **more)


def expected_figures(figures, path):
    """Write the inputs and log-probabilities of the authors' code in the form of `--expected`."""
    inputs = figures.inputs
    tensors = {
        "region_features": inputs["att_feats"],
        "decoder_input_ids": inputs["labels"][:, :-1],
        "logprobs": figures.expected["logprobs"],
        "compared": inputs["masks"][:, 1:].bool(),
    }
    if "att_masks" in inputs:
        tensors["region_mask"] = inputs["att_masks"].bool()
    if not figures.config["options"]["mean_feats"]:
        tensors["global_features"] = inputs["fc_feats"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


@pytest.mark.parity
@pytest.mark.parametrize("name", FOLDERS)
def test_the_authors_numbers_are_reproduced(name, tmp_path, capsys):
    figures = Figures.load(name)
    options = figures.config["options"]
    path = write(tmp_path, figures, new_format=FOLDERS.index(name) % 2 > 0)
    expected = expected_figures(figures, tmp_path / "figures.safetensors")
    assert convert(path, "--report", tmp_path / "report.json", "--expected", expected) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["weights"]["largest_difference"] == 0
    for part in ("logits", "figures"):
        assert report[part]["numbers"] > 500 and report[part]["largest_difference"] <= 1e-5
    processor = AutoProcessor.from_pretrained(tmp_path / "captioner")
    count = options["vocab_size"]
    assert processor.tokenizer.convert_ids_to_tokens([0, 1, count]) == ["<eos>", "aa", "UNK"]
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "captioner")
    settings = model.generation_config
    assert (settings.bookkeeping, settings.length_penalty, settings.suppress_tokens) == ("pool", 0.0, [count])


@pytest.fixture
def main_figures():
    return Figures.load("aoanet/main")


def test_the_file_of_options_is_found(main_figures, tmp_path, capsys):
    """By the suffix of the weights, or as given."""
    checkpoints = [write(tmp_path, main_figures, suffix=suffix) for suffix in ("-best", "_12", "")]
    for index, path in enumerate(checkpoints):
        assert main(["convert", "aoanet", str(path), "--output", str(tmp_path / str(index))]) == 0
        assert (tmp_path / str(index) / "tokenizer.json").is_file()
    (tmp_path / "infos_other.pkl").write_bytes((tmp_path / "infos_test.pkl").read_bytes())
    arguments = ["convert", "aoanet", str(checkpoints[-1]), "--output", str(tmp_path / "new")]
    assert main(arguments) == 2
    assert "infos_other.pkl, infos_test.pkl. Choose one with `--set`: infos=FILE" in capsys.readouterr().err
    assert main([*arguments, "--set", f"infos={tmp_path / 'infos_other.pkl'}"]) == 0


def test_unknown_missing_and_misshapen_weights_are_listed(main_figures, tmp_path, capsys):
    weights = dict(main_figures.weights)
    del weights["logit.bias"], weights["core.att_lstm.bias_hh"]
    weights["refiner.norm.a_2"] = torch.zeros(5)
    weights["adapter.weight"] = torch.zeros(2)
    assert convert(write(tmp_path, main_figures, weights)) == 2
    said = capsys.readouterr().err
    assert "Unknown keys (1): adapter.weight." in said
    assert "lm_head.bias" in said and "model.decoder.layer.lstm.word_projection.bias" in said
    assert "model.encoder.norm.weight is [5], expected [20]" in said
    assert not (tmp_path / "captioner").exists()


class Runs:
    """Object that creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("place", ["weights", "options"])
def test_hostile_pickles_run_nothing(main_figures, tmp_path, capsys, place):
    hostile = {"hostile": Runs(tmp_path / "ran")}
    path = write(tmp_path, main_figures, **(hostile if place == "options" else {}))
    if place == "weights":
        torch.save(main_figures.weights | hostile, path)
    assert convert(path) == 2
    assert "names `posix.system`" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and not (tmp_path / "captioner").exists()


def test_wrong_inputs(main_figures, tmp_path, capsys):
    """Each is refused with its reason and what to do."""
    path = write(tmp_path / "right", main_figures)
    alone = tmp_path / "alone.pth"
    alone.write_bytes(path.read_bytes())
    cases = {
        (path, "--set", "num_head=4"): "aoanet has no setting num_head; expected any of infos.",
        (path, "--set", "infos=nowhere.pkl"): "There is no file nowhere.pkl",
        (alone,): "There is no infos*.pkl beside",
        (write(tmp_path / "graph", main_figures, options={"caption_model": "aoa3d1"}),): "convert image_transformer",
        (
            write(tmp_path / "heads", main_figures, options={"num_heads": 7}),
        ): "`num_heads` is 7, expected a divisor of",
        (write(tmp_path / "no_heads", main_figures, options={"num_heads": None}),): "has no option `num_heads`",
        (write(tmp_path / "other", main_figures, {"a.weight": torch.zeros(3)}),): "`embed.0.weight`, `core.att_lstm",
        (
            write(tmp_path / "odd", main_figures, vocab=None),
        ): "expected the keys opt (an argparse.Namespace) and vocab",
        (write(tmp_path / "short", main_figures, vocab={"1": "a", "2": "dog"}),): "has no word for id 3",
    }
    for (checkpoint, *more), said in cases.items():
        arguments = ["convert", "aoanet", str(checkpoint), "--output", str(tmp_path / "new"), *more]
        assert main(arguments) == 2, said
        assert said in capsys.readouterr().err, said
    assert not (tmp_path / "new").exists()
