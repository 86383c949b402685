"""`make reference-models` on the loopback Hub with tiny settings, `make test-oldest` and `make test-newest`."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from hf_captioners.reproduce.recipe import RECIPES
from hf_captioners.reproduce.runs import find_recipes

from .dataset_folders import coco, flickr8k

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_reference_models.py"


def test_every_reference_is_one_row_of_the_recipes():
    references = runpy.run_path(str(SCRIPT))["REFERENCES"]
    assert {reference.paper for reference in references.values()} == {"visualgpt", "show_attend_tell"}
    for reference in references.values():
        (recipe,) = find_recipes(RECIPES, reference.paper, reference.table, reference.row)
        assert reference.regime in recipe.published.regimes


def test_an_unknown_reference_is_refused(capsys):
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT))["main"](["painter", "--owner", "me", "--dry-run"])
    assert "there is no painter, choose among visualgpt-coco-1-percent" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT))["main"](["--owner", "me", "--dry-run", "--with", "machine.yaml"])
    assert "--with holds the paths of one reference model" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dry_run_trains_and_pushes(language_model, vision_model, fork_server, tmp_path):
    """Two seeds of a row on drawn scenes; the first is pushed, and its card has both beside the published metrics."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "row.yaml").write_text(
        "dataset: scenes\ndata_options: {num_images: {train: 6, validation: 4, test: 4}, image_size: 32}\n"
        f"language_model: {language_model}\nvision_model: {vision_model}\nimage_size: 32\n"
        "per_device_train_batch_size: 4\ntest_split: test\ntest_metrics: [bleu]\n"
        "reproduces:\n  paper: visualgpt\n  table: 1\n  row: VisualGPT (tau > 0)\n  seeds: [0, 1]\n  regimes:\n"
        "    1%: {published: {bleu_1: [69.3, 0.84]}}\n"
    )
    (tmp_path / "machine.yaml").write_text("max_steps: 1\nuse_cpu: true\ngeneration_max_new_tokens: 5\n")
    typed = ["visualgpt-coco-1-percent", "--owner", "me", "--dry-run", "--with", str(tmp_path / "machine.yaml")]
    places = ["--recipes", str(tmp_path / "recipes"), "--output_dir", str(tmp_path / "runs")]
    done = fork_server.run([SCRIPT, *typed, *places])
    assert done.returncode == 0, done.stderr[-3000:]
    (pushed,) = re.findall(r"^model (.*?): (.*)$", done.stdout, re.MULTILINE)
    assert pushed[0] == "tester/visualgpt-coco-1-percent"
    assert {"README.md", "model.safetensors", "handler.py", "processor_config.json"} <= set(pushed[1].split(", "))
    card = (tmp_path / "runs" / "row" / "1_percent" / "seed_0" / "README.md").read_text()
    assert re.search(r"\| BLEU-1 \| 69\.3 ± 0\.84 \| \d+\.\d ± \d+\.\d\d \|", card)
    assert "over the seeds 0, 1." in card


def bottom_up_features(folder, count):
    """Features of images in the layout of the authors' code, without a vision model."""
    folder.mkdir()
    for number in range(count):
        np.savez(folder / f"{number}.npz", feat=np.full((4, 8), number, np.float32))


TINY = {
    "max_steps": 1,
    "use_cpu": True,
    "per_device_train_batch_size": 2,
    "test_metrics": ["bleu"],
    "vision_model": None,
}
TINY |= {"generation_max_new_tokens": 5, "generation_num_beams": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["visualgpt-coco-1-percent", "show-attend-tell-flickr8k"])
def test_the_recipes_walk_from_data_to_pushed_cards(name, scenes, language_model, vision_model, tmp_path):
    """`make` with the recipes themselves and data in their own layouts; only sizes and steps are tiny."""
    rows = [scenes[number] for number in range(8)]
    machine = TINY | {"data_dir": str(tmp_path / "data"), "seed": 0}
    if name.startswith("visualgpt"):  # bottom-up features, as the recipe says
        coco(tmp_path / "data", rows)
        bottom_up_features(tmp_path / "features", len(rows))
        machine |= {"features": str(tmp_path / "features"), "language_model": language_model, "train_share": 1.0}
        machine |= {"scst_after_patience": None, "scst_after_epochs": 1, "cross_entropy_batch_size": 2}
    else:
        flickr8k(tmp_path / "data", rows)
        machine |= {"vision_model": vision_model, "image_size": 32, "model_config": {"hidden_size": 16}}
        machine |= {"test_metrics": ["bleu_no_penalty"]}
    machine = {key: value for key, value in machine.items() if value is not None or key.startswith("scst")}
    (tmp_path / "machine.yaml").write_text(yaml.safe_dump(machine))
    typed = [name, "--dry-run", "--seeds", "0", "1", "--output_dir", str(tmp_path / "runs")]
    makes = ["make", "reference-models", "OWNER=me", f"WITH={tmp_path / 'machine.yaml'}", f"ARGS={' '.join(typed)}"]
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(makes, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (pushed,) = re.findall(rf"^model tester/{name}: (.*)$", done.stdout, re.MULTILINE)
    files = pushed.split(", ")
    assert {"README.md", "model.safetensors", "processor_config.json"} <= set(files)
    assert ("handler.py" in files) == (name == "show-attend-tell-flickr8k"), "an endpoint needs a vision model"
    (card,) = tmp_path.glob("runs/*/*/seed_0/README.md")
    text = card.read_text(encoding="utf-8")
    assert "over the seeds 0, 1." in text and re.search(r"\| BLEU-1[^|]* \| 6\d(\.\d)?( ± [\d.]+)? \| \d", text), text


def test_make_knows_them():
    """The targets run the script, and workflows run the tests on the oldest and the newest versions."""
    development = "git+https://github.com/huggingface/transformers"
    for target, expected in (
        ("test-oldest", ["--resolution lowest-direct", ".venv-oldest/bin/python -m pytest"]),
        ("test-newest", ['--upgrade -e ".[test]" "transformers"', ".venv-newest/bin/python -m pytest"]),
        (f"test-newest TRANSFORMERS={development}", [f'--upgrade -e ".[test]" "{development}"']),
        (
            "reference-models",
            ["examples/train_reference_models.py --owner me --with machine.yaml", "HF_HUB_OFFLINE=0"],
        ),
    ):
        command = ["make", "--dry-run", *target.split(), "OWNER=me", "WITH=machine.yaml", "OS="]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert all(text in done.stdout for text in expected), done.stdout
    workflows = ROOT / ".github" / "workflows"
    assert "make test-oldest" in (workflows / "tests.yml").read_text()
    newest = yaml.safe_load((workflows / "newest.yml").read_text())["jobs"]["test"]
    assert newest["strategy"]["matrix"]["transformers"] == ["transformers", development]
    assert newest["steps"][-1]["run"].startswith("make test-newest")
