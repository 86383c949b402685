"""Write docs/evaluator.md and its figure from the results of evaluator.py.

python benchmarks/evaluator.py --data_dir $HF_CAPTIONERS_DATA_DIR --coco_captions captions_train2014.json
python benchmarks/write_evaluator.py
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

import matplotlib
from known_changes import RESULTS as FOLDER
from known_changes import known_changes, provenance_lines
from matplotlib.figure import Figure
from provenance import ROOT

PAGE, FIGURE = ROOT / "docs" / "evaluator.md", "figures/evaluator.svg"
RESULTS = FOLDER / "evaluator.json"
HEAD = """# How many points are the evaluator's

Papers compare CIDEr and BLEU of programs that do not count alike: they split words differently, keep or remove full
stops, and take the document frequencies of CIDEr from other captions. This page scores the same captions in every such
setting. Scores are in points as papers print them: a CIDEr-D of 1.2 is 120.

The first setting of each table is that of the COCO evaluation (PTB tokens, document frequencies of the references that
are scored, CIDEr-D, BLEU with brevity penalty), which is the default of `hf-captioners score` and of all figures of
this library.

"""
FACTORS = {
    "tokenizer": "words are split by",
    "stops": "final full stops",
    "frequency": "document frequencies",
    "cider": "variant",
    "references": "references an image",
}
TAIL = """
## What follows

Compare figures of one evaluator only, and say which one it was. To compare with a paper, score its captions, or yours,
with the COCO evaluation: all references of each image, all images of the split at once. `hf-captioners score` does
that without Java, with the results of the original programs to the last digit ([metrics](metrics.md)).

## Repeat it

```bash
pip install nltk spacy
python benchmarks/evaluator.py --data_dir $HF_CAPTIONERS_DATA_DIR --coco_captions captions_train2014.json
python benchmarks/write_evaluator.py
```
"""


def points(score: float) -> str:
    """Format a score as papers print it."""
    return f"{100 * score:.1f}"


def change(score: float, standard: float) -> str:
    """Format a score and its difference from the COCO evaluation's, unless it rounds to 0."""
    difference = round(100 * (score - standard), 1)
    return f"{points(score)} ({difference:+.1f})" if difference else points(score)


def cider_rows(captions: dict[str, Any], standard: dict[str, Any]) -> list[tuple[str, str, dict[str, float]]]:
    """Return (factor, value, scores) of the standard setting, then of settings that differ in one factor."""
    rows = [row for row in captions["rows"] if row["metric"] == "CIDEr"]
    found = [("the COCO evaluation", "", row["scores"]) for row in rows if differences(row, standard) == []]
    for factor, title in FACTORS.items():
        found += [(title, str(row[factor]), row["scores"]) for row in rows if differences(row, standard) == [factor]]
    return found


def differences(row: dict[str, Any], standard: dict[str, Any]) -> list[str]:
    """Return the factors in which a setting differs from the standard."""
    return [factor for factor, value in standard.items() if row[factor] != value]


def bleu_rows(captions: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Return the settings of BLEU and their scores, the standard first."""
    rows = [row for row in captions["rows"] if row["metric"] == "BLEU-4"]
    return [
        (
            f"{row['tokenizer']}, stops {row['stops']}, {'with' if row['brevity_penalty'] else 'without'} penalty",
            row["scores"],
        )
        for row in rows
    ]


def order_changes(rows: Sequence[dict[str, float]]) -> list[tuple[str, str, float, int]]:
    """Return, for each pair of systems, names, difference in the standard setting, and settings that reverse it."""
    found = []
    for first, second in itertools.combinations(rows[0], 2):
        standard = rows[0][first] - rows[0][second]
        found.append((first, second, standard, sum((row[first] - row[second]) * standard < 0 for row in rows)))
    return found


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Format a Markdown table."""
    header = list(header)
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def section(captions: dict[str, Any], standard: dict[str, Any]) -> list[str]:
    """Format the section on a set of captions."""
    rows = cider_rows(captions, standard)
    base = rows[0][2]
    names = list(base)
    lines = [f"## {captions['name']}, {captions['images']:,} images", "", "CIDEr:", ""]
    lines += table(
        ("setting", "", *names),
        ((title, value, *(change(scores[name], base[name]) for name in names)) for title, value, scores in rows),
    )
    bleu = bleu_rows(captions)
    lines += ["", "BLEU-4:", ""]
    lines += table(
        ("setting", *names),
        ((title, *(change(scores[name], bleu[0][1][name]) for name in names)) for title, scores in bleu),
    )
    everything = [row["scores"] for row in captions["rows"] if row["metric"] == "CIDEr" and row["references"] == "all"]
    lines += [
        "",
        f"Order of two systems by CIDEr in all {len(everything)} settings of words, stops, document frequencies and "
        "variant with all references:",
        "",
        *table(
            ("systems", "difference by the COCO evaluation", "settings of the other order"),
            (
                (f"{first} - {second}", f"{100 * gap:+.1f}", f"{count} of {len(everything)}")
                for first, second, gap, count in order_changes(everything)
            ),
        ),
        "",
    ]
    return lines


def spread(results: dict[str, Any]) -> list[str]:
    """Format a sentence on the range of scores of the same captions."""
    sentences = []
    for captions in results["sets"]:
        name = next(iter(captions["rows"][0]["scores"]))
        scores = [
            row["scores"][name] for row in captions["rows"] if row["metric"] == "CIDEr" and row["references"] == "all"
        ]
        sentences.append(f"{points(min(scores))} to {points(max(scores))} for {name} ({captions['name']})")
    seeds = json.loads((FOLDER / "flickr8k_show_attend_tell.json").read_text(encoding="utf-8"))["runs"]
    deviation = points(statistics.stdev(run["cider_d"] for run in seeds))
    return [
        f"The same captions have a CIDEr of {' and '.join(sentences)}. Beside that, the standard deviation of a "
        f"training seed is {deviation} points of CIDEr-D (Show, Attend and Tell on Flickr8k, {len(seeds)} seeds; "
        "[results](results_flickr8k.md)).",
        "",
    ]


def figure(results: dict[str, Any]) -> str:
    """Draw CIDEr of every system in every setting with all references, as SVG."""
    drawing = Figure(figsize=(8, 2.2 * len(results["sets"])), layout="constrained")
    for axes, captions in zip(drawing.subplots(len(results["sets"])), results["sets"], strict=True):
        rows = [row for row in captions["rows"] if row["metric"] == "CIDEr" and row["references"] == "all"]
        names = list(rows[0]["scores"])
        for row in rows:
            is_standard = not differences(row, results["standard"])
            style: dict[str, Any] = (
                {"s": 60, "c": "#c0392b", "zorder": 3} if is_standard else {"s": 14, "c": "#7f8c8d"}
            )
            axes.scatter([100 * row["scores"][name] for name in names], range(len(names)), **style)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(f"{captions['name']}: CIDEr in {len(rows)} settings; large: the COCO evaluation", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    buffer = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "evaluator", "svg.fonttype": "path"}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def page(results: dict[str, Any] | None = None) -> str:
    """Format the whole page."""
    if results is None:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [
        *provenance_lines("evaluator", results["provenance"], known_changes()),
        *spread(results),
        f"![CIDEr of the same captions in all settings]({FIGURE})",
        "",
    ]
    for captions in results["sets"]:
        lines += section(captions, results["standard"])
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines.append(
        f"Words split at blanks are in lower case with their punctuation; NLTK is its Treebank tokenizer, spaCy its "
        f"English tokenizer ({versions}). Document frequencies of COCO are those of the captions of train2014. "
        "Captions of a person are scored against the other captions of their image, so all systems are."
    )
    return HEAD + "\n".join(lines) + "\n" + TAIL


def main() -> None:
    """Write the page and its figure."""
    PAGE.write_text(page(), encoding="utf-8")
    (ROOT / "docs" / FIGURE).write_text(figure(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
