"""`hf-captioners reproduce`: rows that combine the runs of other rows."""

import json
import re
import shutil
import sys

import pytest

from hf_captioners.cli import main
from hf_captioners.reproduce.recipe import RECIPES, Recipe

COMBINED = {
    recipe.path.relative_to(RECIPES).as_posix(): recipe
    for path in sorted(RECIPES.rglob("*.yaml"))
    for recipe in Recipe.load_rows(path)
    if recipe.published and recipe.published.combines
}
# Stands in for Python: "trains" and "evaluates" by writing metrics, and fails where the learning rate is 7.
STUB = """#!/bin/sh
exec {python} {script} "$@"
"""
SCRIPT = """
import json, sys
from pathlib import Path
command, arguments = sys.argv[3], sys.argv[4:]
value = lambda name: arguments[arguments.index(name) + 1]
with open({calls!r}, "a") as file:
    file.write(" ".join([command, *arguments]) + "\\n")
if command == "train" and value("--learning_rate") == "7":
    sys.exit("the loss is not finite")
path = Path(value("--output_dir"), "test_results.json") if command == "train" else Path(value("--output"))
figures = {{"cider_d": 0.4 + 0.1 * int(value("--seed")) if command == "train" else 0.9, "images": 3}}
path.write_text(json.dumps(figures))
"""
MEMBER = """
dataset: scenes
learning_rate: 1e-3
reproduces:
  paper: toy
  table: 1
  row: {row}
  seeds: [0]
  regimes:
    all: {{published: {{cider_d: [40]}}}}
    few: {{arguments: {{train_share: 0.1}}, published: {{cider_d: [30]}}}}
"""
TOGETHER = """
dataset: scenes
generation_num_beams: 3
test_metrics: [cider_d]
reproduces:
  paper: toy
  table: 2
  row: fuse
  combines: [{recipe: one.yaml, seeds: [0, 1]}, {recipe: two.yaml}]
  regimes:
    all: {published: {cider_d: [50]}}
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Two rows that are trained and one that combines them, and a stub instead of Python."""
    folder, calls = tmp_path / "recipes", tmp_path / "calls.txt"
    folder.mkdir()
    for row in ("one", "two"):
        (folder / f"{row}.yaml").write_text(MEMBER.format(row=row))
    (folder / "together.yaml").write_text(TOGETHER)
    script, stub = tmp_path / "stub.py", tmp_path / "stub"
    script.write_text(SCRIPT.format(calls=str(calls)))
    stub.write_text(STUB.format(python=sys.executable, script=script))
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    output = tmp_path / "out"
    typed = ["reproduce", "toy", "--recipes", str(folder), "--output_dir", str(output), "--launcher", str(stub)]
    return typed, folder, output, calls


def evaluated(output):
    """The command that evaluates the three runs together."""
    runs = [f"{output}/{run}" for run in ("one/all/seed_0", "one/all/seed_1", "two/all/seed_0")]
    models = f"{runs[0]} scenes --ensemble {runs[1]} --ensemble {runs[2]}"
    options = f"--num_beams 3 --max_new_tokens 20 --metrics cider_d --data_dir here --device cpu --output {output}"
    return f"evaluate {models} {options}/together/all/combined/test_results.json"


def test_members_are_trained_first(toy, capsys):
    """Members are planned with the row, which is evaluated as they are tested, and only once."""
    typed, _, output, calls = toy
    more = ["--table", "2", "--data_dir", "here", "--use_cpu"]
    assert main([*typed, *more, "--dry_run"]) == 0
    dry = [line.removeprefix("hf-captioners ") for line in capsys.readouterr().out.splitlines()]
    assert main([*typed, *more]) == 0
    done = calls.read_text().splitlines()
    assert done == dry
    assert [line.split()[0] for line in done] == ["train", "train", "train", "evaluate"]
    assert re.sub(" +", " ", done[3]) == evaluated(output)
    page = (output / "results.md").read_text()
    assert "| 2 | fuse | all | measured, 1 run | 90.0 |" in page
    assert "| 1 | one | all | measured, 2 runs | 45.0 ± 7.07 |" in page
    assert main([*typed, *more]) == 0
    assert len(calls.read_text().splitlines()) == 4


def test_fields_of_the_members_architecture(toy, tmp_path):
    """A row that combines others has no architecture of its own: fields of theirs are checked with them."""
    typed, folder, _, calls = toy
    for row in ("one", "two"):
        (folder / f"{row}.yaml").write_text("architecture: zodiac" + MEMBER.format(row=row))
    (tmp_path / "sizes.yaml").write_text("model_config: {decoder_layers: 2, zodiac_dropout: 0.3}\n")
    assert main([*typed, "--table", "2", "--with", str(tmp_path / "sizes.yaml")]) == 0
    assert len(calls.read_text().splitlines()) == 4


def test_members_of_asked_rows_are_planned_once(toy, capsys):
    """Runs that are asked for and combined are the same runs; regimes that the row lacks are those of its members."""
    typed, *_ = toy
    assert main([*typed, "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folders = [re.search(r"--output(?:_dir)? (\S+)", line)[1].split("/out/")[1] for line in lines]
    assert folders == [
        *(f"{row}/{regime}/seed_0" for row in ("one", "two") for regime in ("all", "few")),
        "one/all/seed_1",
        "together/all/combined/test_results.json",
    ]
    assert main([*typed, "--regime", "few", "--table", "2", "--dry_run"]) == 2
    assert "regime 'few'" in capsys.readouterr().err


def test_a_row_waits_for_its_members(toy, capsys):
    """If a member fails, the row is not evaluated; once it is trained, the row is."""
    typed, folder, output, calls = toy
    recipe = folder / "two.yaml"
    recipe.write_text(recipe.read_text().replace("1e-3", "7"))
    assert main([*typed, "--table", "2"]) == 1
    assert f"waits for {output}/two/all/seed_0" in capsys.readouterr().out
    assert not (output / "together").exists()
    recipe.write_text(recipe.read_text().replace("7", "1e-3"))
    assert main([*typed, "--table", "2"]) == 0
    assert calls.read_text().splitlines()[-1].startswith("evaluate")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("one.yaml", "on.yaml", "combines on.yaml, which is not in its folder. Did you mean `one.yaml`?"),
        ("one.yaml", "together.yaml", "expected the recipe of a row that is trained"),
        ("    all", "    most", "has the regime most, and one.yaml, which it combines, has all, few"),
        ("dataset", "learning_rate: 1\ndataset", "so `--learning_rate` has no effect"),
        ("recipe: one", "recip: one", "a list of {recipe, seeds}"),
        ("dataset", "attributes: oracle\ndataset", "so `--attributes` has no effect"),
    ],
)
def test_what_cannot_be_combined(toy, old, new, said, capsys):
    typed, folder, *_ = toy
    (folder / "together.yaml").write_text(TOGETHER.replace(old, new))
    assert main([*typed, "--dry_run"]) == 2
    assert said in capsys.readouterr().err


def test_arguments_that_an_evaluation_lacks(toy, capsys):
    typed, *_ = toy
    assert main([*typed, "--attributes", "oracle", "--dry_run"]) == 2
    assert "`--attributes oracle` does not apply to a row that combines others" in capsys.readouterr().err


def test_a_row_that_combines_others_is_not_trained(toy, tmp_path, capsys):
    _, folder, *_ = toy
    assert main(["train", str(folder / "together.yaml"), "--output_dir", str(tmp_path / "run")]) == 2
    assert "hf-captioners reproduce toy --table 2 --row 'fuse'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("paper", "rows"),
    [("zodiac", {"1": 6, "2": 3, "3": 3, "4": 20}), ("eta", {"1": 2, "2": 4, "4": 5, "5": 7, "6": 4})],
)
def test_a_dry_run_lists_every_row(paper, rows, capsys):
    """Every row of the paper's own runs, in every regime; each command once."""
    assert main(["reproduce", paper, "--data_dir", "COCO", "--features", "REGIONS", "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    outputs = [re.search(r"--output(?:_dir)? (\S+)", line)[1] for line in lines]
    assert len(set(outputs)) == len(outputs)
    files = sorted((RECIPES / paper).glob("*.yaml"))
    recipes = [one for path in files for one in Recipe.load_rows(path) if one.published]
    assert {table: sum(one.published.table == table for one in recipes) for table in rows} == rows
    assert len(recipes) == sum(rows.values())
    for recipe in recipes:
        for regime in recipe.published.regimes:
            assert any(f"{paper}/{recipe.path.stem}/{regime.replace('-', '_')}/" in output for output in outputs)


@pytest.mark.parametrize("name", COMBINED)
def test_rows_of_the_package_have_members(name):
    assert COMBINED[name].combined()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "regime"), [(name, regime) for name in COMBINED for regime in COMBINED[name].published.regimes]
)
def test_a_row_of_the_package_is_measured(name, regime, vision_model, attribute_detector, tmp_path):
    """On drawn scenes: members, at most two of each row, are trained for two steps, then caption together."""
    folder, recipe = tmp_path / "recipes", COMBINED[name]
    ((member, _), *_) = recipe.combined()
    shutil.copytree(RECIPES / name.split("/")[0], folder)
    for path in folder.glob("*.yaml"):
        path.write_text(path.read_text().replace("[0, 1, 2, 3, 4]", "[0, 1]"))
    (tmp_path / "tiny.yaml").write_text(
        "dataset: scenes\ndata_options: {num_images: {train: 12, validation: 4, test: 4}, image_size: 32}\n"
        f"vision_model: {vision_model}\nimage_size: 32\nmax_steps: 2\nuse_cpu: true\nmin_word_count: 1\n"
        "per_device_train_batch_size: 4\ntest_metrics: [bleu, cider_d]\ngeneration_max_new_tokens: 5\n"
        "model_config: {encoder_layers: 1, decoder_layers: 1, hidden_size: 32, num_attention_heads: 2, ffn_dim: 32}\n"
        + (f"attribute_detector: {attribute_detector}\n" if name.startswith("eta/") else "")
        + "scst_after_epochs: 1\ncross_entropy_batch_size: 10\n" * bool(member.with_regime(regime).get("scst"))
    )
    places = ["--recipes", str(folder), "--output_dir", str(tmp_path / "out"), "--with", str(tmp_path / "tiny.yaml")]
    row = recipe.published
    typed = ["reproduce", row.paper, "--table", row.table, "--row", row.row, "--regime", regime, *places]
    assert main(typed) == 0
    results = [json.loads(file.read_text()) for file in (tmp_path / "out").rglob("combined/result.json")]
    assert [(one["status"], one["row"]) for one in results] == [("done", row.row)]
    assert {"bleu_4", "cider_d"} <= results[0]["figures"].keys()
