"""Tables of results: CSV with a line per run, and Markdown with means beside the published metrics."""

import csv
import io
import shlex
from collections.abc import Sequence
from typing import Any

from hf_captioners.hub.cards import with_deviation

from .recipe import PERCENT, PublishedRow, Recipe, in_percent
from .runs import DONE, FAILED
from .verification import smallest_difference

HEAD = ("paper", "table", "row", "regime", "seed", "status", "seconds", "error", "arguments")


def as_csv(results: Sequence[dict[str, Any]]) -> str:
    """Format results as CSV with a line per run, failed ones included."""
    metrics = list(dict.fromkeys(name for result in results for name in result["figures"]))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*HEAD, *metrics], lineterminator="\n")
    writer.writeheader()
    for result in results:
        line = {**result, "arguments": shlex.join(result["arguments"]), **result["figures"]}
        writer.writerow({name: line.get(name, "") for name in writer.fieldnames})
    return text.getvalue()


def as_markdown(recipes: Sequence[Recipe], results: Sequence[dict[str, Any]]) -> str:
    """Format results as a Markdown table: mean ± standard deviation over seeds in percent, and published values.

    Its last line is the smallest difference of two rows' means that their seeds can show.

    Args:
        recipes: all recipes of the paper; they give the order of the rows.
        results: results of runs, see `execute_runs`.
    """
    rows = [recipe.published for recipe in recipes if recipe.published]
    regimes = [regime for row in rows for regime in row.regimes.values()]
    published_metrics = dict.fromkeys(name for regime in regimes for name in regime.published)
    metrics = list(published_metrics or dict.fromkeys(name for result in results for name in result["figures"]))
    lines = [
        "| table | row | regime | | " + " | ".join(metrics) + " |",
        "|---|---|---|---|" + "---|" * len(metrics),
    ]
    for row in rows:
        for name in row.regimes:
            regime_results = [
                result
                for result in results
                if (result["table"], result["row"], result["regime"]) == (row.table, row.row, name)
            ]
            if regime_results:
                lines += _regime_lines(row, name, regime_results, metrics)
    lines += _smallest_differences(results, metrics)
    return "\n".join(lines) + "\n"


def _regime_lines(row: PublishedRow, name: str, results: list[dict[str, Any]], metrics: list[str]) -> list[str]:
    """Return the table lines of one regime: measured, and published if there are any."""
    done = [result["figures"] for result in results if result["status"] == DONE]
    failed = sum(result["status"] == FAILED for result in results)
    runs = f"measured, {len(done)} run{'s' * (len(done) != 1)}" + f", {failed} failed" * bool(failed)
    measured = [
        with_deviation(in_percent([result[metric] for result in done if metric in result])) for metric in metrics
    ]
    lines = [f"| {row.table} | {row.row} | {name} | {runs} | " + " | ".join(measured) + " |"]
    published = row.regimes[name].published
    if published:
        values = [with_deviation(published.get(metric, [])) for metric in metrics]
        lines.append("| | | | published | " + " | ".join(values) + " |")
    return lines


def _smallest_differences(results: Sequence[dict[str, Any]], metrics: Sequence[str]) -> list[str]:
    """Return the table line of the smallest differences that the seeds can show; [] without rows of several seeds."""
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for result in results:
        if result["status"] == DONE:
            groups.setdefault((result["table"], result["row"], result["regime"]), []).append(result["figures"])
    found = {
        metric: smallest_difference([[one[metric] for one in figures if metric in one] for figures in groups.values()])
        for metric in metrics
    }
    counts = [one[0] for one in found.values() if one]
    if not counts:
        return []
    cells = [f"{PERCENT * one[1]:.2f}" if one else "" for one in found.values()]
    return [f"| | | | smallest difference that {min(counts)} seeds show | {' | '.join(cells)} |"]
