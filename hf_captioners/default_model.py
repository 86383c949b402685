"""Default captioner, used if a user names none; an installed package provides it by an entry point.

The package has an entry point of the group `hf_captioners.default_model`: the folder of a saved captioner, or a
function without arguments that returns it. In that folder, `default_model.json` may state `name`, `metrics`, `data`
(what these were measured on) and `terms` (of the weights); `introduction` says them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "hf_captioners.default_model"
DEFAULT = "default"  # the name of the installed captioner in place of the name or directory of another one
FACTS_FILE = "default_model.json"
METRIC_TITLES = {"cider_d": "CIDEr-D", "bleu_4": "BLEU-4"}


@dataclass(frozen=True)
class ListedModel:
    """A captioner provided by an installed package.

    Args:
        name: its name.
        folder: its folder.
        metrics: its figures, such as `cider_d`.
        data: what the figures were measured on.
        terms: the terms of its weights in a few words.
    """

    name: str
    folder: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    data: str | None = None
    terms: str | None = None

    @property
    def introduction(self) -> str:
        """Name, measured quality and licence of the default captioner, on one line."""
        figures = [f"{METRIC_TITLES.get(name, name)} {value:.3f}" for name, value in self.metrics.items()]
        measured = f"{', '.join(figures)}{f' on {self.data}' if self.data else ''}"
        parts = (self.name, measured if figures else None, self.terms)
        return f"Captioner: {'; '.join(part for part in parts if part)}."

    def introduction_on(self, runtime: str) -> str:
        """Return the introduction with the name of the backend."""
        return f"{self.introduction.removesuffix('.')}; runs on {runtime}."


def list_models() -> list[ListedModel]:
    """Return the captioners provided by installed packages, with their metrics.

    Raises:
        ValueError: a package offers a folder that is missing, or with damaged facts.
    """
    return [_listed(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]


def _listed(entry: EntryPoint) -> ListedModel:
    offered = f"The default captioner {entry.name!r} ({entry.value})"
    again = "Install the package that offers it again, or uninstall it."
    try:
        value = entry.load()
        folder = Path(value() if callable(value) else value)
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} has no config.json")
        path = folder / FACTS_FILE
        facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        metrics = {str(name): float(figure) for name, figure in facts.get("metrics", {}).items()}
        texts = {name: facts.get(name) for name in ("data", "terms")}
        return ListedModel(str(facts.get("name", entry.name)), folder, metrics, **texts)
    except (Exception, SystemExit) as error:  # a package may raise errors of any type, and end the program
        raise ValueError(f"{offered} cannot be found: {type(error).__name__}: {error}. {again}") from error


def default_model() -> ListedModel:
    """Return the installed default captioner.

    Raises:
        FileNotFoundError: no package offers one.
        ValueError: several packages offer one, see also `list_models`.
    """
    models = list_models()
    if not models:
        raise FileNotFoundError(
            f"No captioner was named, and no installed package offers one (entry point group {GROUP}). Install one, "
            "pip install 'hf-captioners[default]', or name a captioner: `model`."
        )
    if len(models) > 1:
        names = ", ".join(f"{model.name} ({model.folder})" for model in models)
        raise ValueError(
            f"No captioner was named, and several installed packages offer one: {names}. Name the folder of one, "
            "`model`, or uninstall the others."
        )
    return models[0]


def default_folder() -> Path:
    """Return the folder of the installed default captioner, see `default_model`."""
    return default_model().folder


def is_default(source: object) -> bool:
    """Return whether a name means the installed captioner: None, or `default` unless such a folder exists."""
    return source is None or (source == DEFAULT and not Path(DEFAULT).exists())
