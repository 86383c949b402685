"""Write docs/results.md and docs/results_*.md from the result files in benchmarks/results.

python benchmarks/write_results.py
"""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import learning_sections as learning
import speed_sections as speed
from known_changes import RESULTS, known_changes, provenance_lines
from provenance import ROOT
from tables import columns, commands, shell, spread

TITLES = {"bleu_1": "BLEU-1", "bleu_4": "BLEU-4", "cider_d": "CIDEr-D"}


def flickr8k(figures: dict) -> list[str]:
    """Format the section on a captioner of photographs."""
    name, runs = figures["model"], figures.get("runs", [figures])
    ratio = figures["cider_d"] / figures["cider_d_shuffled"]
    metrics = [metric for metric in ("bleu_1", "bleu_4", "cider_d") if metric in figures]
    blank = " |" * (len(metrics) - 1)
    means, of_seed = "", ""
    if len(runs) > 1:
        means, of_seed = " Scores are means ± standard deviations over the seeds.", " of the first seed"
    return [
        f"## Flickr8k: {name} trained on 6,000 photographs",
        "",
        f"Scores on the {figures['images']:,} validation photographs with five references each and beam search with "
        f"{figures['beams']} beams. The shuffled control scores the same captions against the references of the "
        f"adjacent photograph.{means}",
        "",
        *columns("captions", *(TITLES[metric] for metric in metrics)),
        f"| **{name}** | " + " | ".join(f"**{spread([run[metric] for run in runs])}**" for metric in metrics) + " |",
        f"| shuffled control |{blank} {spread([run['cider_d_shuffled'] for run in runs])} |",
        "",
        f"The CIDEr-D score is {ratio:.1f} times that of the shuffled control. {figures['distinct_captions']:,} of "
        f"the {figures['images']:,} captions{of_seed} are distinct. A baseline without training, the consensus of the "
        "captions of the 30 nearest neighbours (same backbone), reaches BLEU-4 0.154 and CIDEr-D 0.361.",
        "",
        *beside_published(figures),
        *trainings(figures, runs),
        "Commands (`HF_CAPTIONERS_DATA_DIR` is the data folder):",
        "",
        "```bash",
        *commands(figures),
        "```",
        "",
        f"First captions{of_seed}: " + "; ".join(f"“{caption}”" for caption in figures["examples"]) + ".",
        "",
    ]


def trainings(figures: dict, runs: list[dict]) -> list[str]:
    """Format the sentences on the length of trainings and on the scored weights."""
    training = runs[0]["training"]
    minutes = statistics.fmean(run["training"]["seconds"] for run in runs) / 60
    if "best_epoch" in training:
        scored = f"The best evaluation was after epoch {training['best_epoch']:g}."
    else:
        scored = (
            "The last weights are scored; the learning rate was chosen on 500 training photographs, which only those "
            "runs held out."
        )
    each = f" for each of {len(runs)} seeds" if len(runs) > 1 else ""
    return [
        f"Training: {training['epochs']:g} epochs, {training['steps']:,} steps, {minutes:.0f} minutes{each}. {scored} "
        f"Hardware: {figures['hardware']}. Captioning the photographs took {figures['captioning_seconds']} s.",
        "",
    ]


def default_captioner(figures: dict) -> list[str]:
    """Format the section on the default captioner."""
    stored, trained = figures["stored"], figures["trained"]
    share = stored["cider_d_shuffled"] / stored["cider_d"]
    return [
        "## The default captioner",
        "",
        f"Scores on {figures['data']}, five references each, beam search with 5 beams. The weights are the mean of "
        "four checkpoints, which were chosen by the CIDEr-D of captions of the same images: on other photographs it "
        f"will be a little lower. The folder has {figures['bytes'] / 1e6:.1f} MB.",
        "",
        *columns("form", "CIDEr-D", "BLEU-4", "CIDEr-D, shuffled control", "distinct captions"),
        *(
            f"| {form} | {row['cider_d']:.4f} | {row['bleu_4']:.4f} | {row['cider_d_shuffled']:.4f} | "
            f"{100 * row['distinct']:.0f} % |"
            for form, row in (("stored in float16", stored), ("trained, float32", trained))
        ),
        "",
        f"The shuffled control has {100 * share:.0f} % of the CIDEr-D. For these weights, the parts of the command "
        "below were run one by one; `make_default_captioner.py`, its last step, measured them:",
        "",
        "```bash",
        "python default_captioner/train_default_captioner.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k "
        "--vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf \\",
        "  --output_dir runs/default --frozen docs/photo.jpg",
        "```",
        "",
    ]


def beside_published(figures: dict) -> list[str]:
    """Format a table with the published row; [] if the result has none."""
    published = figures.get("published")
    if not published:
        return []
    names = list(published["figures"])
    measured = " | ".join(f"{100 * figures[name]:.1f}" for name in names)
    theirs = " | ".join(f"{figure:.1f}" for figure in published["figures"].values())
    return [
        f"Comparison with the paper ({published['row']}; {published['conditions']}), in percent:",
        "",
        *columns("", *(name.replace("_no_penalty", "").replace("bleu_", "BLEU-") for name in names)),
        f"| {'this run' if len(figures.get('runs', [0])) == 1 else 'mean of the seeds'} | {measured} |",
        f"| paper | {theirs} |",
        "",
    ]


def low_data(figures: dict) -> list[str]:
    """Format the section on training with few pairs."""
    lines = [
        "## Low data: VisualGPT on shares of Flickr8k",
        "",
        "Scores on the 1,000 validation photographs with five references each and beam search with 3 beams. Each run "
        "takes 450 steps of 20 image-caption pairs. The final weights are evaluated; no checkpoint is selected on "
        "these photographs. Scores are means ± standard deviations over the seeds, which also select the training "
        "pairs.",
        "",
        *columns("initialisation", "training pairs", "runs", "BLEU-1", "BLEU-4", "CIDEr-D"),
    ]
    best: dict[str, tuple[float, str]] = {}
    for regime, row in dict.fromkeys((run["regime"], run["row"]) for run in sorted(figures["runs"], key=by_regime)):
        runs = [run for run in figures["runs"] if (run["regime"], run["row"]) == (regime, row)]
        values = {name: [run["figures"][name] for run in runs] for name in ("bleu_1", "bleu_4", "cider_d")}
        lines.append(f"| {row} | {regime} | {len(runs)} | {' | '.join(map(spread, values.values()))} |")
        best[regime] = max(best.get(regime, (0.0, "")), (statistics.fmean(values["cider_d"]), row))
    highest = "; ".join(f"with {regime} of the pairs, {row}" for regime, (_, row) in best.items())
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
    """Return the sort key of a run: its share of the training pairs."""
    return float(run["regime"].rstrip("%"))


def detector(figures: dict) -> list[str]:
    """Format the section on the detector's share of captioning time."""
    setting = figures["setting"]
    return [
        "## The detector's share of captioning",
        "",
        f"CPU seconds per image ({figures['machine']}): an RT-DETR with a ResNet-18 as the vision part of an Image "
        f"Transformer of the published size, {setting['regions']} regions, {setting['images']} images at once, 5 "
        f"beams, {setting['tokens']} forced tokens, random weights. `python benchmarks/detector.py` repeats it.",
        "",
        *columns("image, pixels", "detector", "whole caption", "share of the detector"),
        *(
            f"| {row['size']} x {row['size']} | {row['vision']:.2f} | {row['caption']:.2f} | "
            f"{100 * row['vision'] / row['caption']:.0f} % |"
            for row in figures["rows"]
        ),
        "",
    ]


def attributes(figures: dict) -> list[str]:
    """Format the section on an attribute detector and captioners that read its words."""
    detected, captioners = figures["detector"], figures["captioners"]
    ratio = detected["mean_average_precision"] / detected["mean_average_precision_shuffled"]
    minutes = {name: f"{training['seconds'] / 60:.0f}" for name, training in figures["training"].items()}
    read = {
        "oracle": "words of the photograph's own captions",
        "detected": f"the {figures['num_attributes']} likeliest detected words",
        "shuffled": "those of the next photograph",
    }
    lines = [
        "## Flickr8k: what attributes are worth to the Entangled Transformer",
        "",
        f"Attribute detector: mean average precision {detected['mean_average_precision']:.3f} on the "
        f"{figures['images']:,} validation photographs, {ratio:.1f} times that of its scores assigned to the next "
        f"photograph ({detected['mean_average_precision_shuffled']:.3f}). Of its ten likeliest words "
        f"{100 * detected['precision_at_10']:.1f} % are in a caption, of the ten most frequent words "
        f"{100 * detected['precision_at_10_of_frequent']:.1f} %.",
        "",
        "Two captioners of the same recipe, one trained with the words of the captions (the oracle of the paper's "
        f"Table 2, {minutes['oracle']} minutes), one with detected words ({minutes['detected']} minutes). The third "
        f"row is the second captioner. Beam search with {figures['beams']} beams.",
        "",
        *columns("attributes", "BLEU-4", "CIDEr-D", "shuffled control", "distinct captions"),
    ]
    lines += [
        f"| {read[name]} | {one['bleu_4']:.3f} | {one['cider_d']:.3f} | {one['cider_d_shuffled']:.3f} | "
        f"{one['distinct_captions']:,} |"
        for name, one in captioners.items()
    ]
    differences = "; ".join(
        f"{one['first']} less {one['second']} {one['difference']:.3f} [{one['low']:.3f}, {one['high']:.3f}], "
        f"p = {one['p_value']:.4f}"
        for one in figures["comparisons"]
    )
    return [
        *lines,
        "",
        f"CIDEr-D, paired bootstrap over photographs, 95 % intervals: {differences}.",
        "",
        *shell(figures),
    ]


def correction_loop(figures: dict) -> list[str]:
    """Format the section on fine-tuning a captioner on a few photographs."""
    runs = figures["runs"]
    table = []
    for images, captions in sorted({(run["images"], run["captions"]) for run in runs}):
        chosen = [run for run in runs if (run["images"], run["captions"]) == (images, captions)]
        gains = [run["after"] - run["before"] for run in chosen]
        before = statistics.mean(run["before"] for run in chosen)
        minutes = statistics.mean(run["seconds"] for run in chosen) / 60
        table.append(
            f"| {images} | {captions} | {before:.3f} | {before + statistics.mean(gains):.3f} | {spread(gains)} | "
            f"{minutes:.1f} |"
        )
    draws = len({run["draw"] for run in runs})
    return [
        "## Few photographs with captions of their own",
        "",
        "The default captioner, trained further on photographs of COCO (it has learned from Flickr8k, whose words are "
        "all that it has) by `hf-captioners train --model default --train_dir images` with "
        f"[its defaults](training.md#few-captions). CIDEr-D on the other photographs, {draws} draws of photographs: "
        "mean and standard deviation of the gain. Each photograph has one caption, as somebody corrects them, or all "
        "five.",
        "",
        *columns("photographs", "captions of each", "CIDEr-D before", "after", "gain", "minutes, one thread"),
        *table,
        "",
        "```bash",
        "python benchmarks/correction_loop.py --data_dir $HF_CAPTIONERS_DATA_DIR/coco --output_dir runs/loop",
        "```",
        "",
    ]


def new_words(figures: dict) -> list[str]:
    """Format the section on words that a captioner lacks."""
    rows = []
    for run in figures["runs"]:
        counts = ["0", "", "", ""]
        if "new_words" in run:
            counts = [run["added_words"], run["used"], run["used_rightly"], run["changed_before"]]
        scores = f"{run['before']:.3f} | {run['after']:.3f}"
        rows.append(
            f"| {run['images']} | {run['captions']} | {counts[0]} | {scores} | {' | '.join(map(str, counts[1:]))} |"
        )
    least = next(run["new_words"] for run in figures["runs"] if "new_words" in run)
    return [
        "## Words that a captioner lacks",
        "",
        "The default captioner, trained further on photographs of COCO as above, without new words and with those "
        f"that occur at least {least} times in the training captions (`--new_words {least}`); one draw. "
        "CIDEr-D on the other photographs; captions of them that use an added word, and those of them that use one "
        "that a reference of the photograph has. The last column counts the captions of 200 photographs of Flickr8k "
        "that change by the addition itself, before any step.",
        "",
        *columns(
            "photographs",
            "captions of each",
            "added words",
            "CIDEr-D before",
            "after",
            "captions with an added word",
            "rightly",
            "earlier captions changed, of 200",
        ),
        *rows,
        "",
        "```bash",
        "for words in 0 5; do",
        "  python benchmarks/correction_loop.py --data_dir $HF_CAPTIONERS_DATA_DIR/coco --output_dir runs/loop \\",
        "    --earlier_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --counts 150 --captions 0 --draws 1 --new_words $words \\",
        "    --output benchmarks/results/new_words.json",
        "done",
        "```",
        "",
    ]


SECTIONS: tuple[tuple[str, Callable[[dict], list[str]]], ...] = (
    ("default_captioner", default_captioner),
    ("flickr8k_visualgpt", flickr8k),
    ("flickr8k_show_attend_tell", flickr8k),
    ("flickr8k_aoanet", flickr8k),
    ("flickr8k_zodiac_aoanet", flickr8k),
    ("flickr8k_transformer", flickr8k),
    ("flickr8k_image_transformer", flickr8k),
    ("attributes", attributes),
    ("self_critical", learning.self_critical),
    ("self_retrieval", learning.self_retrieval),
    ("low_data", low_data),
    ("correction_loop", correction_loop),
    ("new_words", new_words),
    ("memorization", learning.memorization),
    ("languages", learning.languages),
    ("attention_on_objects", learning.attention_on_objects),
    ("zodiac_pools", learning.zodiac_pools),
    ("decoding", speed.decoding),
    ("trained_decoding", speed.trained_decoding),
    ("first_caption", speed.first_caption),
    ("exported_decoding", speed.exported_decoding),
    ("exported_captions", speed.exported_captions),
    ("trimmed_vocabulary", speed.trimmed_vocabulary),
    ("browser_captions", speed.browser_captions),
    ("vision", speed.vision),
    ("detector", detector),
    ("regions", learning.regions),
    ("training", speed.training),
    ("training_epoch", speed.training_epoch),
    ("earlier_version", speed.earlier_version),
    ("scst", speed.scst),
    ("scale", speed.scale),
    ("other_models", speed.other_models),
    ("other_models_learning", learning.other_models_learning),
    ("other_models_step", speed.other_models_step),
)
"""The result files, and the function of the section of each, in the order of the pages."""
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "results_flickr8k": (
        "Captioners of photographs",
        (
            "flickr8k_visualgpt",
            "flickr8k_show_attend_tell",
            "flickr8k_aoanet",
            "flickr8k_zodiac_aoanet",
            "flickr8k_transformer",
            "flickr8k_image_transformer",
            "attributes",
        ),
    ),
    "results_learning": (
        "What captioners learn",
        (
            "self_critical",
            "self_retrieval",
            "memorization",
            "languages",
            "attention_on_objects",
            "zodiac_pools",
            "regions",
            "other_models_learning",
        ),
    ),
    "results_decoding": ("Speed of decoding", ("decoding", "trained_decoding")),
    "results_captioning_speed": (
        "Speed of captioning",
        (
            "first_caption",
            "exported_decoding",
            "exported_captions",
            "trimmed_vocabulary",
            "browser_captions",
            "vision",
            "detector",
            "scale",
            "other_models",
        ),
    ),
    "results_training_speed": (
        "Speed of training",
        ("training", "training_epoch", "earlier_version", "scst", "other_models_step"),
    ),
}
"""Titles and result files of the pages by topic; the sections of all other result files are on docs/results.md."""


def written_sections(changes: Sequence[dict], results: Path = RESULTS) -> dict[str, list[str]]:
    """Return the lines of all sections, by the names of their result files.

    Args:
        changes: the changes of the code that invalidate results, see `known_changes`.
        results: folder of the result files.
    """
    sections = {}
    for name, section in SECTIONS:
        path = results / f"{name}.json"
        if path.is_file():
            figures = json.loads(path.read_text(encoding="utf-8"))
            title, blank, *lines = section(figures)
            sections[name] = [title, blank, *provenance_lines(name, figures["provenance"], changes), *lines]
    return sections


def pages(changes: Sequence[dict] | None = None) -> dict[str, str]:
    """Format all pages, by their names in `docs`.

    Args:
        changes: default: those of `known_changes.json`.
    """
    sections = written_sections(known_changes() if changes is None else changes)
    lines = [
        "# Results",
        "",
        "Scores are computed with the metrics of this library, in natural units: papers print a CIDEr-D of 0.6 as 60. "
        "`python benchmarks/write_results.py` writes these pages from the files in `benchmarks/results`. A section "
        "that a later change of the code invalidates (`benchmarks/known_changes.json`) says so.",
        "",
    ]
    written = {}
    for name, (title, results) in PAGES.items():
        own = [sections.pop(result) for result in results if result in sections]
        written[name] = "\n".join([f"# {title}", "", "All results are listed [here](results.md).", "", *sum(own, [])])
        lines.append(f"- **[{title}]({name}.md)**")
        lines += [f"    - [{section[0][3:]}]({name}.md#{anchor(section[0])})" for section in own]
    return written | {"results": "\n".join([*lines, "", *sum(sections.values(), [])])}


def anchor(title: str) -> str:
    """Return the anchor of a heading, as in links to it."""
    return re.sub(r"[^\w\- ]", "", title.removeprefix("## ").lower()).replace(" ", "-")


if __name__ == "__main__":
    for name, text in pages().items():
        (ROOT / "docs" / f"{name}.md").write_text(text, encoding="utf-8")
