"""Code changes that invalidate benchmark results, and the provenance lines of the results page.

    python benchmarks/known_changes.py

`known_changes.json` lists the changes: `commit`, `why`, the names of the `results` that they invalidate, and
`contained_in`, the recorded commits of these results that contain the change. A result of any other commit is to be
repeated. To enter a change, add it with an empty `contained_in` and run this script: it asks git for the order of the
commits, so that the page can be written, and tested, without the history.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provenance import ROOT

RESULTS = ROOT / "benchmarks" / "results"
CHANGES = ROOT / "benchmarks" / "known_changes.json"


def known_changes(path: Path = CHANGES) -> list[dict[str, Any]]:
    """Read the list of changes that invalidate results."""
    return list(json.loads(path.read_text(encoding="utf-8")))


def invalidating(
    name: str, records: Sequence[dict[str, Any]], changes: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the changes that invalidate a result and are not part of the code that measured it.

    Args:
        name: of the result, without `.json`.
        records: its provenance; figures of several commits are those of the oldest one, so each has to contain the
            change.
        changes: see `known_changes`.
    """
    return [
        change
        for change in changes
        if name in change["results"] and any(record["commit"] not in change["contained_in"] for record in records)
    ]


def invalidated(changes: Sequence[dict[str, Any]], results: Path = RESULTS) -> list[str]:
    """Return the names of results that must be measured again."""
    files = sorted(results.glob("*.json"))
    records = {path.stem: json.loads(path.read_text(encoding="utf-8"))["provenance"] for path in files}
    return [name for name in records if invalidating(name, records[name], changes)]


def measured_by(record: dict[str, Any]) -> str:
    """Format commit, date, CPU and threads of a measurement."""
    commit = f"commit `{record['commit'][:7]}`" if record["commit"] else "an unknown commit"
    if not record["recorded"]:
        return f"{commit} of {record['date']} or an earlier one, CPU not recorded"
    changed = " with uncommitted changes" if record["dirty"] else ""
    count = record["threads"]
    return f"{commit}{changed}, {record['date']}, {record['cpu']}, {count} {'thread' if count == 1 else 'threads'}"


def provenance_lines(name: str, records: Sequence[dict[str, Any]], changes: Sequence[dict[str, Any]]) -> list[str]:
    """Return Markdown lines that state what measured a section, and whether it must be repeated."""
    latest = {measured_by(record | {"date": ""}): measured_by(record) for record in records}
    lines = [f"*Measured by {'; '.join(latest.values())}.*", ""]
    for change in invalidating(name, records, changes):
        lines += [f"**Measured before commit `{change['commit'][:7]}` ({change['why']}), to be repeated.**", ""]
    return lines


def with_order(change: dict[str, Any], commits: Sequence[str], root: Path = ROOT) -> dict[str, Any]:
    """Add to a change the commits that contain it, by git.

    Raises:
        subprocess.CalledProcessError: git does not know a commit, for example in a shallow clone.
    """
    contained_in = []
    for commit in commits:
        ask = ["git", "-C", str(root), "merge-base", "--is-ancestor", change["commit"], commit]
        answer = subprocess.run(ask, capture_output=True, text=True)
        if answer.returncode not in (0, 1):
            answer.check_returncode()
        if answer.returncode == 0:
            contained_in.append(commit)
    return change | {"contained_in": contained_in}


def recorded_commits(names: Sequence[str], results: Path = RESULTS) -> list[str]:
    """Return all commits recorded in these result files."""
    files = [results / f"{name}.json" for name in names]
    read = [json.loads(path.read_text(encoding="utf-8"))["provenance"] for path in files if path.is_file()]
    return sorted({record["commit"] for records in read for record in records if record["commit"]})


def main() -> None:
    """Ask git which results contain which changes, and write it."""
    changes = [with_order(change, recorded_commits(change["results"])) for change in known_changes()]
    CHANGES.write_text(json.dumps(changes, indent=1) + "\n", encoding="utf-8")
    print("To be repeated:", ", ".join(invalidated(changes)) or "nothing")


if __name__ == "__main__":
    main()
