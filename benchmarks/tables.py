"""Markdown tables and commands of the results page."""

import statistics


def columns(*names: str) -> list[str]:
    """Format the header of a Markdown table."""
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def spread(values: list[float]) -> str:
    """Format the mean and, for several values, the standard deviation."""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def shell(figures: dict) -> list[str]:
    """Format the commands of a result as a code block; [] without commands."""
    if not figures["commands"]:
        return []
    lines = commands(figures)
    folder = (
        " (`HF_CAPTIONERS_DATA_DIR` is the data folder)" if "HF_CAPTIONERS_DATA_DIR" in figures["commands"] else ""
    )
    return [f"Commands{folder}:", "", "```bash", *lines, "```", ""]


def commands(figures: dict) -> list[str]:
    """Return the shell commands of a result, one per line."""
    return (figures["commands"] or "").strip().splitlines()
