"""Folders of the `evaluate` modules of the metrics."""

from pathlib import Path


def module_path(name: str) -> str:
    """Return the folder of a metric's `evaluate` module: `evaluate.load(module_path("cider_d"))`.

    Args:
        name: `bleu`, `rouge_l`, `cider_d`, `cider_original`, `meteor`, `spice` or `spice_rules`.

    Raises:
        ValueError: there is no such module.
    """
    modules = Path(__file__).parent / "modules"
    if not (modules / name / f"{name}.py").is_file():
        names = sorted(folder.name for folder in modules.iterdir() if (folder / f"{folder.name}.py").is_file())
        raise ValueError(f"There is no module {name!r}, expected one of {', '.join(names)}.")
    return str(modules / name)
