"""Write docs/robustness.md from two files of benchmarks/results, which `make attack` writes.

make attack SEED="1 2 3" COUNT=100 ARGS="--results benchmarks/results/robustness.json"
make attack SEED=1 COUNT=60 ARGS="--apart --results benchmarks/results/robustness_apart.json"
python benchmarks/write_robustness.py
"""

import json
from typing import Any

from known_changes import RESULTS as FOLDER
from known_changes import known_changes, provenance_lines
from provenance import ROOT

RESULTS = FOLDER / "robustness.json"
APART = FOLDER / "robustness_apart.json"
HEAD = """# Robustness

`make attack` gives the library damaged and hostile files, and kills its long jobs. This page lists what was tried. Two
outcomes are permitted: a result, or an error of this library whose message names the fault (the file, and the row or
image where there is one). Everything else counts as failed:

- an exception of another library, a crash, or an error that does not name the file;
- more than 10 CPU seconds, or more than 300 MB of memory plus 4 times the size of a decoded image within the limit of
  pixels;
- a program that is started, code that is run, or a connection to another machine;
- a file outside of the folders that were given that is opened for writing, replaced or removed, and one that is read,
  but for those of Python and a short list (`tests/robustness/watched_files.py`, which also lays out canary files for
  readers in C, whose opens Python does not see);
- a wrong result: readers that disagree, numbers that are not finite, captions that one of two writers loses;
- a resumed job that writes other files than an undisturbed one. Files are compared byte by byte; weights must be equal
  within 1e-6.

`tests/robustness/outcomes.py` defines these limits. Every attack runs in a process that is forked from one that has
loaded the library. Folders of strangers have links, pipes, sockets and devices under the names that commands read and
write; images have odd names in several forms; tables have several writers; data change while a run is interrupted.
`tests/robustness/test_attacks.py` removes a guard of the library for each class and shows that its attacks find that,
and does the same for the harness: reads and writes outside, by Python and by readers in C, must be noticed.

"""
TAIL = """
The columns: attacks or kills that were made; those that ended in a result, and in an error that names the fault; those
that failed; the largest CPU time of an attack (for kills, of the undisturbed job), and its largest memory above what
the process held before; opens and changes of files by Python that the audit hook looked at, and how many of them were
outside of the given folders and the list of permitted reads, with canaries that were disturbed. Jobs that are killed
are watched in the same way, but what they open is not counted.

## Run the attacks

```bash
make attack SEED="1 2 3" COUNT=100                  # all classes of the first table
make attack SEED=7 COUNT=10                         # fewer attacks, with a different seed
make attack SEED=1 COUNT=60 ARGS="--apart"          # the classes of the second table
```

`COUNT` is the number of images for each seed; other classes are attacked in proportion. The same command resumes an
interrupted run, and `ARGS="--minutes 20"` ends it after that time. The folder `attack/failed` has the files of attacks
that have failed. The classes of the second table take minutes each and need the extras `ray` and `space`. To write the
tables again:

```bash
make attack SEED="1 2 3" COUNT=100 ARGS="--results benchmarks/results/robustness.json"
make attack SEED=1 COUNT=60 ARGS="--apart --results benchmarks/results/robustness_apart.json"
python benchmarks/write_robustness.py
```

`make test` runs a short form with other seeds.

## Limits

| limit | value | how to raise it |
|---|---|---|
| pixels of an image | 178,956,970 | `--max_image_pixels`, `PIL.Image.MAX_IMAGE_PIXELS` |
| download of an image | 60 seconds, 64 MiB | `timeout`, `max_bytes` |
| features of an image | 16,777,216 numbers | `max_numbers` |
| decompressed `.gz` file | 64 MiB, or 32 times its size | decompress it with `gunzip` |
| instructions of a pickle | 1,000,000 | `max_steps` |
| compressed parts of a torch file | 64 MiB, or 8 times its size | pack it again with `zip -0` |
| images of a row group of a Parquet file | 64 MiB, or 32 times the size of the file | write smaller row groups |
| replacements of a `tokenizer.json` | 100 times the length of a text | none; use a tokenizer that you trust |
| compressed Arrow files of a saved data set | none | save it again with `Dataset.save_to_disk` |
"""
COLUMNS = ("tried", "read", "refused", "failed", "seconds", "megabytes", "opens", "outside")
SUMS = ("tried", "read", "refused", "failed", "opens", "outside")
ABOUT = """\
The kills among 10,000 files: 1 % of the files are damaged or hostile, the job is killed ten times and resumed, and
its output is equal to that of an undisturbed job, byte by byte. Killed workers: processes that prepare images for
`caption --shard 1/2` and `2/2`, and tasks and actors of Ray. The job goes on, or ends with one line that says so
and is resumed; its files are equal to those of undisturbed jobs. The page of a Space is served by Gradio, in the
process of the attack. An answer of Gradio without a caption counts as refused, whatever its text; afterwards the
page must caption as before.
"""
UNWATCHED = "killed workers"  # classes whose jobs are started as new processes


def cell(name: str, column: str, value: float) -> str:
    """Format a value; a dash if a class does not measure it."""
    is_job = name.startswith("kill")
    if (is_job and column in ("megabytes", "opens")) or (
        name.startswith(UNWATCHED) and column in ("seconds", "outside")
    ):
        return "-"
    return f"{value:,}"


def table(name: str, results: dict[str, Any]) -> list[str]:
    """Format a Markdown table and its provenance."""
    lines = [
        *provenance_lines(name, results["provenance"], known_changes()),
        "| class | tried | result | refused | failed | CPU seconds | MB | opens | outside |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, row in results["classes"].items():
        lines.append(f"| {kind} | " + " | ".join(cell(kind, column, row[column]) for column in COLUMNS) + " |")
    total = {column: sum(row[column] for row in results["classes"].values()) for column in SUMS}
    values = [f"**{total[column]:,}**" if column in SUMS else "" for column in COLUMNS]
    return [*lines, f"| **all** | {' | '.join(values)} |".replace("|  |", "| |"), ""]


def run_of(results: dict[str, Any]) -> str:
    """Describe in words how often a run was continued."""
    return "one uninterrupted run" if results["calls"] == 1 else f"a run in {results['calls']} calls"


def page() -> str:
    """Format the whole page."""
    results, apart = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, APART))
    seeds = ", ".join(map(str, results["seeds"]))
    canaries = results["canaries_note_reads"] and apart["canaries_note_reads"]
    lines = [
        f"## Result\n\nSeeds {seeds}, `COUNT={results['count']}`, {run_of(results)}.\n",
        *table("robustness", results),
        "### Classes that are run apart\n",
        f"Seed {', '.join(map(str, apart['seeds']))}, `COUNT={apart['count']}`, {run_of(apart)}.\n",
        *table("robustness_apart", apart),
        ABOUT,
        "The file systems of these runs note when a file is read, so canaries that readers in C open are seen."
        if canaries
        else "The file system of a run does not note when a file is read: canaries tell changes and copies only.",
    ]
    return HEAD + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    (ROOT / "docs" / "robustness.md").write_text(page(), encoding="utf-8")
