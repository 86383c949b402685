"""`hf-captioners convert`: converted checkpoints give the numbers of the authors' programs."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_captioners.cli import main
from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.hub.convert.converting import list_converters
from hf_captioners.hub.convert.parity_report import compare_figures, sha256_of
from tests.modeling.gpt2_parts import tiny_gpt2_tokenizer
from tests.parity.figures import Figures

from .released_files import words, write_modules, write_program, write_visualgpt
from .released_folders import (
    FAMILIES,
    FOLDERS,
    family_of,
    visualgpt_settings,
)

SCRIPT = Path(__file__).with_name("scoring_process.py")
FORMATS = {True: "zip", False: "legacy"}


def test_every_architecture_with_figures_has_a_converter():
    assert list_converters() == sorted({architecture for architecture, *_ in FAMILIES.values()})


@pytest.fixture(scope="module")
def converted(fork_server, once_a_run):
    """The folder of a checkpoint; those of its architecture are converted by the command line, and scored in one
    process without the package."""

    def folder_of(name):
        architecture = family_of(name)[0]

        def fill(root):
            folders = []
            for index, other in enumerate(other for other in FOLDERS if family_of(other)[0] == architecture):
                folder = root / other.replace("/", "-")
                folder.mkdir()
                arguments = family_of(other)[1](Figures.load(other), folder, bool(index % 2))
                assert main(["convert", *arguments, "--output", str(folder / "captioner")]) == 0, other
                folders.append(folder)
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(root / "modules")}
            done = fork_server.run([SCRIPT, *folders], cwd=root, env=environment)
            assert done.returncode == 0, done.stderr[-3000:]

        return once_a_run(f"released_{architecture}", fill) / name.replace("/", "-")

    return folder_of


@pytest.mark.parity
@pytest.mark.parametrize("name", FOLDERS)
def test_the_authors_numbers_are_reproduced(converted, name):
    figures = Figures.load(name)
    logits = torch.load(converted(name) / "logits.pt")
    found, expected = family_of(name)[2](figures, logits)
    assert expected.numel() > 100
    torch.testing.assert_close(found, expected.float(), atol=1e-4, rtol=0)


def test_vocabularies_become_tokenizers(converted):
    program = AutoProcessor.from_pretrained(converted("show_attend_tell_arctic/soft_main") / "captioner")
    assert program.tokenizer.convert_ids_to_tokens([0, 1, 2, 59, 60]) == ["<eos>", "UNK", "aa", "cf", "<bos>"]
    modules = AutoProcessor.from_pretrained(converted("show_attend_tell/main") / "captioner")
    assert modules.tokenizer.convert_ids_to_tokens([0, 1, 57, 58, 59]) == ["<pad>", "aa", "<unk>", "<start>", "<end>"]
    assert modules.tokenizer.bos_token_id == 58 and modules.tokenizer.eos_token_id == 59
    infos = AutoProcessor.from_pretrained(converted("zodiac_transformer/baseline_transformer") / "captioner")
    assert infos.tokenizer.convert_ids_to_tokens([0, 1, 2, 49]) == ["<eos>", "a", "man", "UNK"]
    assert {infos.tokenizer.bos_token_id, infos.tokenizer.eos_token_id, infos.tokenizer.pad_token_id} == {0}


def test_the_card_states_the_source(converted):
    folder = converted("visualgpt/main")
    source = TrainingFacts.load(folder / "captioner").converted_from
    assert source == f"best.pth (SHA-256 {sha256_of(folder / 'best.pth')})"
    card = (folder / "captioner" / "README.md").read_text()
    assert f"| converted from | {source} |" in card and "## Training" not in card


@pytest.fixture
def figures():
    return Figures.load("visualgpt/main")


def run_convert(figures, path, *more):
    output = str(path.parent / "captioner")
    return main(["convert", "visualgpt", str(path), "--output", output, *visualgpt_settings(figures.config), *more])


def test_left_out_weights_are_listed(figures, tmp_path, capsys):
    write_visualgpt(tmp_path / "best.pth", figures.weights, figures.config)
    assert run_convert(figures, tmp_path / "best.pth") == 0
    out = capsys.readouterr().out
    assert "encoder.layers.*.mhatt.attention.c_attn_query.weight" in out and "No processor was written" in out
    assert {path.name for path in tmp_path.iterdir()} == {"best.pth", "captioner"}
    assert run_convert(figures, tmp_path / "best.pth") == 2
    assert "has files already" in capsys.readouterr().err


def test_gpt2_tokenizer_gets_the_released_ids(tmp_path):
    figures = Figures.load("visualgpt/main")
    tokenizer = tiny_gpt2_tokenizer()
    tokenizer.add_tokens([f"<{index}>" for index in range(figures.config["vocab_size"] - len(tokenizer))])
    tokenizer.save_pretrained(tmp_path / "gpt2")
    write_visualgpt(tmp_path / "best.pth", figures.weights, figures.config)
    assert run_convert(figures, tmp_path / "best.pth", "--vocab", str(tmp_path / "gpt2")) == 0
    processor = AutoProcessor.from_pretrained(tmp_path / "captioner")
    assert len(processor.tokenizer) == figures.config["vocab_size"]
    ids = [getattr(processor.tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")]
    assert ids == [figures.config[f"{name}_token_id"] for name in ("bos", "eos", "pad")]


def test_unknown_missing_and_misshapen_weights_are_listed(figures, tmp_path, capsys):
    weights = dict(figures.weights)
    del weights["encoder.fc.bias"], weights["decoder.transformer.h.1.ln_2.weight"]
    weights["decoder.transformer.h.0.ln_1.bias"] = torch.zeros(5)
    write_visualgpt(tmp_path / "best.pth", weights, figures.config, **{"decoder.adapter.weight": torch.zeros(2)})
    assert run_convert(figures, tmp_path / "best.pth") == 2
    said = capsys.readouterr().err
    assert "Unknown keys (1): decoder.adapter.weight." in said
    assert "Missing weights (2): model.decoder.h.1.ln_2.weight, model.encoder.input_projection.bias." in said
    assert "model.decoder.h.0.ln_1.bias is [5], expected [24]" in said
    assert not (tmp_path / "captioner").exists()


class Runs:
    """Object that creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("new_format", FORMATS, ids=FORMATS.values())
def test_a_hostile_checkpoint_is_refused(figures, tmp_path, capsys, new_format):
    content = {"state_dict": figures.weights, "opt": Runs(tmp_path / "ran")}
    torch.save(content, tmp_path / "best.pth", _use_new_zipfile_serialization=new_format)
    assert run_convert(figures, tmp_path / "best.pth") == 2
    assert "names `posix.system`" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"best.pth"}


@pytest.mark.parity
def test_the_report_states_the_differences(figures, tmp_path, capsys):
    """Weights, logits and the authors' numbers are compared; wrong numbers are found."""
    write_visualgpt(tmp_path / "best.pth", figures.weights, figures.config)
    ids, logprobs = figures.inputs["input_ids"], figures.expected["logprobs"].contiguous()
    inputs = {"region_features": figures.inputs["features"].contiguous(), "decoder_input_ids": ids.contiguous()}
    real = ids != figures.config["pad_token_id"]
    save_file(inputs | {"logprobs": logprobs, "compared": real}, tmp_path / "figures.safetensors")
    path = tmp_path / "report.json"
    report_to = ["--report", str(path), "--expected"]
    assert run_convert(figures, tmp_path / "best.pth", *report_to, str(tmp_path / "figures.safetensors")) == 0
    assert f"Largest differences, see {path}: weights 0, logits " in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["checkpoint"] == {"file": "best.pth", "sha256": sha256_of(tmp_path / "best.pth")}
    assert report["weights"]["numbers"] > 10_000 and report["weights"]["largest_difference"] == 0
    assert report["logits"]["numbers"] == 2 * 6 * figures.config["vocab_size"]
    assert report["logits"]["largest_difference"] <= 1e-5
    assert report["figures"]["numbers"] == int(real.sum()) * figures.config["vocab_size"]
    assert 0 < report["figures"]["mean_difference"] <= report["figures"]["largest_difference"] < 1e-4
    assert any("c_attn_query" in name for name in report["left_out"])
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "captioner")
    logprobs[0, 0, 3] += 0.5
    save_file(inputs | {"logprobs": logprobs, "compared": real}, tmp_path / "wrong.safetensors")
    found = compare_figures(model, tmp_path / "wrong.safetensors")
    assert found["numbers"] == report["figures"]["numbers"]
    assert found["largest_difference"] == pytest.approx(0.5, abs=1e-3)
    for tensors, said in (
        (inputs, "no `logprobs` to compare"),
        (inputs | {"logprobs": logprobs[:, 1:].clone()}, "is \\["),
    ):
        save_file(tensors, tmp_path / "other.safetensors")
        with pytest.raises(ValueError, match=said):
            compare_figures(model, tmp_path / "other.safetensors")
    for more, said in (
        (["--expected", str(tmp_path / "other.safetensors")], "pass the file of the report too"),
        ([*report_to, "x"], "there is no file or folder x"),
    ):
        assert run_convert(figures, tmp_path / "best.pth", *more) == 2
        assert said in capsys.readouterr().err


def test_wrong_inputs(figures, tmp_path, capsys):
    """Each raises an error with its reason, and nothing is written."""
    write_visualgpt(tmp_path / "best.pth", figures.weights, figures.config)
    other = Figures.load("show_attend_tell/main")
    write_modules(tmp_path / "other.pth.tar", other.weights, other.config["options"])
    write_program(tmp_path / "deep.npz", other.weights, {"n_words": 3})
    bidirectional = Figures.load("show_attend_tell_arctic/soft_lstmenc")
    write_program(tmp_path / "both.npz", bidirectional.weights, bidirectional.config["options"])
    (tmp_path / "alone.npz").write_bytes((tmp_path / "deep.npz").read_bytes())
    (tmp_path / "words.json").write_text('{"a": 1}')
    (tmp_path / "moved.json").write_text(
        json.dumps({word: index + 1 for index, word in enumerate(words(60))} | {"<start>": 99})
    )
    cases = {
        ("visualgpt", "missing.pth"): "there is no file",
        ("visualgpt", "other.pth.tar"): "names `models.Encoder`",
        ("visualgpt", "words.json"): "not a file of torch.save",
        ("show_attend_tell", "best.pth"): "`attention.full_att.weight`",
        ("show_attend_tell", "deep.npz"): "no arrays `Wemb`",
        ("show_attend_tell", "alone.npz"): "alone.npz.pkl is missing",
        ("show_attend_tell", "both.npz"): "`lstm_encoder` is set",
        ("painter", "best.pth"): "no architecture 'painter'",
        ("visualgpt", "best.pth", "--set", "n_head=7"): "cannot be divided among 7 heads",
        ("visualgpt", "best.pth", "--set", "n_head=4"): "with `--set`: bos_token_id=... eos_token_id=...",
        ("visualgpt", "best.pth", "--set", "heads=4"): "has no setting heads; expected any of",
        ("visualgpt", "best.pth", "--set", "n_head"): "expected NAME=VALUE",
        ("show_attend_tell", "other.pth.tar", "--vocab", "words.json"): "no word for id 2",
        ("show_attend_tell", "other.pth.tar", "--vocab", "moved.json"): "'<start>' at id 99, expected 58",
    }
    for (architecture, file, *more), said in cases.items():
        more = [str(tmp_path / word) if word.endswith(".json") else word for word in more]
        assert main(["convert", architecture, str(tmp_path / file), "--output", str(tmp_path / "new"), *more]) == 2
        assert said in capsys.readouterr().err, (architecture, file)
    assert not (tmp_path / "new").exists()
