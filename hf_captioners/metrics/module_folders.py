"""Folders of the `evaluate` modules of the metrics."""

from pathlib import Path


def module_path(name: str) -> str:
    """Return the folder of a metric's `evaluate` module.

    Args:
        name: `bleu`, `rouge_l`, `cider_d`, `cider_original`, `meteor` or `spice`.

    Raises:
        ValueError: there is no module of this name.

    Example:
        >>> from pathlib import Path
        >>> from hf_captioners.metrics import module_path
        >>> Path(module_path("cider_d")).name  # `evaluate.load(module_path("cider_d"))` loads the metric
        'cider_d'
    """
    modules = Path(__file__).parent / "modules"
    if not (modules / name / f"{name}.py").is_file():
        names = sorted(folder.name for folder in modules.iterdir() if (folder / f"{folder.name}.py").is_file())
        raise ValueError(f"There is no module {name!r}, expected one of {', '.join(names)}.")
    return str(modules / name)
