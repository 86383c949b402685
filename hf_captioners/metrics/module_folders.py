"""Folders of the `evaluate` modules of the metrics."""

from pathlib import Path

from hf_captioners.names import did_you_mean
from hf_captioners.output_files import write_text

from .meteor_tables import cache_folder
from .registry import METRICS, Metric

_MODULE = '''"""{about}."""

from hf_captioners.metrics import evaluate_module


class Module(evaluate_module.CaptionMetric):
    """{about}."""

    metric = {name!r}
    bibtex = {bibtex!r}
    returns = {returns!r}
    example_figure = None
'''


def module_path(name: str) -> str:
    """Return the folder of a metric's `evaluate` module, for `evaluate.load`.

    Metrics without a module of their own in this package get one in the cache folder.

    Args:
        name: one of `METRICS`.

    Raises:
        ValueError: there is no metric of this name; the message has the nearest one.

    Examples:
        >>> from pathlib import Path
        >>> from hf_captioners.metrics import module_path
        >>> Path(module_path("cider_d")).name  # `evaluate.load(module_path("cider_d"))` loads the metric
        'cider_d'
    """
    folder = Path(__file__).parent / "modules" / name
    if name not in METRICS:
        raise ValueError(
            f"There is no metric {name!r}, expected one of {', '.join(sorted(METRICS))}.{did_you_mean(name, METRICS)}"
        )
    return str(folder if (folder / f"{name}.py").is_file() else _written_module(name, METRICS[name]))


def _written_module(name: str, metric: Metric) -> Path:
    """Write the `evaluate` module of a metric into the cache, if it is missing or old; return its folder."""
    file = cache_folder() / "modules" / name / f"{name}.py"
    returns = ", ".join(metric.titles or [name]) + "."
    content = _MODULE.format(about=metric.about, name=name, bibtex=metric.bibtex, returns=returns)
    if not file.is_file() or file.read_text(encoding="utf-8") != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, content)
    return file.parent
