"""The captioner that an installed package offers, where none is named."""

import json
import logging
import shutil
import sys

import pytest
import torch
import transformers
from transformers import AutoConfig

from hf_captioners import list_models, load_captioner
from hf_captioners.captioning import CaptionBatches
from hf_captioners.cli import main
from hf_captioners.hub.card_merging import read_card
from hf_captioners.hub.cards import make_card
from hf_captioners.hub.checkpoint_files import checkpoint_files
from tests.hub.loopback_hub import loopback_hub  # noqa: F401

LICENSE = {
    "license": "other",
    "license_name": "tiny-terms",
    "base_model": "tiny-default",
    "summary": "For tests only.",
    "notice": "Made of nothing.\n",
}
FACTS = {"name": "tiny 1.0", "metrics": {"cider_d": 0.5}, "data": "nothing", "terms": "weights for tests only"}
INTRODUCTION = "Captioner: tiny 1.0; CIDEr-D 0.500 on nothing; weights for tests only."
ON_TORCH = f"{INTRODUCTION.removesuffix('.')}; runs on torch."


def offer(site, name, folder):
    """Install a package that offers a captioner, by the files that an installation writes."""
    (site / f"{name}.py").write_text(f"def folder():\n    return {str(folder)!r}\n")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hf_captioners.default_model]\n{name} = {name}:folder\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages, beside which the default captioner does not count as installed."""
    place = tmp_path / "site"
    place.mkdir()
    hidden = place / "hf_captioners_default-0.dist-info"  # of two distributions of one name, the first counts
    hidden.mkdir()
    (hidden / "METADATA").write_text("Metadata-Version: 2.1\nName: hf-captioners-default\nVersion: 0\n")
    monkeypatch.syspath_prepend(place)
    yield place
    for module in [name for name in sys.modules if name.startswith("tiny_default")]:
        del sys.modules[module]


@pytest.fixture
def default(site, captioner, tmp_path):
    """A captioner without code, with terms, that a package offers."""
    folder = tmp_path / "offered"
    shutil.copytree(captioner, folder)
    for code in folder.glob("*.py"):
        code.unlink()
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if name not in ("auto_map", "custom_pipelines")}
    (folder / "config.json").write_text(json.dumps(config | {"weights_license": LICENSE}))
    (folder / "default_model.json").write_text(json.dumps(FACTS))
    offer(site, "tiny_default", folder)
    return folder


def introductions(caplog):
    return [record.getMessage() for record in caplog.records if "Captioner:" in record.getMessage()]


def test_the_command_line_says_who_speaks(default, images, captioner, capsys, caplog):
    image = str(images / "scene_000.png")
    assert main(["caption", image, "--model", captioner]) == 0
    expected = capsys.readouterr().out
    assert not introductions(caplog)
    assert main(["caption", image]) == 0
    assert capsys.readouterr().out == expected and introductions(caplog) == [ON_TORCH]
    assert main(["explain", image, "--output", str(default.parent / "a.png")]) == 0
    assert main(["evaluate", "default", str(images), "--split", "train", "--metrics", "bleu", "--num_beams", "1"]) == 0
    assert introductions(caplog) == [ON_TORCH] * 3


def test_the_pipeline_needs_no_name(default, images, captioner, caplog):
    """And the warning of transformers is replaced by the introduction."""
    image = str(images / "scene_000.png")
    with caplog.at_level(logging.WARNING, "transformers.pipelines"):
        pipe = transformers.pipeline("image-captioning")
    assert set(introductions(caplog)) == {INTRODUCTION} and "No model was supplied" not in caplog.text
    assert pipe.model.dtype == torch.float32
    named = transformers.pipeline("image-captioning", model=captioner)
    assert pipe(image) == named(image)
    assert CaptionBatches()({"image": [image]})["caption"] == [pipe(image)[0]["generated_text"]]


def test_models_are_listed_with_their_figures(default):
    (listed,) = list_models()
    assert (listed.name, listed.folder, dict(listed.metrics)) == ("tiny 1.0", default, {"cider_d": 0.5})
    (default / "default_model.json").unlink()
    assert list_models()[0].introduction == "Captioner: tiny_default."


def test_what_is_made_of_it_keeps_its_terms(default, images, tmp_path):
    """A trained captioner and a saved copy have the notice, the licence and the base model, also when pushed."""
    typed = ["--model", "default", "--recipe", "none", "--train_dir", str(images), "--max_steps", "1", "--use_cpu"]
    typed += ["--disable_tqdm", "true", "--validation_share", "0.2", "--report_to", "none"]
    typed += ["--generation_max_new_tokens", "3"]
    assert main(["train", *typed, "--output_dir", str(tmp_path / "trained")]) == 0
    model, processor = load_captioner("default")
    model.save_pretrained(tmp_path / "saved")
    processor.save_pretrained(tmp_path / "saved")
    for folder in (tmp_path / "trained", tmp_path / "saved"):
        assert (folder / "NOTICE").read_text() == LICENSE["notice"]
        assert {"NOTICE", "modeling_visualgpt.py"} <= {path.name for path in checkpoint_files(folder)}
        text = make_card(folder, "me/mine")
        metadata = read_card(text, "card").metadata
        assert (metadata["license"], metadata["license_name"], metadata["license_link"]) == (
            "other",
            "tiny-terms",
            "NOTICE",
        )
        assert metadata["base_model"] == ["tiny-default"] and "For tests only. See [NOTICE](NOTICE)." in text
        assert AutoConfig.from_pretrained(folder).weights_license == LICENSE
    assert "license: other" in (tmp_path / "trained" / "README.md").read_text()
    assert load_captioner(str(tmp_path / "trained"))[0].config.weights_license == LICENSE


def test_it_is_pushed_with_the_code_of_this_library(default, loopback_hub, monkeypatch, tmp_path):  # noqa: F811
    """And with its terms; the installed folder stays as it is."""
    before = sorted(path.name for path in default.iterdir())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    loopback_hub.use_here(monkeypatch, tmp_path / "home")
    assert main(["push", "default", "copy"]) == 0
    files = loopback_hub.repository("tester/copy").files()
    assert files["NOTICE"].decode() == LICENSE["notice"] and "modeling_visualgpt.py" in files
    card = read_card(files["README.md"].decode(), "card").metadata
    assert (card["license"], card["base_model"]) == ("other", ["tiny-default"])
    assert sorted(path.name for path in default.iterdir()) == before


def test_without_one_the_error_says_what_to_do(images, capsys, monkeypatch):
    monkeypatch.setattr("hf_captioners.default_model.entry_points", lambda group: ())
    assert main(["caption", str(images)]) == 2
    said = capsys.readouterr().err
    assert "No captioner was named" in said and "name a captioner: `--model`" in said
    with pytest.raises(FileNotFoundError, match="no installed package offers one"):
        transformers.pipeline("image-captioning")
    assert list_models() == []


def test_several_and_broken_ones_are_named(default, site, images, capsys):
    offer(site, "tiny_default_2", default)
    assert main(["caption", str(images)]) == 2
    assert f"several installed packages offer one: tiny 1.0 ({default}), tiny 1.0" in capsys.readouterr().err
    (default / "default_model.json").write_text("{")
    assert main(["caption", str(images)]) == 2
    assert "'tiny_default' (tiny_default:folder) cannot be found: JSONDecodeError" in capsys.readouterr().err
    shutil.rmtree(default)
    assert main(["evaluate", "default", str(images), "--split", "train"]) == 2
    assert "has no config.json. Install the package" in capsys.readouterr().err


def test_an_entry_point_that_ends_the_program_is_named(site, images, capsys):
    offer(site, "tiny_default", "anywhere")
    entry = site / "tiny_default-1.0.dist-info" / "entry_points.txt"
    entry.write_text("[hf_captioners.default_model]\naaa = sys:exit\n")
    assert main(["caption", str(images)]) == 2
    assert "The default captioner 'aaa' (sys:exit) cannot be found: SystemExit" in capsys.readouterr().err


def test_a_folder_named_default_is_meant(default, captioner, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(captioner, tmp_path / "default")
    assert load_captioner("default")[0].config.weights_license is None and not introductions(caplog)
