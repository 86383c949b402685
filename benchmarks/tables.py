"""Parts of a page of results: tables and commands."""

import statistics


def columns(*names: str) -> list[str]:
    """Return the first two lines of a table."""
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def spread(values: list[float]) -> str:
    """Return the mean and, for several values, the standard deviation."""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def shell(figures: dict) -> list[str]:
    """Return the commands of a result as a block, if it has any."""
    if not figures["commands"]:
        return []
    return ["Commands (`HF_CAPTIONERS_DATA_DIR` is the data folder):", "", "```bash", *commands(figures), "```", ""]


def commands(figures: dict) -> list[str]:
    """Return the shell commands of a result as lines."""
    return (figures["commands"] or "").strip().splitlines()
