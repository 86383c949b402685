"""The commands of the pages on data work, with small local models and data sets instead of those that it names."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from hf_captioners.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("data.md", "published_data.md", "region_features.md")
PAGE = "".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)
COMMANDS = "".join(re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)).split("\n")
FOLDERS = importlib.util.spec_from_file_location("dataset_folders", Path(__file__).with_name("dataset_folders.py"))
dataset_folders = importlib.util.module_from_spec(FOLDERS)
FOLDERS.loader.exec_module(dataset_folders)
FEW = ["--max_steps", "2", "--use_cpu", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]
MORE = {
    "train": ["--validation_share", "0.3", *FEW],
    "extract-features": ["--use_cpu"],
    "evaluate": ["--device", "cpu"],
}


@pytest.fixture
def reader(tmp_path, monkeypatch, scenes, images):
    """A folder in which all data sets of the page exist."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("coco", "iu_xray", "nocaps"):
        dataset_folders.make_folder(name, tmp_path / name, scenes)
    monkeypatch.setattr("hf_captioners.data.iu_xray.R2GEN_COUNTS", {"train": 4, "validation": 2, "test": 0})
    (tmp_path / "my_images").symlink_to(images)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_of_the_page(reader, language_model, vision_model, detector, capsys):
    names = {
        "facebook/dinov2-small": vision_model,
        "facebook/detr-resnet-50 --top_k 50": f"{detector} --top_k 5",  # of its 6 queries
        "--language_model gpt2": f"--language_model {language_model}",
    }
    run = []
    for line in COMMANDS:
        for name, local in names.items():
            line = line.replace(name, local)
        command, *typed = shlex.split(line) or ("", "")
        if command == "hf-captioners":
            assert main([*typed, *MORE[typed[0]]]) == 0, capsys.readouterr().err
            run.append(typed[0])
    assert sorted(run) == ["evaluate"] * 2 + ["extract-features"] * 2 + ["train"] * 4
    assert {path.name for path in (reader / "grids").iterdir() if path.is_dir()} == {"train"}
    of_nocaps = json.loads((reader / "nocaps.json").read_text())
    assert list(of_nocaps["groups"]) == ["in-domain", "near-domain", "out-domain"]
    for output in ("captioner", "reporter", "on_grids", "on_detections"):
        assert (reader / output / "model.safetensors").is_file()
