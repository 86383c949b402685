"""Recipes from files that name code: refused before anything is imported, unless `--allow_code` is typed."""

import json
import sys

import pytest

from hf_captioners.cli import main
from hf_captioners.loading import changed_config
from hf_captioners.reproduce import recipe
from hf_captioners.reproduce.recipe import RECIPES, Recipe
from hf_captioners.training.parser import NAMES_FUNCTIONS, argument_list

ROW = """
reproduces:
  paper: toy
  table: 1
  row: Toy
  seeds: [1]
  regimes:
    all:
      arguments: {arguments}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with a module that leaves a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evilmod.py").write_text(
        "from pathlib import Path\nPath('imported').touch()\ndef f(**columns):\n    return []\n"
    )
    yield tmp_path
    sys.modules.pop("evilmod", None)


def refusal(typed, capsys):
    assert main(typed) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, "one line"
    return said


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("scst: true\nreward_funcs: [cider_d, evilmod:f]\n", 2, "evilmod:f"),
        ("reward_funcs: evilmod:f\nscst: true\n", 1, "evilmod:f"),
        ("seed: 1\n\neval_metrics: [bleu, evilmod:f]\n", 3, "evilmod:f"),
        ("test_metrics: [evilmod:f]\n", 1, "evilmod:f"),
        ("test_metrics: [2001-01-01 10:00:00]\n", 1, "2001-01-01 10:00:00"),
        ("model_config: {attn_implementation: someone/kernel}\n", 1, "someone/kernel"),
        ("model_config: [attn_implementation=someone/kernel]\n", 1, "someone/kernel"),
    ],
)
def test_a_recipe_that_names_code_is_refused_before_it_is_imported(text, line, code, here, capsys):
    (here / "recipe.yaml").write_text(text)
    said = refusal(["train", "recipe.yaml"], capsys)
    assert f"recipe.yaml:{line}: " in said and repr(code) in said and "type --allow_code" in said
    assert not (here / "imported").exists()
    with pytest.raises(ValueError, match="allow_code=True"):
        Recipe.load("recipe.yaml")


def test_the_flag_allows_it(here, capsys):
    (here / "recipe.yaml").write_text("scst: true\nreward_funcs: [evilmod:f]\n")
    assert refusal(["train", "recipe.yaml", "--model", ".", "--allow_code"], capsys)
    assert (here / "imported").exists()


def test_what_is_typed_needs_no_permission(here, capsys):
    (here / "recipe.yaml").write_text("scst: true\n")
    typed = ["train", "recipe.yaml", "--model", ".", "--reward_funcs", "evilmod:f"]
    assert refusal(typed, capsys)
    assert (here / "imported").exists()


def test_recipes_of_the_package_need_no_permission(here, monkeypatch, capsys):
    (here / "package").mkdir()
    (here / "package" / "own.yaml").write_text("eval_metrics: [evilmod:f]\n")
    monkeypatch.setattr(recipe, "RECIPES", here / "package")
    assert Recipe.load("own.yaml").arguments == {"eval_metrics": ["evilmod:f"]}
    (here / "own.yaml").write_text("eval_metrics: [evilmod:f]\n")  # hides the one of the package
    assert "type --allow_code" in refusal(["train", "own.yaml"], capsys)


def test_no_recipe_of_the_package_names_code(monkeypatch):
    monkeypatch.setattr(recipe, "RECIPES", RECIPES / "none")
    paths = list(RECIPES.rglob("*.yaml"))
    assert paths and all(Recipe.load_rows(path) for path in paths), "a recipe that names code is refused"


def test_every_place_of_a_reproduction(here, capsys):
    """The arguments of a regime, a file of `--with`, and a row that another one combines."""
    folder = here / "recipes"
    folder.mkdir()
    typed = ["reproduce", "toy", "--recipes", "recipes", "--output_dir", "out", "--dry_run"]
    (folder / "toy.yaml").write_text("seed: 1" + ROW.replace("{arguments}", "{eval_metrics: [evilmod:f]}"))
    said = refusal(typed, capsys)
    assert "toy.yaml:9: `eval_metrics` names code, 'evilmod:f'" in said
    assert main([*typed, "--allow_code"]) == 0
    assert "--eval_metrics evilmod:f" in capsys.readouterr().out, "the runs get it as if it were typed"
    (folder / "toy.yaml").write_text("seed: 1" + ROW.replace("{arguments}", "{}"))
    (here / "machine.yaml").write_text("test_metrics: [evilmod:f]\n")
    assert "machine.yaml:1: " in refusal([*typed, "--with", "machine.yaml"], capsys)
    (here / "member.yaml").write_text("eval_metrics: [evilmod:f]" + ROW.replace("{arguments}", "{}"))
    (folder / "both.yaml").write_text(
        "test_split: test"
        + ROW.replace("{arguments}", "{}").replace("row: Toy", "row: Both\n  combines: [{recipe: ../member.yaml}]")
    )
    assert "member.yaml:1: " in refusal([*typed, "--row", "Both"], capsys)
    assert not (here / "imported").exists()


def test_a_wrong_argument_of_a_regime_is_named_with_its_line(here, capsys):
    (here / "recipe.yaml").write_text("seed: 1" + ROW.replace("{arguments}", "{sead: 2}"))
    assert "recipe.yaml:9: There is no argument `sead`" in refusal(["train", "recipe.yaml"], capsys)


def test_runs_of_a_reproduction_import_nothing_of_the_current_folder(here, capsys):
    (here / "hf_captioners.py").write_text((here / "evilmod.py").read_text())
    (here / "recipes").mkdir()
    (here / "recipes" / "toy.yaml").write_text("seed: 1" + ROW.replace("{arguments}", "{}"))
    assert main(["reproduce", "toy", "--recipes", "recipes", "--output_dir", "out"]) == 1
    assert "`--language_model` is missing" in capsys.readouterr().out
    assert not (here / "imported").exists()


def test_every_argument_that_takes_functions_is_checked():
    """The help of such an argument says `module:function`."""
    found = {name for name, argument in argument_list().items() if "module:function" in argument.help}
    assert {"reward_funcs"} <= found <= set(NAMES_FUNCTIONS)
    assert set(NAMES_FUNCTIONS) <= set(argument_list())


def test_a_recipe_cannot_trust_the_code_of_a_checkpoint(here, captioner, capsys):
    """`trust_remote_code` is no field of a configuration, although `from_pretrained` takes both as keywords."""
    (here / "evil").mkdir()
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil_config.EvilConfig"}}
    (here / "evil" / "config.json").write_text(json.dumps(config))
    (here / "evil" / "evil_config.py").write_text(
        f"from pathlib import Path\nPath({str(here / 'imported')!r}).touch()\n"
        "from transformers import PreTrainedConfig\nclass EvilConfig(PreTrainedConfig):\n    model_type = 'evil'\n"
    )
    with pytest.raises((ValueError, OSError)):
        changed_config(str(here / "evil"), {"trust_remote_code": True})
    assert not (here / "imported").exists()
    with pytest.raises(ValueError, match="`model_config` has 'trust_remote_code'"):
        changed_config(captioner, {"trust_remote_code": True})
    assert changed_config(captioner, {"label_smoothing": 0.3}).label_smoothing == 0.3
