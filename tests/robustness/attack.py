"""Long runs of the attacks: `make attack SEED="1 2 3" COUNT=100`.

Every attack runs in a process that is forked from this one. What is done is kept in a folder, so that an interrupted
call is resumed by the next one with the same seeds and count. The table is printed, and written as JSON for
`docs/robustness.md` with `--results`.
"""

import argparse
import json
import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.provenance import add_run_record, run_records, write_results

from .attacks import APART, ATTACKS
from .material import Material, load_libraries
from .outcomes import FAILED, REFUSED, RESULT, Outcome
from .watched_files import canaries_work

STATE = "attacks.jsonl"
CALLS = "calls.txt"  # their number, more than one if a run was interrupted


def planned(seeds: list[int], count: int, classes: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield class, seed and number of every attack."""
    for seed in seeds:
        for name in classes:
            for number in range(math.ceil(count * ATTACKS[name].share)):
                yield name, seed, number


def read_done(path: Path) -> dict[str, Outcome]:
    """Read the outcomes of earlier calls; drop an incomplete last line."""
    if not path.is_file():
        return {}
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"".join(line + b"\n" for line in lines[:-1]))
    records = [json.loads(line) for line in lines[:-1]]
    return {record.pop("key"): Outcome(**record) for record in records}


def calls_of(folder: Path) -> int:
    """Return the number of calls that have run attacks in a folder."""
    return int((folder / CALLS).read_text()) if (folder / CALLS).exists() else 0


def special_files(folder: str, names: list[str]) -> list[str]:
    """Return the names of pipes and sockets in a folder, which cannot be copied."""
    paths = {name: Path(folder, name) for name in names}
    return [name for name, path in paths.items() if path.is_fifo() or path.is_socket()]


def run_attacks(
    seeds: list[int], count: int, classes: list[str], folder: Path, minutes: float = math.inf, again: bool = False
) -> bool:
    """Run the attacks that are missing or failed; return whether all are done."""
    folder = folder.absolute()  # an attack changes the working directory of its process
    folder.mkdir(parents=True, exist_ok=True)
    done, end = read_done(folder / STATE), time.monotonic() + 60 * minutes
    done = {key: outcome for key, outcome in done.items() if not (again and outcome.kind == FAILED)}
    left = [plan for plan in planned(seeds, count, classes) if "/".join(map(str, plan)) not in done]
    if not left:
        return True
    load_libraries()
    material = Material(folder / "material")
    add_run_record(folder)
    (folder / CALLS).write_text(f"{calls_of(folder) + 1}")
    for name in dict.fromkeys(name for name, _, _ in left):
        ATTACKS[name].prepare(material)
    with open(folder / STATE, "a", encoding="utf-8") as state:
        for name, seed, number in left:
            if time.monotonic() > end:
                return False
            key, place = f"{name}/{seed}/{number}", folder / "attack"
            for left_over in (place, folder / "cache"):
                shutil.rmtree(left_over, ignore_errors=True)
            place.mkdir()
            outcome = ATTACKS[name].run(material, key, place)
            if outcome.kind == FAILED:
                print(f"{key}: {outcome.what}: {outcome.reason}", flush=True)
                kept = folder / "failed" / key
                shutil.copytree(place, kept, dirs_exist_ok=True, symlinks=True, ignore=special_files)
            state.write(json.dumps({"key": key, **asdict(outcome)}) + "\n")
            state.flush()
    return True


def summary(done: dict[str, Outcome], seeds: list[int], count: int, classes: list[str]) -> dict[str, dict[str, float]]:
    """Return for each class the number of attacks by outcome, and the largest time and memory."""
    rows = {}
    for name in classes:
        keys = ["/".join(map(str, plan)) for plan in planned(seeds, count, [name])]
        found = [done[key] for key in keys if key in done]
        kinds: Counter[str] = Counter()
        for outcome in found:
            kinds[outcome.kind] += 1 if outcome.kind == FAILED else outcome.attempts
        rows[name] = {
            "tried": sum(outcome.attempts for outcome in found),
            "read": kinds[RESULT],
            "refused": kinds[REFUSED],
            "failed": kinds[FAILED],
            "seconds": max((outcome.seconds for outcome in found), default=0.0),
            "opens": sum(outcome.opens for outcome in found),
            "outside": sum(outcome.outside for outcome in found),
            "megabytes": round(max((outcome.memory for outcome in found), default=0) / 2**20),
        }
    return rows


def table(rows: dict[str, dict[str, float]]) -> str:
    """Return the summary as a table."""
    heads = ("class", "tried", "read", "refused", "failed", "CPU seconds", "opens", "outside", "MB")
    lines = [heads, *((name, *(f"{value:,}" for value in row.values())) for name, row in rows.items())]
    widths = [max(len(str(line[column])) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            str(cell).ljust(width) if not place else str(cell).rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def main() -> int:
    """Run attacks and print the table; 1 if one has failed, 3 if some are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--count", type=int, default=100, help="images for each seed; other classes in proportion")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, metavar="CLASS")
    parser.add_argument("--apart", action="store_true", help="the classes that take minutes or need extras, alone")
    parser.add_argument("--folder", type=Path, default=Path("attack"))
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time; a later call resumes")
    parser.add_argument("--again", action="store_true", help="repeat the attacks that have failed")
    parser.add_argument("--results", type=Path, help="JSON file to write the table to")
    args = parser.parse_args()
    classes = args.only or [name for name in ATTACKS if (name in APART) == args.apart]
    complete = run_attacks(args.seed, args.count, classes, args.folder, args.minutes, args.again)
    rows = summary(read_done(args.folder / STATE), args.seed, args.count, classes)
    print(table(rows))
    if args.results:
        canaries = canaries_work(args.folder.absolute() / "attack")
        figures = {"seeds": args.seed, "count": args.count, "calls": calls_of(args.folder)}
        figures |= {"canaries_note_reads": canaries, "classes": rows}
        write_results(args.results, figures, run_records(args.folder), measured_here=False)
    return 3 if not complete else int(any(row["failed"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
