"""Recipes: YAML files of training arguments, `hf-captioners train recipe.yaml --num_train_epochs 3`.

A recipe of a row of a published table has a block `reproduces`, which `hf-captioners reproduce` reads:

```yaml
dataset: coco
model_config: {srau_threshold: 0.2}
reproduces:
  paper: visualgpt
  table: 1
  row: VisualGPT (tau = 0.2)
  seeds: [0, 1, 2, 3]
  regimes:
    1%:
      arguments: {train_share: 0.01, model_config: {srau_threshold: 0.3}}
      published: {bleu_1: [69.3, 0.84], cider_d: [81.7, 2.70]}
```

A study of your own has the same form, with a name of its own for the paper and without `published`.
"""

import functools
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.names import did_you_mean, nearest_name
from hf_captioners.training.parser import NAMED_VALUES, NULL

from .recipe_file import check_argument, line_of, read_yaml

if TYPE_CHECKING:
    from hf_captioners.hub.card_facts import PublishedFacts

RECIPES = Path(__file__).parent / "recipes"
"""The recipes of this package."""
# Papers print shares in percent, and CIDEr times 100.
PERCENT = 100
REPRODUCES = "reproduces"


@dataclass(frozen=True)
class Regime:
    """One column of a published row, such as a share of the training captions.

    Args:
        arguments: arguments that are added to those of the recipe.
        published: published metrics in percent, each with its standard deviation or without.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CombinedRow:
    """Runs of another row, which a row combines.

    Args:
        recipe: file of that row, in the folder of the recipe that combines it.
        seeds: seeds of the runs.
    """

    recipe: str
    seeds: Sequence[int] = (0,)


@dataclass(frozen=True)
class PublishedRow:
    """The row of a table that a recipe reproduces.

    Args:
        paper: short name of the paper.
        table: number of the table.
        row: name of the row, as printed.
        regimes: regimes by name.
        seeds: seeds of the runs whose mean is compared.
        combines: rows whose captioners choose every word together in this row, which is not trained itself. One run
            of one row: this row repeats that one.
    """

    paper: str
    table: str
    row: str
    regimes: Mapping[str, Regime]
    seeds: Sequence[int] = (42,)
    combines: Sequence[CombinedRow] = ()

    def beside(self, regime: str, metrics: Mapping[int, Mapping[str, float]]) -> "PublishedFacts":
        """Return the published metrics of a regime beside the measured ones.

        Args:
            regime: name of the regime.
            metrics: metrics of the run with each seed, in natural units.
        """
        from hf_captioners.hub.card_facts import PublishedFacts

        published = self.regimes[regime].published
        measured = {name: [one[name] for one in metrics.values() if name in one] for name in published}
        return PublishedFacts(
            paper=self.paper,
            table=self.table,
            row=self.row,
            regime=regime,
            published={name: list(numbers) for name, numbers in published.items()},
            measured={name: in_percent(known) for name, known in measured.items() if known},
            seeds=list(metrics),
        )


@dataclass(frozen=True)
class Recipe:
    """A YAML file of arguments.

    Args:
        path: path of the file.
        arguments: names and values.
        published: the row that it reproduces, if any.
        allow_code: whether its arguments, and those of rows that it combines, may name code, see `load`.
    """

    path: Path
    arguments: Mapping[str, Any]
    published: PublishedRow | None = None
    allow_code: bool = False

    @classmethod
    def load(cls, source: str | os.PathLike[str], allow_code: bool = False) -> "Recipe":
        """Load a recipe.

        Args:
            source: a path, or a path below the recipes of this package, for example
                `show_attend_tell/flickr8k_soft.yaml`.
            allow_code: whether arguments may name code, such as a reward `module:function`, which is imported when
                the recipe is run. Those of the recipes of this package always may.

        Raises:
            FileNotFoundError: there is no such file in either place.
            ValueError: the file is no mapping, an argument is wrong or names code that is not allowed, or the block
                `reproduces` is incomplete.
        """
        path = find_recipe(source)
        content, node = read_yaml(path)
        if not isinstance(content, dict):
            raise ValueError(f"{path} holds a {type(content).__name__}, expected lines of the form `name: value`.")
        block = content.pop(REPRODUCES, None)
        published = None if block is None else _published(path, block)
        allow_code = allow_code or path.resolve().is_relative_to(RECIPES.resolve())
        regimes = published.regimes if published else {}
        parts: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), content)]
        parts += [((REPRODUCES, "regimes", name, "arguments"), one.arguments) for name, one in regimes.items()]
        for keys, arguments in parts:
            for name, value in arguments.items():
                check_argument(f"{path}:{line_of(node, [*keys, str(name)])}", str(name), value, allow_code)
        return cls(path, content, published, allow_code)

    def combined(self) -> "list[tuple[Recipe, Sequence[int]]]":
        """Return the recipes whose runs this row combines, each with its seeds; none for a row that is trained.

        Raises:
            ValueError: a recipe is missing, or is of a row that combines others itself or lacks a regime of this one.
        """
        rows = self.published.combines if self.published else ()
        return [(self._member(row.recipe), row.seeds) for row in rows]

    def _member(self, name: str) -> "Recipe":
        path = self.path.parent / name
        if not path.is_file():
            hint = did_you_mean(name, [other.name for other in self.path.parent.glob("*.yaml")])
            raise ValueError(f"{self.path} combines {name}, which is not in its folder.{hint}")
        member = Recipe.load(path, self.allow_code)
        if member.published is None or member.published.combines:
            raise ValueError(f"{self.path} combines {name}, expected the recipe of a row that is trained.")
        assert self.published is not None
        if missing := [regime for regime in self.published.regimes if regime not in member.published.regimes]:
            raise ValueError(
                f"{self.path} has the regime {missing[0]}, and {name}, which it combines, has "
                f"{', '.join(member.published.regimes)}."
            )
        return member

    def with_regime(self, name: str | None) -> dict[str, Any]:
        """Return the arguments of a regime: they replace those of the recipe; mappings are merged by field.

        Raises:
            ValueError: the recipe has no such regime.
        """
        if name is None:
            return dict(self.arguments)
        merged = dict(self.arguments)
        for key, value in self._regime(name).arguments.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if both else value
        return merged

    def comparison(self, regime: str) -> "Callable[[Mapping[int, Mapping[str, float]]], PublishedFacts]":
        """Return the function that puts measured metrics, by seed, beside those published for a regime.

        Raises:
            ValueError: the recipe has no such regime.
        """
        self._regime(regime)
        assert self.published is not None
        return functools.partial(self.published.beside, regime)

    def _regime(self, name: str) -> Regime:
        regimes = self.published.regimes if self.published else {}
        if name not in regimes:
            raise ValueError(f"`regime={name}`: the regimes of {self.path} are {', '.join(regimes) or 'none'}.")
        return regimes[name]


def find_recipe(source: str | os.PathLike[str]) -> Path:
    """Find a recipe: a path that does not exist is looked up below the recipes of this package.

    Raises:
        FileNotFoundError: there is no such file in either place.
    """
    for path in (Path(source), RECIPES / source):
        if path.is_file():
            return path
    known = sorted(path.relative_to(RECIPES).as_posix() for path in RECIPES.rglob("*.yaml"))
    here = [path.as_posix() for kind in ("*.yaml", "*.yml") for path in Path(source).parent.glob(kind)]
    near = nearest_name(str(source), [*here, *known])
    hint = f"Did you mean {near}?" if near else f"Recipes of the package: {', '.join(known[:3])}, ..."
    raise FileNotFoundError(f"There is no recipe {source}, neither here nor below {RECIPES}. {hint}")


def _published(path: Path, content: Any) -> PublishedRow:
    try:
        regimes = {str(name): Regime(**(regime or {})) for name, regime in content["regimes"].items()}
        if not all(isinstance(part, Mapping) for one in regimes.values() for part in (one.arguments, one.published)):
            raise TypeError("`arguments` and `published` of a regime are mappings")
        rows = tuple(CombinedRow(**row) for row in content.get("combines", ()))
        return PublishedRow(**{**content, "table": str(content["table"]), "regimes": regimes, "combines": rows})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: `{REPRODUCES}` needs paper, table, row and regimes (name: {{arguments, published}}), and may "
            f"have seeds and combines (a list of {{recipe, seeds}}) ({type(error).__name__}: {error})."
        ) from error


def as_arguments(name: str, value: Any) -> list[str]:
    """Return what to type for one argument of a recipe: a list is several values, None is `null`."""
    if value is None:
        return [f"--{name}", NULL]
    if isinstance(value, dict) and name in NAMED_VALUES:
        return [f"--{name}", *(f"{key}={json.dumps(entry)}" for key, entry in value.items())]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(str(entry) for entry in values)]


def in_percent(values: Sequence[float]) -> list[float]:
    """Return the mean in percent and, of two values or more, the standard deviation; an empty list of no values."""
    if not values:
        return []
    deviation = [statistics.stdev(values) * PERCENT] if len(values) > 1 else []
    return [statistics.fmean(values) * PERCENT, *deviation]
