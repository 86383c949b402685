"""Runs of recipes: which ones a table needs, their arguments, and their results."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .recipe import Recipe, as_arguments, merge_arguments

RESULT = "result.json"
STARTED, DONE, FAILED = "begun", "done", "failed"


@dataclass(frozen=True)
class Run:
    """One run: a row, a regime and a seed.

    Args:
        recipe: the recipe of the row.
        regime: name of the regime.
        seed: seed of the run.
        folder: output folder of the run.
    """

    recipe: Recipe
    regime: str
    seed: int
    folder: Path

    @property
    def names(self) -> dict[str, str]:
        """What identifies the regime in a table."""
        published = self.recipe.published
        assert published is not None
        return {"paper": published.paper, "table": published.table, "row": published.row, "regime": self.regime}

    def arguments(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the training arguments: those of the recipe, and those that override them."""
        own = {"seed": self.seed, "output_dir": str(self.folder)}
        return merge_arguments(self.recipe.with_regime(self.regime), overrides, own)

    def typed(self, overrides: Mapping[str, Any]) -> list[str]:
        """Return the training arguments as they are typed after `hf-captioners train`."""
        return [text for name, value in self.arguments(overrides).items() for text in as_arguments(name, value)]

    def result(self) -> dict[str, Any] | None:
        """Return what the run has left. None: it was never started."""
        path = self.folder / RESULT
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def find_recipes(folder: Path, paper: str, table: str | None = None, row: str | None = None) -> list[Recipe]:
    """Find the recipes of rows of a paper.

    Args:
        folder: folder of recipes.
        paper: short name of the paper.
        table: number of a table. None: all tables.
        row: part of the name of a row. None: all rows.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: there are no such rows.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}. Leave --recipes out to use those of the package.")
    known = [recipe for path in sorted(folder.rglob("*.yaml")) if (recipe := Recipe.load(path)).published]
    wanted = [
        recipe
        for recipe in known
        if (published := recipe.published)
        and published.paper == paper
        and table in (None, published.table)
        and (row is None or row in published.row)
    ]
    if not wanted:
        there = sorted({f"{one.published.paper} --table {one.published.table}" for one in known if one.published})
        raise ValueError(
            f"{folder} has no recipe of {paper}, table {table}, row {row}. Available: {'; '.join(there)}."
        )
    return wanted


def plan_runs(
    recipes: Sequence[Recipe], output: Path, regime: str | None = None, seeds: Sequence[int] | None = None
) -> list[Run]:
    """Plan runs, seed by seed, so that every row has a result early.

    Args:
        recipes: recipes of published rows.
        output: folder of all runs.
        regime: name of a regime. None: all regimes.
        seeds: seeds. None: those of each recipe.

    Raises:
        ValueError: no recipe has this regime.
    """
    rounds = max(len(seeds or recipe.published.seeds) for recipe in recipes if recipe.published)
    runs = []
    for number in range(rounds):
        for recipe in recipes:
            assert recipe.published is not None
            own_seeds = seeds or recipe.published.seeds
            for name in recipe.published.regimes:
                if regime in (None, name) and number < len(own_seeds):
                    seed = own_seeds[number]
                    runs.append(Run(recipe, name, seed, output / recipe.path.stem / slug(name) / f"seed_{seed}"))
    if not runs:
        raise ValueError(f"None of these recipes has the regime {regime!r}.")
    return runs


def slug(name: str) -> str:
    """Return a name as part of a path."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", name.replace("%", "_percent")).strip("_")
