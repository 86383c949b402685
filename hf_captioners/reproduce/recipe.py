"""Arguments from YAML files: `hf-captioners train recipe.yaml --num_train_epochs 3`.

A recipe of a published row also says what it reproduces, which `hf-captioners reproduce` reads:

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

A study that nobody published has the same form, with a name of its own for the paper and without `published`.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_captioners.hub.card_facts import PublishedFacts

# Papers print shares in percent, and CIDEr times 100.
PERCENT = 100
SUFFIXES = (".yaml", ".yml")
REPRODUCES = "reproduces"
NULL = "null"
# Arguments that are typed as name=value; other mappings are typed as JSON.
NAMED_VALUES = ("model_config", "processor_config", "data_options")
REGIME_FLAG, REPRODUCES_FLAG = "--regime", "--reproduces"


@dataclass(frozen=True)
class Regime:
    """One column of a published row, such as a share of the training captions.

    Args:
        arguments: what it adds to the recipe's arguments.
        published: figures in percent by the names of our metrics, each with its standard deviation or without.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedRow:
    """What a recipe reproduces.

    Args:
        paper: short name. table: its number. row: as printed there.
        regimes: by name.
        seeds: of the runs whose mean is compared.
    """

    paper: str
    table: str
    row: str
    regimes: Mapping[str, Regime]
    seeds: Sequence[int] = (42,)

    def beside(self, regime: str, figures: Mapping[int, Mapping[str, float]]) -> "PublishedFacts":
        """What was published beside what runs measured.

        Args:
            regime: of the runs.
            figures: of the run with each seed, in natural units.
        """
        from hf_captioners.hub.card_facts import PublishedFacts

        published = self.regimes[regime].published
        measured = {name: [one[name] for one in figures.values() if name in one] for name in published}
        return PublishedFacts(
            paper=self.paper,
            table=self.table,
            row=self.row,
            regime=regime,
            published={name: list(numbers) for name, numbers in published.items()},
            measured={name: in_percent(known) for name, known in measured.items() if known},
            seeds=list(figures),
        )


@dataclass(frozen=True)
class Recipe:
    """A YAML file of arguments.

    Args:
        path: where it lies.
        arguments: names and values.
        published: what it reproduces, if anything.
    """

    path: Path
    arguments: Mapping[str, Any]
    published: PublishedRow | None = None

    @classmethod
    def load(cls, path: Path) -> "Recipe":
        """Read a recipe.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds no mapping, or what it reproduces is incomplete.
        """
        import yaml

        if not path.is_file():
            raise FileNotFoundError(f"There is no recipe {path}.")
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path} holds a {type(content).__name__}, expected lines of the form `name: value`.")
        published = content.pop(REPRODUCES, None)
        return cls(path, content, None if published is None else _published(path, published))

    def with_regime(self, name: str | None) -> dict[str, Any]:
        """The arguments of a regime: its own in the place of the recipe's, fields of mappings one by one.

        Raises:
            ValueError: the recipe has no such regime.
        """
        if name is None:
            return dict(self.arguments)
        regimes = self.published.regimes if self.published else {}
        if name not in regimes:
            raise ValueError(f"`{REGIME_FLAG} {name}`: {self.path} has {', '.join(regimes) or 'none'}.")
        merged = dict(self.arguments)
        for key, value in regimes[name].arguments.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if both else value
        return merged


def _published(path: Path, content: Any) -> PublishedRow:
    try:
        regimes = {str(name): Regime(**(regime or {})) for name, regime in content["regimes"].items()}
        return PublishedRow(**{**content, "table": str(content["table"]), "regimes": regimes})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: `{REPRODUCES}` needs paper, table, row and regimes (name: {{arguments, published}}), and may "
            f"have seeds ({type(error).__name__}: {error})."
        ) from error


def with_recipe(arguments: Sequence[str]) -> list[str]:
    """Put the contents of the YAML files that come first in front of the other arguments, which override them.

    Args:
        arguments: what was typed behind the command; `--regime NAME` behind the files chooses one of the first's, and
            becomes `--reproduces FILE NAME`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file is no recipe, or has no such regime.
    """
    count = next((place for place, text in enumerate(arguments) if not text.endswith(SUFFIXES)), len(arguments))
    typed = list(arguments[count:])
    if not count:
        return typed
    recipe, *others = (Recipe.load(Path(text)) for text in arguments[:count])
    regime = None
    if REGIME_FLAG in typed[:-1]:
        place = typed.index(REGIME_FLAG)
        regime = typed[place + 1]
        typed[place : place + 1] = [REPRODUCES_FLAG, str(recipe.path)]
    parts = [recipe.with_regime(regime), *(other.arguments for other in others)]
    return [text for part in parts for name, value in part.items() for text in as_arguments(name, value)] + typed


def as_arguments(name: str, value: Any) -> list[str]:
    """The arguments that say the same as one entry: a list is several values, None is `null`."""
    if value is None:
        return [f"--{name}", NULL]
    if isinstance(value, dict) and name in NAMED_VALUES:
        return [f"--{name}", *(f"{key}={json.dumps(entry)}" for key, entry in value.items())]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(str(entry) for entry in values)]


def in_percent(values: Sequence[float]) -> list[float]:
    """The mean in percent, and of two values or more their deviation; nothing of none."""
    if not values:
        return []
    deviation = [statistics.stdev(values) * PERCENT] if len(values) > 1 else []
    return [statistics.fmean(values) * PERCENT, *deviation]
