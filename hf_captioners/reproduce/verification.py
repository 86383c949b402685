"""Verification of a study: random cells of its tables are trained again with new seeds."""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .recipe import PERCENT, Recipe
from .runs import Run, plan_run

CELLS = 3
# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; beyond the last one, that one, which is wider.
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t with this number of degrees of freedom."""
    return QUANTILES[min(degrees, len(QUANTILES)) - 1]


def prediction_interval(mean: float, deviation: float, count: int) -> tuple[float, float]:
    """Return the interval that holds one further value in 95 % of cases.

    Args:
        mean: mean of the known values.
        deviation: their standard deviation.
        count: number of known values, at least two.
    """
    half = quantile(count - 1) * deviation * math.sqrt(1 + 1 / count)
    return mean - half, mean + half


def smallest_difference(groups: Sequence[Sequence[float]]) -> tuple[int, float] | None:
    """Return the smallest difference of two rows' means that their seeds can show (95 %, Student's t).

    Args:
        groups: the values of each row over its seeds; those with one value are left out.

    Returns:
        The smallest number of seeds of a row, and the difference, for the deviation of the seeds within all rows; None
        without a row of several seeds.
    """
    groups = [values for values in groups if len(values) > 1]
    if not groups:
        return None
    count = min(map(len, groups))
    within = sum(statistics.variance(values) * (len(values) - 1) for values in groups)
    variance = within / sum(len(values) - 1 for values in groups)
    return count, quantile(2 * (count - 1)) * math.sqrt(2 * variance / count)


def draw_cells(recipes: Sequence[Recipe], output: Path, rng: random.Random) -> list[Run]:
    """Draw up to `CELLS` cells with measured figures of several seeds, each with a seed that was not reported.

    Args:
        recipes: recipes of the rows to draw from.
        output: folder of the runs.
        rng: source of cells and seeds.

    Raises:
        ValueError: no row has measured figures.
    """
    cells = [
        (recipe, name)
        for recipe in recipes
        if recipe.published and not recipe.published.combines
        for name, regime in recipe.published.regimes.items()
        if any(len(figures) > 1 for figures in regime.measured.values()) and len(recipe.published.seeds) > 1
    ]
    if not cells:
        raise ValueError("`verify`: none of these recipes has `measured` figures of several seeds to compare with.")
    drawn = rng.sample(cells, min(CELLS, len(cells)))
    return [plan_run(recipe, name, rng.randrange(1000, 1_000_000), output) for recipe, name in drawn]


def compare_with_measured(run: Run, figures: Mapping[str, Any]) -> list[tuple[str, float, float, float, bool]]:
    """Compare the figures of a run with those that other seeds of the row had.

    Args:
        run: see `draw_cells`.
        figures: figures of the run in natural units.

    Returns:
        For each measured metric: name, value, lower and upper end of the 95 % prediction interval, all in percent, and
        whether the value lies in the interval.
    """
    published = run.recipe.published
    assert published is not None
    compared = []
    for name, known in published.regimes[run.regime].measured.items():
        if len(known) > 1 and name in figures:
            low, high = prediction_interval(known[0], known[1], len(published.seeds))
            value = PERCENT * figures[name]
            compared.append((name, value, low, high, low <= value <= high))
    return compared
