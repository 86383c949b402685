"""Compare captioners with and without a paper's idea: write docs/claims.md and its figure.

    python benchmarks/claims.py

The runs are those of `hf-captioners reproduce ideas`, gathered by gather_runs.py into
`benchmarks/results/ideas_*.json`; the comments of each recipe have its commands, and state measure, smallest effect of
interest and rule, which were committed before the runs. A study without a result file is listed as not run.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib
from known_changes import RESULTS as FOLDER
from known_changes import known_changes, provenance_lines
from matplotlib.figure import Figure
from provenance import ROOT
from scipy import stats
from tables import columns, shell

PAGE, FIGURE = ROOT / "docs" / "claims.md", "figures/claims.svg"
ALPHA = 0.05
HELD, NOT_HELD, UNDECIDED = "held", "not held", "undecided"
ERRORS = ("number", "colour", "shape", "place", "size")
HEAD = """# Do the papers' ideas help?

Each section trains the same captioner with and without the idea of a paper: same data, steps and seeds. Each side has
a learning rate of its own, searched on the validation split with a seed that is not reported. The measure of drawn
scenes is the share of captions of unseen scenes that state every number, colour, shape and place correctly.

- **held**: the 95 % interval of the difference (Student's t over paired seeds) lies above 0, and its mean reaches the
  smallest effect of interest.
- **not held**: the upper end of the interval is below the smallest effect of interest.
- **undecided**: otherwise.

Smallest effects and comparisons were written down before the runs. Where a section has several comparisons, tests and
intervals are those of Holm (1979), so that together they err in 5 % of cases at most.

"""
TAIL = """
## Repeat it

The commands of each section make its runs; those of a stopped command go on. Then:

```bash
python benchmarks/gather_runs.py runs/reproduce/ideas --commands commands.txt \\
    --output benchmarks/results/ideas_attention.json
python benchmarks/claims.py
```
"""


@dataclass(frozen=True)
class Comparison:
    """Row of a recipe with an idea, and a row without.

    Args:
        idea: what is compared.
        with_it: name of the row with the idea.
        without: name of the row without.
        published: what the paper measured for both; empty if it is silent.
    """

    idea: str
    with_it: str
    without: str
    published: str


@dataclass(frozen=True)
class Study:
    """Comparisons of a paper's idea, trained by one recipe.

    Args:
        name: table of the recipe; the results are in `ideas_NAME.json`.
        title: heading of the section.
        claim: what the paper claims.
        comparisons: with and without.
        limits: what the study does not show, beside its size.
        smallest_effect: difference of the measure from which an idea is of interest.
        measure: name of the figure that decides.
    """

    name: str
    title: str
    claim: str
    comparisons: tuple[Comparison, ...]
    limits: str = ""
    smallest_effect: float = 0.03
    measure: str = "scene_right"


SIZE = (
    "photographs, or captioners of the size of the paper. These are small and learn in few steps from drawn images, "
    "with a vision model that was trained on such images."
)
SEARCH_SEED = 100
STUDIES = (
    Study(
        "attention",
        "Show, Attend and Tell: attention to regions",
        "Xu et al. (ICML 2015) let every word attend to the cells of a feature map, softly or by drawing one cell. "
        "They report that both are better than models without attention, and that hard attention is the better one.",
        (
            Comparison(
                "soft attention to 4 x 4 cells against one pooled region",
                "soft attention",
                "one pooled region",
                "Flickr8k, Table 1: BLEU-3 29.9, Google NIC without attention 27",
            ),
            Comparison(
                "hard against soft attention",
                "hard attention",
                "soft attention",
                "Flickr8k, Table 1: BLEU-4 21.3 against 19.5, METEOR 20.3 against 18.9",
            ),
        ),
        "The paper compares with models without attention of other authors, not with its own.",
    ),
    Study(
        "graph",
        "Image Transformer: a graph of boxes",
        "He et al. (ACCV 2020) attend apart to regions around, inside and beside a region.",
        (
            Comparison(
                "relations between boxes",
                "graph of boxes",
                "all regions alike",
                "COCO, Table 3: CIDEr 118.2 against 117.8",
            ),
        ),
        "Boxes of drawn scenes hardly ever contain each other.",
    ),
    Study(
        "units",
        "VisualGPT: self-resurrecting activation units",
        "Chen et al. (CVPR 2022) join words and image by gates that are exactly 0 below a threshold, and report that "
        "these are better than other ways to join them when few captions are there.",
        tuple(
            Comparison(f"units with threshold 0.2 against {name}", "self-resurrecting units", row, published)
            for name, row, published in (
                ("a residual connection", "residual", "COCO 0.5 %, Table 5: CIDEr 70.3 against 69.5"),
                ("residual and layer norm", "residual and layer norm", ""),
                ("the gates of M2", "meshed", "COCO 0.5 %, Table 5: CIDEr 70.3 against 68.5"),
                ("attention on attention", "attention on attention", "COCO 0.5 %, Table 5: CIDEr 70.3 against 67.2"),
                (
                    "units without threshold",
                    "units without threshold",
                    "COCO, Table 1: CIDEr 70.3 against 69.0 (0.5 %), 81.7 against 82.5 (1 %)",
                ),
            )
        ),
        "The language model is a small GPT-2 that has read captions of drawn scenes.",
    ),
    Study(
        "modalities",
        "Entangled Transformer: two modalities",
        "Li et al. (ICCV 2019) attend to regions and attributes in both orders and mix them by a gate. They report "
        "that this is better than one of them, and than simpler ways to join them.",
        tuple(
            Comparison(
                f"entangled against {row}",
                "entangled",
                row,
                f"COCO, self-critical, Table 5: CIDEr 126.6 against {cider}",
            )
            for row, cider in (
                ("regions alone", 124.1),
                ("attributes alone", 102.8),
                ("parallel", 124.9),
                ("attributes, then regions", 125.0),
                ("regions, then attributes", 124.5),
            )
        ),
        "Attributes are the words of a detector that reads the same regions.",
    ),
    Study(
        "intensity",
        "ZoDIAC: intensity attention",
        "ZoDIAC (Zoneout Dropout Injection Attention Calculation) scales attention by pooled intensities. Its authors "
        "report that this is better than the plain scores of a Transformer.",
        (
            Comparison(
                "intensity attention",
                "intensity attention",
                "plain scores",
                "COCO, Table 1: CIDEr 115.5 against 114.0 (best of 5 runs each)",
            ),
        ),
    ),
    Study(
        "memory",
        "M2 and AoANet: memory, mesh and gates",
        "Cornia et al. (CVPR 2020) add learned memory vectors to the encoder and connect every decoder layer to every "
        "encoder layer; Huang et al. (ICCV 2019) gate the result of each attention.",
        (
            Comparison("memory vectors", "M2", "M2 without memory", ""),
            Comparison("meshed connections", "M2", "M2 without mesh", ""),
            Comparison("attention on attention", "AoANet", "AoANet without attention on attention", ""),
        ),
    ),
)


@dataclass(frozen=True)
class Difference:
    """Measured difference between the rows of a comparison.

    Args:
        comparison: the rows.
        with_it: measure with the idea, by seed.
        without: measure without the idea, by seed.
        p: p value of the paired t-test, corrected by Holm over the comparisons of the study.
        interval: interval of the mean difference at the level of this comparison.
        verdict: `held`, `not held` or `undecided`.
    """

    comparison: Comparison
    with_it: Sequence[float]
    without: Sequence[float]
    p: float
    interval: tuple[float, float]
    verdict: str

    @property
    def mean(self) -> float:
        """Mean difference."""
        return statistics.fmean(self.with_it) - statistics.fmean(self.without)


def reported(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the runs that searched for learning rates; all others are reported."""
    return [run for run in runs if run["seed"] != SEARCH_SEED]


def measures(runs: Sequence[dict[str, Any]], row: str, measure: str) -> dict[int, float]:
    """Return the measure of a row by seed, in the order of the seeds."""
    found = {run["seed"]: run["figures"][measure] for run in reported(runs) if run["row"] == row}
    return dict(sorted(found.items()))


def compare(study: Study, runs: Sequence[dict[str, Any]]) -> list[Difference]:
    """Test the comparisons of a study.

    Raises:
        ValueError: the rows of a comparison do not have the same two or more seeds.
    """
    pairs = []
    for one in study.comparisons:
        with_it, without = (measures(runs, row, study.measure) for row in (one.with_it, one.without))
        if list(with_it) != list(without) or len(with_it) < 2:
            raise ValueError(f"{one.idea}: seeds {list(with_it)} and {list(without)}, expected the same two or more.")
        pairs.append((list(with_it.values()), list(without.values())))
    tests = [stats.ttest_rel(*pair) for pair in pairs]
    found: dict[int, Difference] = {}
    corrected = 0.0
    for rank, index in enumerate(sorted(range(len(tests)), key=lambda place: tests[place].pvalue)):
        untested = len(tests) - rank
        corrected = min(1.0, max(corrected, untested * tests[index].pvalue))
        interval = tests[index].confidence_interval(1 - ALPHA / untested)
        low, high = float(interval.low), float(interval.high)
        mean = statistics.fmean(pairs[index][0]) - statistics.fmean(pairs[index][1])
        if corrected < ALPHA and mean >= study.smallest_effect:
            verdict = HELD
        else:
            verdict = NOT_HELD if high < study.smallest_effect else UNDECIDED
        found[index] = Difference(study.comparisons[index], *pairs[index], corrected, (low, high), verdict)
    return [found[index] for index in range(len(tests))]


def results_of(study: Study) -> dict[str, Any] | None:
    """Return the gathered runs of a study; None if it was not run."""
    path = FOLDER / f"ideas_{study.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def percent(share: float, signed: bool = False) -> str:
    """Format a share in percent with one decimal."""
    return f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"


def with_spread(values: Sequence[float]) -> str:
    """Format the mean and standard deviation of shares in percent."""
    return f"{percent(statistics.fmean(values))} ± {percent(statistics.stdev(values))}"


def section(study: Study, results: dict[str, Any] | None) -> list[str]:
    """Format the section on a study."""
    lines = [f"## {study.title}", "", study.claim, ""]
    recipe = f"[recipe](../hf_captioners/reproduce/recipes/ideas/{study.name}.yaml)"
    if results is None:
        return [*lines, f"Not run: `hf-captioners reproduce ideas --table {study.name}` ({recipe}).", ""]
    found = compare(study, results["runs"])
    lines += provenance_lines(f"ideas_{study.name}", results["provenance"], known_changes())
    lines += columns("idea", "the paper", "with", "without", "difference (interval)", "p", "verdict")
    for one in found:
        low, high = (percent(end, signed=True) for end in one.interval)
        cells = (one.comparison.idea, one.comparison.published, with_spread(one.with_it), with_spread(one.without))
        difference = f"{percent(one.mean, signed=True)} ({low} to {high})"
        lines.append(f"| {' | '.join(cells)} | {difference} | {one.p:.2g} | **{one.verdict}** |")
    seeds = len(found[0].with_it)
    lines += [
        "",
        f"Captions that are entirely right, in percent; mean ± deviation of {seeds} seeds. Smallest effect of "
        f"interest: {percent(study.smallest_effect)} points "
        f"({recipe}). Other figures of the same captions, means:",
        "",
        *other_figures(results["runs"], study.measure),
        "",
        f"What it does not show: {SIZE} {study.limits}".rstrip(),
        "",
        *shell(results),
    ]
    return lines


def other_figures(runs: Sequence[dict[str, Any]], measure: str) -> list[str]:
    """Format the table of the other figures of each row, with the searched learning rates and the training time."""
    lines = columns(
        "row", "CIDEr-D", *(f"wrong {name}" for name in ERRORS), "learning rate", "validation by rate", "minutes a run"
    )
    for row in dict.fromkeys(run["row"] for run in reported(runs)):
        its = [run for run in reported(runs) if run["row"] == row]
        tried = {run["learning_rate"]: run["figures"][measure] for run in runs if run not in its and run["row"] == row}
        searched = ", ".join(f"{rate:g}: {percent(share)}" for rate, share in sorted(tried.items()))
        means = {name: statistics.fmean(run["figures"][name] for run in its) for name in its[0]["figures"]}
        wrong = [f"{percent(means[f'scene_wrong_{name}'])} %" for name in ERRORS]
        minutes = statistics.fmean(run["seconds"] for run in its if "seconds" in run) / 60
        cells = (row, f"{means['cider_d']:.3f}", *wrong, f"{its[0]['learning_rate']:g}", searched, f"{minutes:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def seed_rows() -> list[tuple[str, str, list[list[float]]]]:
    """Return study, metric and the values over the seeds of each row, of all studies with several seeds."""
    found = []
    flickr8k = json.loads((FOLDER / "flickr8k_show_attend_tell.json").read_text(encoding="utf-8"))["runs"]
    for metric in ("cider_d", "bleu_4"):
        found.append(("Show, Attend and Tell, Flickr8k", metric, [[run[metric] for run in flickr8k]]))
    for study in STUDIES:
        if results := results_of(study):
            rows = dict.fromkeys(run["row"] for run in results["runs"])
            for metric in (study.measure, "cider_d"):
                groups = [list(measures(results["runs"], row, metric).values()) for row in rows]
                found.append((f"{study.title}, drawn scenes", metric, groups))
    return found


def smallest_gain(deviation: float, seeds: int) -> float:
    """Return the smallest gain that two rows of this many seeds show (95 %), by Student's t; of one seed, by z."""
    quantile = stats.t.ppf(1 - ALPHA / 2, 2 * (seeds - 1)) if seeds > 1 else stats.norm.ppf(1 - ALPHA / 2)
    return float(quantile * deviation * (2 / seeds) ** 0.5)


def seeds_section() -> list[str]:
    """Format the section on what a number of seeds can show."""
    lines = [
        "## How many seeds a gain needs",
        "",
        "The deviation of a metric over seeds, pooled over the rows of a study, and the smallest difference of two "
        "rows that is more than chance (95 %; Student's t over unpaired seeds; of one seed, the deviation is taken as "
        "known). In points, as papers print them.",
        "",
        *columns("study", "metric", "seeds", "deviation", "1 seed shows", "3 seeds", "5 seeds"),
    ]
    for title, metric, groups in seed_rows():
        freedom = sum(len(values) - 1 for values in groups)
        variance = sum(statistics.variance(values) * (len(values) - 1) for values in groups) / freedom
        gains = [percent(smallest_gain(variance**0.5, seeds)) for seeds in (1, 3, 5)]
        cells = (title, metric, str(min(map(len, groups))), percent(variance**0.5), *gains)
        lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Gains that the papers report: 0.8 points of CIDEr for the units of VisualGPT over a residual connection "
        "(COCO, 0.5 %, four subsets), 1.6 for the entangled form over the next best one, 1.5 for ZoDIAC over a "
        "Transformer (best of five runs), 0.4 for the relations of Image Transformer, 1.8 points of BLEU-4 for hard "
        "over soft attention. `hf-captioners reproduce` prints the smallest difference of your own runs.",
        "",
    ]


def figure(studies: Sequence[tuple[Study, Sequence[Difference]]]) -> str:
    """Draw the differences with their intervals, as SVG."""
    rows = [(study, difference) for study, found in studies for difference in found]
    drawing = Figure(figsize=(8, 0.8 + 0.5 * len(rows)), layout="constrained")
    axes = drawing.subplots()
    colours = {HELD: "#1e8449", NOT_HELD: "#c0392b", UNDECIDED: "#7f8c8d"}
    for place, (study, one) in enumerate(rows):
        low, high = (100 * end for end in one.interval)
        axes.plot([low, high], [place, place], color=colours[one.verdict], linewidth=2)
        mean = 100 * one.mean
        axes.plot(mean, place, "o", color=colours[one.verdict])
        axes.plot([100 * study.smallest_effect] * 2, [place - 0.3, place + 0.3], ":", color="black", linewidth=1)
        axes.annotate(one.verdict, (mean, place), (0, 6), textcoords="offset points", ha="center", fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{one.comparison.idea}" for _, one in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.15)
    label = "captions entirely right, points more than without; dotted: smallest effect of interest"
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(labelsize=8)
    buffer = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "claims", "svg.fonttype": "path"}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def measured() -> list[tuple[Study, list[Difference]]]:
    """Return the studies that were run, and their differences."""
    return [(study, compare(study, results["runs"])) for study in STUDIES if (results := results_of(study))]


def page() -> str:
    """Format the whole page."""
    lines = [f"![Differences with their intervals]({FIGURE})", ""] if measured() else []
    for study in STUDIES:
        lines += section(study, results_of(study))
    lines += seeds_section()
    return HEAD + "\n".join(lines).rstrip() + "\n" + TAIL


def main() -> None:
    """Write the page and its figure."""
    PAGE.write_text(page(), encoding="utf-8")
    (ROOT / "docs" / FIGURE).write_text(figure(measured()), encoding="utf-8")


if __name__ == "__main__":
    main()
