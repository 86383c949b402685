"""The table of docs/peers.md.

`python -m tests.peers.page --measure` runs all uses and writes `outcomes.json` of this folder; without `--measure`,
the command writes that file into the page.
"""

import argparse
import json
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STORED, PAGE = Path(__file__).with_name("outcomes.json"), ROOT / "docs" / "peers.md"
START, END = "<!-- made by tests/peers/page.py -->", "<!-- end -->"
PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "torchao", "optimum-quanto")


def measure() -> dict[str, Any]:
    """Run every use with every architecture: cells by use and architecture, and the versions."""
    from hf_captioners.architectures import ARCHITECTURES
    from tests.hub.captioner_cases import case_of

    from .methods import CHECKS, PROCESSES, launch

    names = sorted(name for name, row in ARCHITECTURES.items() if row.package is None)
    table: dict[str, dict[str, str]] = {}
    for check, (_, function) in CHECKS.items():
        table[check] = {}
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    table[check][name] = function(case_of(name), Path(folder))
                except Exception as error:
                    table[check][name] = f"fails: {type(error).__name__}"
                    warnings.warn(f"{check}, {name}: {error}", stacklevel=1)
    for kind, title in PROCESSES.items():
        with tempfile.TemporaryDirectory() as folder:
            found = launch(kind, Path(folder))
        table[title] = {name: found[name] if len(found[name]) < 40 else "fails" for name in names}
    return {"versions": {name: version(name) for name in PACKAGES}, "table": table}


def section(outcomes: dict[str, Any]) -> str:
    """Return the table: a row for each use, with the architectures of each outcome."""
    lines = ["| use | outcome |", "|---|---|"]
    for check, cells in outcomes["table"].items():
        lines.append(f"| {check} | {summary(cells)} |")
    versions = ", ".join(f"{name} {number}" for name, number in outcomes["versions"].items())
    return "\n".join([*lines, "", f"Versions: {versions}."])


def summary(cells: dict[str, str]) -> str:
    """Return the outcomes of a use; those that all architectures share are written once."""
    if len(set(cells.values())) == 1:
        return f"all {len(cells)}: {next(iter(cells.values()))}"
    if all(cell.endswith("%") for cell in cells.values()):
        return ", ".join(f"`{name}` {cell}" for name, cell in cells.items())
    common = max(set(cells.values()), key=list(cells.values()).count)
    others = [f"`{name}`: {cell}" for name, cell in cells.items() if cell != common]
    return "; ".join([f"{len(cells) - len(others)}: {common}", *others])


def with_table(page: str, outcomes: dict[str, Any]) -> str:
    """Return the text of a page with the table between its marks."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n\n{section(outcomes)}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Measure if asked for, and write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run all uses (some minutes)")
    if parser.parse_args().measure:
        STORED.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    outcomes = json.loads(STORED.read_text(encoding="utf-8"))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
