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

A file with the recipes of a whole table has what they share, and under `rows` what each row adds or replaces:

```yaml
dataset: coco
reproduces: {paper: visualgpt, table: 1}
rows:
  table1_tau_positive:
    model_config: {srau_threshold: 0.2}
    reproduces:
      row: VisualGPT (tau > 0)
      regimes: {1%: {published: {cider_d: [81.7, 2.70]}}}
```

A row is loaded by its name in the folder of the file: `visualgpt/table1_tau_positive.yaml`.

A study of your own has the same form, with a name of its own for the paper and without `published`.
"""

import functools
import json
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.names import did_you_mean, nearest_name
from hf_captioners.training.parser import NAMED_VALUES, NULL

from .recipe_file import ROWS, check_argument, line_of, merge_nested, read_yaml, row_names

if TYPE_CHECKING:
    from hf_captioners.hub.card_facts import PublishedFacts

RECIPES = Path(__file__).parent / "recipes"
"""The recipes of this package."""
# Papers print shares in percent, and CIDEr times 100.
PERCENT = 100
REPRODUCES = "reproduces"


@dataclass(frozen=True)
class Regime:
    """Column of a published row, such as a share of the training captions.

    Args:
        arguments: arguments that are added to those of the recipe.
        published: published metrics in percent, each with its standard deviation or without.
        measured: metrics that earlier runs of the row's seeds had, in the same form; `--verify` compares with them.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Sequence[float]] = field(default_factory=dict)
    measured: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CombinedRow:
    """Reference to runs of another row, which a row evaluates together.

    Args:
        recipe: file of that row, in the folder of the recipe that combines it.
        seeds: seeds of the runs.
    """

    recipe: str
    seeds: Sequence[int] = (0,)


@dataclass(frozen=True)
class PublishedRow:
    """Row of a published table that a recipe reproduces.

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
        """Return the published metrics of a regime together with the measured ones.

        Args:
            regime: name of the regime.
            metrics: metrics of the run with each seed, in natural units.
        """
        from hf_captioners.hub.card_facts import PublishedFacts

        published = self.regimes[regime].published
        measured = {
            name: [run_metrics[name] for run_metrics in metrics.values() if name in run_metrics] for name in published
        }
        return PublishedFacts(
            paper=self.paper,
            table=self.table,
            row=self.row,
            regime=regime,
            published={name: list(numbers) for name, numbers in published.items()},
            measured={name: in_percent(values) for name, values in measured.items() if values},
            seeds=list(metrics),
        )


@dataclass(frozen=True)
class Recipe:
    """YAML file of training arguments, possibly of one row of a published table.

    Args:
        path: path of the file; of a row of a file with several rows, the path by which it is loaded.
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
        """Load a recipe from a file.

        Args:
            source: a path, or a path below the recipes of this package, for example
                `show_attend_tell/flickr8k_soft.yaml`. A row of a file with several rows is `FOLDER/ROW.yaml`.
            allow_code: whether arguments may name code, such as a reward `module:function`, which is imported when
                the recipe is run. Those of the recipes of this package always may.

        Raises:
            FileNotFoundError: there is no such file and no such row in either place.
            ValueError: the file is no mapping or has several rows, an argument is wrong or names code that is not
                allowed, or the block `reproduces` is incomplete.
        """
        path, row = find_recipe(source)
        recipes = {recipe.path.stem: recipe for recipe in cls.load_rows(path, allow_code)}
        if row is not None:
            return recipes[row]
        if path.stem not in recipes:
            first = path.with_name(f"{next(iter(recipes))}.yaml")
            raise ValueError(
                f"{path} has {len(recipes)} rows, expected one recipe. Type the name of one in place of the file's, "
                f"for example {first}; `hf-captioners reproduce` runs all."
            )
        return recipes[path.stem]

    @classmethod
    def load_rows(cls, path: Path, allow_code: bool = False) -> "list[Recipe]":
        """Load all recipes of a file: one per row, or a single one.

        Args:
            path: the file.
            allow_code: see `load`.

        Raises:
            ValueError: see `load`.
        """
        content, node = read_yaml(path)
        if not isinstance(content, dict):
            raise ValueError(f"{path} holds a {type(content).__name__}, expected lines of the form `name: value`.")
        allow_code = allow_code or path.resolve().is_relative_to(RECIPES.resolve())
        if ROWS not in content:
            _check_arguments(path, content, node, (), allow_code)
            return [cls._of(path, path, content, allow_code)]
        rows = content.pop(ROWS)
        if not isinstance(rows, dict) or not rows or not all(isinstance(row, dict) for row in rows.values()):
            raise ValueError(f"{path}:{line_of(node, [ROWS])}: expected `{ROWS}` of the form `name: {{...}}`.")
        _check_arguments(path, content, node, (), allow_code)
        recipes = []
        for name, row in rows.items():
            _check_row_name(f"{path}:{line_of(node, [ROWS, str(name)])}", str(name), path.parent)
            _check_arguments(path, row, node, (ROWS, str(name)), allow_code)
            recipes.append(cls._of(path, path.with_name(f"{name}.yaml"), merge_nested(content, row), allow_code))
        return recipes

    @classmethod
    def _of(cls, file: Path, path: Path, content: Mapping[str, Any], allow_code: bool) -> "Recipe":
        arguments = {name: value for name, value in content.items() if name != REPRODUCES}
        published = _published(file, content[REPRODUCES]) if content.get(REPRODUCES) is not None else None
        return cls(path, arguments, published, allow_code)

    def combined(self) -> "list[tuple[Recipe, Sequence[int]]]":
        """Return the recipes whose runs this row combines, each with its seeds; [] for a row that is trained.

        Raises:
            ValueError: a recipe is missing, or is of a row that combines others itself or lacks a regime of this one.
        """
        rows = self.published.combines if self.published else ()
        return [(self._member(row.recipe), row.seeds) for row in rows]

    def _member(self, name: str) -> "Recipe":
        try:
            member = Recipe.load(self.path.parent / name, self.allow_code)
        except FileNotFoundError as error:
            hint = did_you_mean(name, _names_of(self.path.parent))
            raise ValueError(f"{self.path} combines {name}, which is not in its folder.{hint}") from error
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
        """Return the recipe's arguments, overridden by those of a regime; mappings are merged by field.

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
        """Return a function from measured metrics, by seed, to their comparison with the published ones.

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


def find_recipe(source: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Resolve a recipe's path; one that does not exist is looked up among the recipes of this package.

    Returns:
        The file, and the name of the row if the path names a row of a file in its folder.

    Raises:
        FileNotFoundError: there is no such file and no such row in either place.
        ValueError: two files of the folder have a row of this name.
    """
    places = (Path(source), RECIPES / source)
    for path in places:
        if path.is_file():
            return path, None
    for path in places:
        files = [file for file in sorted(path.parent.glob("*.yaml")) if path.stem in row_names(file)]
        if len(files) > 1:
            raise ValueError(f"{files[0]} and {files[1].name} both have a row {path.stem}: rename one of them.")
        if files and path.suffix == ".yaml":
            return files[0], path.stem
    package_recipes = [f"{folder.name}/{name}" for folder in sorted(RECIPES.iterdir()) for name in _names_of(folder)]
    parent = Path(source).parent
    near = nearest_name(str(source), [*((parent / name).as_posix() for name in _names_of(parent)), *package_recipes])
    hint = f"Did you mean {near}?" if near else f"Recipes of the package: {', '.join(package_recipes[:3])}, ..."
    raise FileNotFoundError(f"There is no recipe {source}, neither here nor below {RECIPES}. {hint}")


def _names_of(folder: Path) -> list[str]:
    """Return the names of all recipes in a folder."""
    files = sorted(path for kind in ("*.yaml", "*.yml") for path in folder.glob(kind))
    return [name for file in files for name in [f"{row}.yaml" for row in row_names(file)] or [file.name]]


def _check_row_name(place: str, name: str, folder: Path) -> None:
    """Check that a row's name can be a file name in its folder."""
    if not re.fullmatch(r"[\w.+-]*\w", name):
        raise ValueError(f"{place}: a row {name!r}, expected letters, digits and `_`: it is named like a file.")
    if (folder / f"{name}.yaml").exists():
        raise ValueError(f"{place}: a row {name!r}, which is the name of a file beside it: rename the row.")


def _check_arguments(
    path: Path, content: Mapping[str, Any], node: Any, above: tuple[str, ...], allow_code: bool
) -> None:
    """Check the arguments of a recipe or a row, and of its regimes, see `check_argument`."""
    places: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [
        (above, {name: value for name, value in content.items() if name != REPRODUCES})
    ]
    block = content.get(REPRODUCES)
    regimes = block.get("regimes") if isinstance(block, Mapping) else None
    for name, regime in regimes.items() if isinstance(regimes, Mapping) else ():
        arguments = regime.get("arguments") if isinstance(regime, Mapping) else None
        if isinstance(arguments, Mapping):
            places.append(((*above, REPRODUCES, "regimes", str(name), "arguments"), arguments))
    for keys, arguments in places:
        for name, value in arguments.items():
            check_argument(f"{path}:{line_of(node, [*keys, str(name)])}", str(name), value, allow_code)


def _published(path: Path, content: Any) -> PublishedRow:
    try:
        regimes = {str(name): Regime(**(regime or {})) for name, regime in content["regimes"].items()}
        parts = [part for one in regimes.values() for part in (one.arguments, one.published, one.measured)]
        if not all(isinstance(part, Mapping) for part in parts):
            raise TypeError("`arguments`, `published` and `measured` of a regime are mappings")
        rows = tuple(CombinedRow(**row) for row in content.get("combines", ()))
        return PublishedRow(**{**content, "table": str(content["table"]), "regimes": regimes, "combines": rows})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: `{REPRODUCES}` needs paper, table, row and regimes (name: {{arguments, published, measured}}), "
            f"and may have seeds and combines (a list of {{recipe, seeds}}) ({type(error).__name__}: {error})."
        ) from error


def as_arguments(name: str, value: Any) -> list[str]:
    """Convert an argument of a recipe to command line arguments: a list is several values, None is `null`."""
    if value is None:
        return [f"--{name}", NULL]
    if isinstance(value, dict) and name in NAMED_VALUES:
        return [f"--{name}", *(f"{key}={json.dumps(entry)}" for key, entry in value.items())]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(str(entry) for entry in values)]


def in_percent(values: Sequence[float]) -> list[float]:
    """Return [mean, standard deviation] of fractions in percent: without deviation for one value, [] for none."""
    if not values:
        return []
    deviation = [statistics.stdev(values) * PERCENT] if len(values) > 1 else []
    return [statistics.fmean(values) * PERCENT, *deviation]
