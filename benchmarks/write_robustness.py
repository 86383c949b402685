"""Write docs/robustness.md from benchmarks/results/robustness.json, which `make attack` writes.

make attack SEED="1 2 3" COUNT=100 ARGS="--results benchmarks/results/robustness.json"
python benchmarks/write_robustness.py
"""

import json

from known_changes import RESULTS as FOLDER
from known_changes import known_changes, provenance_lines
from provenance import ROOT

RESULTS = FOLDER / "robustness.json"
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
`tests/robustness/test_attacks.py` plants faults and shows that these attacks find them.

"""
TAIL = """
The columns: attacks or kills that were made; those that ended in a result, and in an error that names the fault; those
that failed; the largest CPU time of an attack (for kills, of the undisturbed job), and its largest memory above what
the process held before.

## Run the attacks

```bash
make attack SEED="1 2 3" COUNT=100   # about 16 times as many as in the table above
make attack SEED=7 COUNT=10          # fewer attacks, with a different seed
```

`COUNT` is the number of images for each seed; other classes are attacked in proportion. The same command resumes an
interrupted run, and `ARGS="--minutes 20"` ends it after that time. The folder `attack/failed` has the files of attacks
that have failed. To write the table again:

```bash
make attack SEED="1 2 3" COUNT=100 ARGS="--results benchmarks/results/robustness.json"
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
COLUMNS = ("tried", "read", "refused", "failed", "seconds", "megabytes")


def page() -> str:
    """Format the whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    seeds = ", ".join(map(str, results["seeds"]))
    lines = [
        f"## Result\n\nSeeds {seeds}, `COUNT={results['count']}`.\n",
        "One uninterrupted run of all classes but those of `--apart`: kills among 10,000 files, killed workers of",
        "shards and Ray, and uploads to the page of a Space, which take minutes or need extras.\n",
        *provenance_lines("robustness", results["provenance"], known_changes()),
        "| class | tried | result | refused | failed | CPU seconds | MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in results["classes"].items():
        lines.append(f"| {name} | " + " | ".join(f"{row[column]:,}" for column in COLUMNS) + " |")
    total = {column: sum(row[column] for row in results["classes"].values()) for column in COLUMNS[:4]}
    lines.append("| **all** | " + " | ".join(f"**{value:,}**" for value in total.values()) + " | | |")
    return HEAD + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    (ROOT / "docs" / "robustness.md").write_text(page(), encoding="utf-8")
