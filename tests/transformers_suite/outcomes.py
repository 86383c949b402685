"""The outcomes of transformers' common tests on captioners, as a file and as a section of docs/transformers_tests.md.

`make test-transformers` writes a file of outcomes with `OUTCOMES=FILE`; `python -m tests.transformers_suite.outcomes`
writes `outcomes.json` of this folder into the page.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from .not_applicable import NOT_APPLICABLE

STATES = ("passed", "not applicable", "failed")
COLUMNS = ("pixels", "regions", "processor")
STORED = Path(__file__).with_name("outcomes.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "transformers_tests.md"
START, END = "<!-- made by tests/transformers_suite/outcomes.py -->", "<!-- end -->"


def cell(counts: dict[str, int] | None) -> str:
    """Return counts as `passed / not applicable / failed`."""
    return " / ".join(str(counts.get(state, 0)) for state in STATES) if counts else ""


def total_of(table: dict[str, dict[str, dict[str, int]]], suite: str | None = None) -> dict[str, int]:
    """Return the sum of all counts of a suite; None: of all."""
    total: Counter[str] = Counter()
    for suites in table.values():
        for name, counts in suites.items():
            total.update(counts if suite in (None, name) else {})
    return dict(total)


def lines_of_table(table: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """Return the table: a row for each architecture, a column for each suite.

    Args:
        table: numbers of tests by architecture, suite and state.
    """
    lines = [f"| architecture | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, suites in sorted(table.items()):
        if name != "all":
            lines.append(f"| `{name}` | {' | '.join(cell(suites.get(suite)) for suite in COLUMNS)} |")
    lines.append(f"| total | {' | '.join(cell(total_of(table, suite)) for suite in COLUMNS)} |")
    return lines


def section(outcomes: dict[str, Any]) -> str:
    """Return the text of the section: the table, what the suite skips by itself, and what does not apply."""
    table, suites = outcomes["table"], NOT_APPLICABLE
    total = total_of(table)
    images = table.get("all", {}).get("image processor")
    lines = [
        f"transformers {outcomes['transformers']}, passed / not applicable / failed (tests that the suite skips by "
        "itself count as not applicable):",
        "",
        *lines_of_table(table),
        "",
        f"The image processors, which all share: {cell(images)}. In all: {cell(total)}.",
        "",
        "The suite skips by itself, most often:",
        "",
        "| reason | tests |",
        "|---|---|",
        *(f"| {reason} | {count} |" for reason, count in outcomes["skipped"]),
        "",
        "These tests run and fail, because captioners lack what they assume. `not_applicable.py` of "
        "`tests/transformers_suite` lists them; a test that passes in spite of its entry fails the run.",
        "",
        "| test | suite | architectures | what is missing |",
        "|---|---|---|---|",
    ]
    for entry in suites:
        names = ", ".join(f"`{name}`" for name in sorted(set(entry.architectures or ()))) or "all"
        lines.append(f"| `{entry.test}` | {', '.join(entry.suites)} | {names} | {entry.reason} |")
    return "\n".join(lines)


def with_section(page: str, outcomes: dict[str, Any]) -> str:
    """Return the text of a page with the section between its marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{section(outcomes)}\n\n{END}{after}"


def main() -> None:
    """Write the stored outcomes into the page."""
    outcomes = json.loads(STORED.read_text(encoding="utf-8"))
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
