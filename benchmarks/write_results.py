"""Write docs/results.md from the figures in benchmarks/results.

python benchmarks/write_results.py
"""

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TITLES = {"bleu_1": "BLEU-1", "bleu_4": "BLEU-4", "cider_d": "CIDEr-D"}


def flickr8k(figures: dict) -> list[str]:
    """The section on photographs."""
    training, name = figures["training"], figures["model"]
    ratio = figures["cider_d"] / figures["cider_d_dealt"]
    metrics = [metric for metric in ("bleu_1", "bleu_4", "cider_d") if metric in figures]
    blank = " |" * (len(metrics) - 1)
    return [
        f"## Flickr8k: {name} from 6,000 photographs, on two CPU cores",
        "",
        f"The {figures['images']:,} validation photographs, five references each, beam {figures['beams']}, metrics "
        "of this library.",
        "",
        "| captions | " + " | ".join(TITLES[metric] for metric in metrics) + " |",
        "|---|" + "---|" * len(metrics),
        f"| **{name}** | " + " | ".join(f"**{figures[metric]:.3f}**" for metric in metrics) + " |",
        f"| the same captions dealt to other photographs |{blank} {figures['cider_d_dealt']:.3f} |",
        "",
        f"Own photographs over other photographs: {ratio:.1f} times. {figures['distinct_captions']:,} of "
        f"{figures['images']:,} captions are distinct. Without any training, the consensus of the captions of 30 "
        "nearest neighbours (same backbone) reaches BLEU-4 0.154 and CIDEr-D 0.361.",
        "",
        *beside_published(figures),
        f"Training: {training['epochs']:g} epochs, {training['steps']:,} steps, {training['seconds'] / 60:.0f} "
        f"minutes; best evaluation after epoch {training['best_epoch']:g}. Hardware: {figures['hardware']}. "
        f"Captioning the photographs took {figures['captioning_seconds']} s.",
        "",
        "Commands (`HF_CAPTIONERS_DATA_DIR` is the data folder):",
        "",
        "```bash",
        *commands(figures),
        "```",
        "",
        "First captions: " + "; ".join(f"“{caption}”" for caption in figures["examples"]) + ".",
        "",
    ]


def beside_published(figures: dict) -> list[str]:
    """A table with the paper's row; nothing where the result names none."""
    published = figures.get("published")
    if not published:
        return []
    names = list(published["figures"])
    measured = " | ".join(f"{100 * figures[name]:.1f}" for name in names)
    theirs = " | ".join(f"{figure:.1f}" for figure in published["figures"].values())
    return [
        f"Beside the paper ({published['row']}; {published['conditions']}), in percent:",
        "",
        "| | " + " | ".join(name.replace("_no_penalty", "").replace("bleu_", "BLEU-") for name in names) + " |",
        "|---|" + "---|" * len(names),
        f"| here | {measured} |",
        f"| paper | {theirs} |",
        "",
    ]


def decoding(figures: dict) -> list[str]:
    """The section on decoding speed."""
    setting = figures["setting"]
    lines = [
        "## Decoding",
        "",
        f"Random weights, width {setting['width']}, {setting['layers']} layers, 50,257 token types, "
        f"{setting['regions']} regions, beam {setting['beams']}, {setting['tokens']} tokens; {figures['machine']}; "
        "made by `make bench`.",
        "",
        "| images at once | decoder | CPU seconds | relative to ours |",
        "|---|---|---|---|",
    ]
    lines += [f"| {r['batch']} | {r['decoder']} | {r['seconds']:.2f} | {r['ratio']:.2f} |" for r in figures["rows"]]
    return [*lines, ""]


def scst(figures: dict) -> list[str]:
    """The section on self-critical training."""
    setting, profile, rival = figures["setting"], figures["profile"], figures["rival"]
    lines = [
        "## What a self-critical step costs",
        "",
        f"A step of VisualGPT at the size of the paper (width {setting['width']}, {setting['layers']} layers) on "
        f"{profile['images']} images with {setting['beams']} beams of {setting['tokens']} tokens takes "
        f"{profile['step_seconds']:.0f} CPU seconds on one core, {100 * profile['outside_share']:.1f} % of them "
        "outside of the model: "
        + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in profile["parts"].items())
        + ". Against the way of the released code, which keeps the graph of the whole beam search, on "
        f"{rival['images']} images (`python benchmarks/scst.py`):",
        "",
        "| step | CPU seconds | kept for backward, GB |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {row['seconds']:.1f} | {row['activation_bytes'] / 1e9:.2f} |"
        for name, row in rival["rows"].items()
    ]
    return [*lines, f"| ratio | {rival['time_ratio']:.2f} | {rival['memory_ratio']:.2f} |", ""]


def self_critical(figures: dict) -> list[str]:
    """The section on what self-critical training changes."""
    lines = [
        "## What self-critical training changes",
        "",
        "Validation images, by the search and metrics of every evaluation of training; before: the captioner that "
        "cross-entropy made; after: the best evaluation of the self-critical part. Means ± standard deviations over "
        "the runs.",
        "",
        "| data | captioner | runs | CIDEr-D before | after | gain | distinct | words | bad endings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = dict.fromkeys((run["table"], run["row"], run["regime"]) for run in figures["runs"])
    for table, row, regime in kinds:
        runs = [run for run in figures["runs"] if (run["table"], run["row"], run["regime"]) == (table, row, regime)]
        before, after = ([run[when] for run in runs] for when in ("before", "after"))
        scores = [spread([one["cider_d"] for one in when]) for when in (before, after)]
        gain = spread([run["after"]["cider_d"] - run["before"]["cider_d"] for run in runs])
        change = [
            " → ".join(f"{statistics.fmean(one[name] for one in when) * scale:.{places}f}" for when in (before, after))
            for name, scale, places in (("distinct", 100, 0), ("length", 1, 1), ("bad_endings", 100, 1))
        ]
        captioner = row if regime == "all" else f"{row}, {regime}"
        lines.append(
            f"| {table} | {captioner} | {len(runs)} | {' | '.join(scores)} | {gain} | {change[0]} % | {change[1]} | "
            f"{change[2]} % |"
        )
    return [*lines, "", f"Hardware: {figures['hardware']}. Commands:", "", "```bash", *commands(figures), "```", ""]


def low_data(figures: dict) -> list[str]:
    """The section on few pairs."""
    lines = [
        "## Few pairs: VisualGPT on shares of Flickr8k",
        "",
        "The 1,000 validation photographs, five references each, beam 3, metrics in natural units; the "
        "last weights of every run, none chosen on these photographs. Every run takes 450 steps of 20 pairs. Means ± "
        "standard deviations over the seeds, which also draw the pairs.",
        "",
        "| start | pairs | runs | BLEU-1 | BLEU-4 | CIDEr-D |",
        "|---|---|---|---|---|---|",
    ]
    best: dict[str, tuple[float, str]] = {}
    for regime, row in dict.fromkeys((run["regime"], run["row"]) for run in sorted(figures["runs"], key=by_regime)):
        runs = [run for run in figures["runs"] if (run["regime"], run["row"]) == (regime, row)]
        values = {name: [run["figures"][name] for run in runs] for name in ("bleu_1", "bleu_4", "cider_d")}
        lines.append(f"| {row} | {regime} | {len(runs)} | {' | '.join(map(spread, values.values()))} |")
        best[regime] = max(best.get(regime, (0.0, "")), (statistics.fmean(values["cider_d"]), row))
    highest = "; ".join(f"of {regime} by {row}" for regime, (_, row) in best.items())
    return [
        *lines,
        "",
        f"Highest mean CIDEr-D: {highest}.",
        "",
        f"Hardware: {figures['hardware']}. Commands:",
        "",
        "```bash",
        *commands(figures),
        "```",
        "",
    ]


def by_regime(run: dict) -> float:
    """Small shares first."""
    return float(run["regime"].rstrip("%"))


def spread(values: list[float]) -> str:
    """Mean and, of several values, standard deviation."""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def commands(figures: dict) -> list[str]:
    """Lines of a shell."""
    return (figures["commands"] or "").strip().splitlines()


def page() -> str:
    """All sections together."""
    lines = ["# Results", "", "Written by `python benchmarks/write_results.py` from `benchmarks/results`.", ""]
    sections = (
        ("flickr8k_visualgpt", flickr8k),
        ("flickr8k_show_attend_tell", flickr8k),
        ("self_critical", self_critical),
        ("low_data", low_data),
        ("decoding", decoding),
        ("scst", scst),
    )
    for name, section in sections:
        path = RESULTS / f"{name}.json"
        if path.is_file():
            lines += section(json.loads(path.read_text(encoding="utf-8")))
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page(), encoding="utf-8")
