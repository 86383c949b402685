"""Runs of recipes: the list that a table needs, the arguments of each, and its results."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_captioners.names import did_you_mean, listed
from hf_captioners.output_files import read_text_inside
from hf_captioners.training.parser import RECIPE, SELF_CRITICAL, merge_arguments

from .combining import require_evaluation_arguments, typed_evaluation
from .recipe import Recipe, as_arguments

RESULT = "result.json"
STARTED, DONE, FAILED = "begun", "done", "failed"


@dataclass(frozen=True)
class Run:
    """Run of a recipe's row with a regime and a seed.

    Args:
        recipe: the recipe of the row.
        regime: name of the regime.
        seed: seed of the run.
        folder: output folder of the run.
        members: the runs that this one combines; empty if it trains.
    """

    recipe: Recipe
    regime: str
    seed: int
    folder: Path
    members: "tuple[Run, ...]" = ()

    @property
    def command(self) -> str:
        """Command of `hf-captioners` that executes this run: `train` or `evaluate`."""
        return "evaluate" if self.members else "train"

    @property
    def names(self) -> dict[str, str]:
        """Paper, table, row and regime of the run."""
        published = self.recipe.published
        assert published is not None
        return {"paper": published.paper, "table": published.table, "row": published.row, "regime": self.regime}

    def arguments(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the training arguments: those of the recipe and regime, overridden."""
        run_arguments = {"seed": self.seed, "output_dir": str(self.folder)}
        merged = merge_arguments(self.recipe.with_regime(self.regime), overrides, run_arguments)
        if merged.get("model") is not None and not merged.get(SELF_CRITICAL):
            merged.setdefault(RECIPE, "none")  # a row has its own settings, however few its images are
        return merged

    def typed(self, overrides: Mapping[str, Any]) -> list[str]:
        """Return the command line arguments after `hf-captioners` and `command`."""
        if self.members:
            return typed_evaluation(self.arguments(overrides), [str(member.folder) for member in self.members])
        return [text for name, value in self.arguments(overrides).items() for text in as_arguments(name, value)]

    def result(self) -> dict[str, Any] | None:
        """Return the content of the run's result file; None if the run was never started."""
        path = self.folder / RESULT
        return json.loads(read_text_inside(path)) if path.exists() else None


def find_recipes(
    folder: Path, paper: str, table: str | None = None, row: str | None = None, allow_code: bool = False
) -> list[Recipe]:
    """Find the recipes of a paper's table rows.

    Args:
        folder: folder of recipes.
        paper: short name of the paper.
        table: number of a table. None: all tables.
        row: part of the name of a row. None: all rows.
        allow_code: whether recipes may name code, see `Recipe.load`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: there are no such rows, or a recipe of the folder is wrong or names code that is not allowed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}. Leave `recipes` out to use those of the package.")
    loaded = [recipe for path in sorted(folder.rglob("*.yaml")) for recipe in Recipe.load_rows(path, allow_code)]
    published_recipes = [recipe for recipe in loaded if recipe.published]
    chosen = [
        recipe
        for recipe in published_recipes
        if (published := recipe.published)
        and published.paper == paper
        and table in (None, published.table)
        and (row is None or row in published.row)
    ]
    if not chosen:
        there = sorted(
            {
                f"{recipe.published.paper} --table {recipe.published.table}"
                for recipe in published_recipes
                if recipe.published
            }
        )
        asked = paper if table is None else f"{paper} --table {table}"
        named = [f"{name} {value}" for name, value in (("table", table), ("row", row)) if value is not None]
        raise ValueError(
            f"{folder} has no recipe of {', '.join([paper, *named])}. Available: {listed(there, 10)}."
            f"{did_you_mean(asked, [*there, *(text.partition(' ')[0] for text in there)])}"
        )
    return chosen


def plan_runs(
    recipes: Sequence[Recipe], output: Path, regime: str | None = None, seeds: Sequence[int] | None = None
) -> list[Run]:
    """List the runs of all rows, seed by seed, so that every row has a result early.

    Rows that combine others come last, after the runs that they combine, which are planned even if their rows were not
    asked for.

    Args:
        recipes: recipes of published rows.
        output: folder of all runs.
        regime: name of a regime. None: all regimes.
        seeds: seeds of the rows that are trained. None: those of each recipe.

    Raises:
        ValueError: no recipe has this regime, or a row combines what does not exist, see `Recipe.combined`.
    """
    trained = [recipe for recipe in recipes if recipe.published and not recipe.published.combines]
    runs: list[Run] = []
    for number in range(
        max((len(seeds or recipe.published.seeds) for recipe in trained if recipe.published), default=0)
    ):
        for recipe in trained:
            assert recipe.published is not None
            own_seeds = seeds or recipe.published.seeds
            for name in recipe.published.regimes:
                if regime in (None, name) and number < len(own_seeds):
                    runs.append(plan_run(recipe, name, own_seeds[number], output))
    for recipe in recipes:
        if not recipe.published or not recipe.published.combines:
            continue
        require_evaluation_arguments(recipe)
        for name in recipe.published.regimes:
            if regime in (None, name):
                members = [plan_run(one, name, seed, output) for one, its in recipe.combined() for seed in its]
                planned = {run.folder for run in runs}
                runs += [member for member in members if member.folder not in planned]
                runs.append(Run(recipe, name, 0, output / recipe.path.stem / slug(name) / "combined", tuple(members)))
    if not runs:
        raise ValueError(f"None of these recipes has the regime {regime!r}.")
    return runs


def plan_run(recipe: Recipe, regime: str, seed: int, output: Path) -> Run:
    """Return the run of a row that is trained, with its output folder."""
    return Run(recipe, regime, seed, output / recipe.path.stem / slug(regime) / f"seed_{seed}")


def slug(name: str) -> str:
    """Convert a name to a part of a path."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", name.replace("%", "_percent")).strip("_")
