"""Write docs/results.md and docs/results_*.md from the result files in benchmarks/results.

python benchmarks/write_results.py
"""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import speed_sections as speed
from known_changes import RESULTS, known_changes, provenance_lines
from provenance import ROOT
from tables import columns, commands, shell, spread

from hf_captioners.demo.facts import interval

LANGUAGE_IMAGES = 300  # of the test split of the recipe `languages`
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


def self_critical(figures: dict) -> list[str]:
    """Format the section on the effect of self-critical training."""
    lines = [
        "## Effect of self-critical training",
        "",
        "Scores on validation images, with the decoding and metrics of the evaluations during training. *Before* is "
        f"the captioner after cross-entropy training, *after* the {figures.get('after', 'best')} evaluation of "
        "self-critical training. Distinct "
        "captions and bad endings (truncated captions) are shares of all captions; words are the mean per caption. "
        "Scores are means ± standard deviations over the runs.",
        "",
        *columns(
            "data", "captioner", "runs", "CIDEr-D before", "CIDEr-D after", "gain", "distinct", "words", "bad endings"
        ),
    ]
    kinds = dict.fromkeys((run["table"], run["row"], run["regime"]) for run in figures["runs"])
    for table, row, regime in kinds:
        runs = [run for run in figures["runs"] if (run["table"], run["row"], run["regime"]) == (table, row, regime)]
        before, after = ([run[when] for run in runs] for when in ("before", "after"))
        scores = [spread([run_metrics["cider_d"] for run_metrics in when]) for when in (before, after)]
        gain = spread([run["after"]["cider_d"] - run["before"]["cider_d"] for run in runs])
        change = [
            " → ".join(
                f"{statistics.fmean(run_metrics[name] for run_metrics in when) * scale:.{places}f}"
                for when in (before, after)
            )
            for name, scale, places in (("distinct", 100, 0), ("length", 1, 1), ("bad_endings", 100, 1))
        ]
        captioner = row if regime == "all" else f"{row}, {regime}"
        lines.append(
            f"| {table} | {captioner} | {len(runs)} | {' | '.join(scores)} | {gain} | {change[0]} % | {change[1]} | "
            f"{change[2]} % |"
        )
    return [*lines, "", f"Hardware: {figures['hardware']}. Commands:", "", "```bash", *commands(figures), "```", ""]


def self_retrieval(figures: dict) -> list[str]:
    """Format the section on the reward `self_retrieval`."""
    setting = figures["setting"]
    lines = [
        "## Effect of the reward `self_retrieval`",
        "",
        f"Show, Attend and Tell (width 128) on {setting['train']} drawn scenes: {setting['epochs']:g} epochs of "
        f"cross-entropy, then {setting['scst_steps']} self-critical steps of {setting['batch_size']} images that they "
        "have not seen, with 4 captions each "
        f"(sampling `{setting['sampling']}`, temperature {setting['temperature']:g}, learning rate "
        f"{setting['learning_rate']:g}), scored on "
        f"{setting['validation']} other scenes. Retrieval among {setting['among']} is the share of captions whose own "
        f"image is the most likely one in a block of {setting['among']} images, by a captioner of another seed that "
        f"was trained with {setting['judge_epochs']:g} epochs of cross-entropy only and rewards no run. Scores are "
        "means ± standard deviations over the runs.",
        "",
        *columns(
            "rewards (weights)",
            "runs",
            "retrieval before",
            "after",
            "gain",
            "CIDEr-D before",
            "after",
            "shuffled after",
        ),
    ]
    for rewards in dict.fromkeys(run["rewards"] for run in figures["runs"]):
        runs = [run for run in figures["runs"] if run["rewards"] == rewards]
        gain = spread([run["after"]["retrieval"] - run["before"]["retrieval"] for run in runs])
        cells = [
            spread([run[when][name] for run in runs])
            for name in ("retrieval", "cider_d")
            for when in ("before", "after")
        ]
        control = spread([run["after"]["cider_d_shuffled"] for run in runs])
        weights = ", ".join(f"{weight:g}" for weight in setting["weights"][rewards])
        row = [f"{rewards} ({weights})", str(len(runs)), *cells[:2], gain, *cells[2:], control]
        lines.append(f"| {' | '.join(row)} |")
    command = "python benchmarks/self_retrieval.py --vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf"
    return [*lines, "", f"Hardware: {figures['hardware']}. Command:", "", "```bash", command, "```", ""]


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


def regions(figures: dict) -> list[str]:
    """Format the section on a detector's regions and the grid of its backbone."""
    found = figures["detector"]
    titles = {"regions": "regions of the detector", "grid": "grid of its backbone"}
    return [
        "## Drawn scenes: regions of a detector, or a grid",
        "",
        "`examples/train_detector.py` trains a small RT-DETR from random weights in "
        f"{found['seconds'] / 60:.0f} minutes ({figures['hardware']}): mean average precision {found['map_50']:.3f} "
        "at an intersection over union of 0.5, "
        f"{found['map_50_95']:.3f} over 0.5 to 0.95, on {found['images']} unseen scenes with 36 labels.",
        "",
        "Image Transformer, one recipe (`image_transformer/scene_regions.yaml`) and one seed, "
        f"{figures['grid']['images']} unseen scenes:",
        "",
        *columns("vision part", "regions", "steps", "BLEU-4", "CIDEr-D", "shuffled control"),
        *(
            f"| {title} | {figures[name]['regions']} | {figures[name]['steps']:,} | {figures[name]['bleu_4']:.3f} | "
            f"{figures[name]['cider_d']:.3f} | {figures[name]['cider_d_shuffled']:.3f} |"
            for name, title in titles.items()
        ),
        "",
        "The commands are in `benchmarks/regions.py`.",
        "",
    ]


def zodiac_pools(figures: dict) -> list[str]:
    """Format the section on the pools of ZoDIAC's intensities."""
    setting, runs = figures["setting"], figures["runs"]
    pairs = list(dict.fromkeys((run["trained"], run["read"]) for run in runs))
    seeds = len({run["seed"] for run in runs})

    def of(pair: tuple[str, str], name: str) -> list[float]:
        return [run[name] for run in runs if (run["trained"], run["read"]) == pair]

    def score(pair: tuple[str, str], name: str) -> str:
        return f"{statistics.fmean(of(pair, name)):.2f} ± {statistics.stdev(of(pair, name)):.2f}"

    lines = [
        "## ZoDIAC: the default pool and that of the released code",
        "",
        'The default (`intensity_pool="mean"`) pools the intensities of one image or caption, up to the current word. '
        'The released code (`"released"`) pools over the batch and over later words. A small ZoDIAC '
        f"({setting['encoder_layers']} + {setting['decoder_layers']} layers, width {setting['hidden_size']}, "
        f"{setting['num_attention_heads']} heads) is trained for {setting['epochs']:g} epochs on {setting['train']} "
        f"drawn scenes; {setting['validation']} others are captioned with {setting['beams']} beams, in batches of "
        f"{setting['batch']} (which takes the CPU seconds) and one by one. Mean and deviation of {seeds} seeds:",
        "",
        *columns(
            "trained with", "read with", "CIDEr-D", "one by one", "captions that change with the batch", "CPU seconds"
        ),
    ]
    for pair in pairs:
        changed, seconds = (statistics.fmean(of(pair, name)) for name in ("changed_captions", "seconds"))
        lines.append(
            f"| `{pair[0]}` | `{pair[1]}` | {score(pair, 'cider_d')} | {score(pair, 'cider_d_alone')} | "
            f"{100 * changed:.0f} % | {seconds:.1f} |"
        )
    lines += [
        "",
        "Differences of log-probabilities of words, mean and largest one. In a batch: references in a batch of "
        f"{setting['batch']} and alone. Step by step: words of greedy captions when they are generated and when the "
        "caption is read at once, as in training. Those of the default are rounding errors.",
        "",
        *columns("trained and read with", "in a batch", "largest", "step by step", "largest"),
    ]
    for pair in pairs:
        if pair[0] == pair[1]:
            numbers = [
                text
                for name in ("batch_difference", "step_difference")
                for text in (f"{statistics.fmean(of(pair, name)):.1e}", f"{max(of(pair, f'{name}_max')):.1e}")
            ]
            lines.append(f"| `{pair[0]}` | " + " | ".join(numbers) + " |")
    command = "python benchmarks/zodiac_pools.py --vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf"
    return [*lines, "", f"Hardware: {figures['hardware']}. Command: `{command}`", ""]


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


def memorization(figures: dict) -> list[str]:
    """Format the section on captioners that memorise few photographs."""
    count = next(iter(figures["runs"].values()))["images"]
    lines = [
        "## Every architecture learns",
        "",
        f"Small captioners, trained on {count} photographs of Flickr8k and evaluated on the same photographs: an "
        "architecture that can learn describes them nearly as their references do. The shuffled control scores the "
        "same captions against the references of the adjacent photograph. These figures say nothing about other "
        f"photographs. Hardware: {figures['hardware']}, shared with other work. `python benchmarks/memorization.py` "
        "has the commands.",
        "",
        *columns("architecture", "CIDEr-D", "shuffled control", "BLEU-4", "distinct", "minutes"),
    ]
    lines += [
        f"| `{name}` | {run['cider_d']:.3f} | {run['cider_d_shuffled']:.3f} | {run['bleu_4']:.3f} | "
        f"{100 * run['distinct']:.0f} % | {run['seconds'] / 60:.0f} |"
        for name, run in figures["runs"].items()
    ]
    return [*lines, ""]


def languages(figures: dict) -> list[str]:
    """Format the section on captioners of drawn scenes in several languages."""
    lines = [
        "## Every architecture in another language",
        "",
        "Small captioners of 2,000 drawn scenes with five captions each, by the recipe `languages` and one seed. The "
        f"captions of {LANGUAGE_IMAGES} unseen scenes are entirely right if number, colour, shape and place of all "
        "objects are as drawn and the words agree in number, gender and case. CIDEr-D is over words, or over "
        "characters in Chinese, and cannot be compared between languages; the "
        "shuffled control scores the same captions against the references of the next scene.",
        "",
        *columns("captioner", "language", "entirely right", "95 % interval", "CIDEr-D", "shuffled control", "minutes"),
    ]
    shares: dict[str, dict[str, float]] = {}
    for run in figures["runs"]:
        scores = run["figures"]
        share = shares.setdefault(run["row"], {})[run["regime"]] = 100 * scores["scene_right"]
        low, high = interval(round(scores["scene_right"] * LANGUAGE_IMAGES), LANGUAGE_IMAGES)
        lines.append(
            f"| {run['row']} | {run['regime']} | {share:.0f} % | {100 * low:.0f} to {100 * high:.0f} % | "
            f"{scores['cider_d']:.3f} | {scores['cider_d_shuffled']:.3f} | {run['seconds'] / 60:.1f} |"
        )
    compared = "; ".join(
        f"{row}, {language} less English: {share - of_row['English']:+.1f} points"
        for row, of_row in shares.items()
        if "English" in of_row
        for language, share in of_row.items()
        if language != "English"
    )
    return [
        *lines,
        "",
        f"The same recipe in two languages: {compared}. The trainings are short: these shares show that an "
        "architecture learns a language, and not how much it can learn. The AoA Transformer has no dropout; with "
        "it, it had confused colours in captions of the same scenes.",
        "",
        f"Hardware: {figures['hardware']}. Commands:",
        "",
        "```bash",
        *commands(figures),
        "```",
        "",
    ]


def relevance_on_objects(runs: dict) -> list[str]:
    """Format the table of relevance and attention; [] if relevance was not measured."""
    both = {name: run for name, run in runs.items() if "relevance" in run}
    if not both:
        return []
    lines = columns(
        "architecture",
        "attention, times even",
        "relevance, times even",
        "interval",
        "over another scene",
        "strongest region on it",
        "named of both",
        "interval",
        "nouns without",
        "seconds an image: attention",
        "relevance",
    )
    for name, run in sorted(both.items()):
        relevance = run["relevance"]
        low, high = relevance["times_even_interval"]
        named_low, named_high = (100 * value for value in relevance["named_of_both_interval"])
        lines.append(
            f"| `{name}` | {run['times_even']:.2f} | **{relevance['times_even']:.2f}** | {low:.2f} to {high:.2f} | "
            f"{relevance['on_other_scene'] / relevance['even']:.2f} | {100 * relevance['strongest']:.0f} % | "
            f"{100 * relevance['named_of_both']:.0f} % | {named_low:.0f} to {named_high:.0f} % | "
            f"{relevance['empty']} | {run['seconds_an_image']:.2f} | {relevance['seconds_an_image']:.2f} |"
        )
    above = [name for name, run in both.items() if run["relevance"]["times_even_interval"][0] > run["times_even"]]
    below = [name for name, run in both.items() if run["relevance"]["times_even_interval"][1] < run["times_even"]]
    tells = [n for n, r in both.items() if r["relevance"]["named_of_both_interval"][0] > r["named_of_both_even"]]
    return [
        *lines,
        "",
        f"Relevance lies on the named object more than attention does in {len(above)} of {len(both)} captioners, and "
        f"less in {len(below)} (the attention is outside of the interval of the relevance). By relevance, "
        f"{len(tells)} of {len(both)} tell the named group from the other one.",
        "",
    ]


def attention_on_objects(figures: dict) -> list[str]:
    """Format the section on attention and the positions of drawn objects."""
    runs = figures["runs"]
    first = next(iter(runs.values()))
    beats = [name for name, run in runs.items() if run["times_even_interval"][0] > 1]
    tells = [name for name, run in runs.items() if run["named_of_both_interval"][0] > run["named_of_both_even"]]
    lines = [
        "## Attention on the object that a word names",
        "",
        "Drawn scenes have known positions. Small captioners were trained on "
        f"{first['train_images']} scenes for {first['steps']} steps; then captions of {first['images']} other scenes "
        f"were explained, and the attention of their {first['nouns']} nouns, and their relevance (attention times "
        "gradient, `explain --method relevance`), were compared with the pixels of the object that each noun names. "
        "Chance is even attention to all regions (1.00), and the same attention over the "
        "objects of another scene. In scenes with two groups of objects, the last columns have the share of the named "
        "group in the attention to both, and that of even attention. Intervals (95 %) are those of 1,000 draws of the "
        "images. `python benchmarks/attention_on_objects.py` measures.",
        "",
        *columns(
            "architecture",
            "loss",
            "on the object, times even",
            "interval",
            "over another scene",
            "strongest region on it",
            "even",
            "named of both",
            "interval",
            "even",
        ),
    ]
    for name, run in sorted(runs.items()):
        low, high = run["times_even_interval"]
        named_low, named_high = (100 * value for value in run["named_of_both_interval"])
        lines.append(
            f"| `{name}` | {run['loss']:.2f} | **{run['times_even']:.2f}** | {low:.2f} to {high:.2f} | "
            f"{run['on_other_scene'] / run['even']:.2f} | {100 * run['strongest']:.0f} % | "
            f"{100 * run['strongest_even']:.0f} % | {100 * run['named_of_both']:.0f} % | {named_low:.0f} to "
            f"{named_high:.0f} % | {100 * run['named_of_both_even']:.0f} % |"
        )
    return [
        *lines,
        "",
        *relevance_on_objects(runs),
        f"The attention of {len(beats)} of {len(runs)} captioners lies on the named object more than even attention "
        f"does; {len(tells)} of {len(runs)} tell the named group from the other one. Encoder layers mix the regions: "
        "the place that a decoder reads need not be the place of the object. The trainings are short; captioners that "
        "are trained longer may look elsewhere. Architectures without a row were not measured.",
        "",
    ]


def other_models_learning(figures: dict) -> list[str]:
    """Return the section on small captioners of transformers that learn."""
    lines = [
        "## Small captioners of transformers that learn",
        "",
        "A LLaVA with a chat template and a Florence-2 without one, from random weights, on drawn scenes: "
        "cross-entropy in batches of 32 pairs, then rewards (CIDEr-D, 10 images with 5 captions each). CIDEr-D of "
        "greedy captions of 500 other scenes; the shuffled control scores the same captions against the references of "
        "the next scene. The gain of the rewards has the 95 % interval of the paired bootstrap.",
        "",
        *columns(
            "model type",
            "weights",
            "steps (cross-entropy + rewards)",
            "CPU minutes",
            "CIDEr-D",
            "shuffled",
            "ratio",
            "after rewards",
            "gain",
            "95 % interval",
        ),
    ]
    for row in figures["rows"]:
        gain, minutes = row["gain"], (row["cross_entropy_seconds"] + row["rewards_seconds"]) / 60
        lines.append(
            f"| `{row['model_type']}` | {row['parameters']:,} | {row['steps']:,} + {row['reward_steps']:,} | "
            f"{minutes:.0f} | {row['cross_entropy_cider_d']:.3f} | {row['cross_entropy_shuffled']:.3f} | "
            f"{row['ratio_to_shuffled']:.1f} | **{row['rewards_cider_d']:.3f}** | {gain['difference']:.3f} | "
            f"{gain['low']:.3f} to {gain['high']:.3f} |"
        )
    return [*lines, ""]


SECTIONS: tuple[tuple[str, Callable[[dict], list[str]]], ...] = (
    ("default_captioner", default_captioner),
    ("flickr8k_visualgpt", flickr8k),
    ("flickr8k_show_attend_tell", flickr8k),
    ("flickr8k_aoanet", flickr8k),
    ("flickr8k_zodiac_aoanet", flickr8k),
    ("flickr8k_transformer", flickr8k),
    ("flickr8k_image_transformer", flickr8k),
    ("attributes", attributes),
    ("self_critical", self_critical),
    ("self_retrieval", self_retrieval),
    ("low_data", low_data),
    ("correction_loop", correction_loop),
    ("new_words", new_words),
    ("memorization", memorization),
    ("languages", languages),
    ("attention_on_objects", attention_on_objects),
    ("zodiac_pools", zodiac_pools),
    ("decoding", speed.decoding),
    ("trained_decoding", speed.trained_decoding),
    ("first_caption", speed.first_caption),
    ("exported_decoding", speed.exported_decoding),
    ("exported_captions", speed.exported_captions),
    ("trimmed_vocabulary", speed.trimmed_vocabulary),
    ("browser_captions", speed.browser_captions),
    ("vision", speed.vision),
    ("detector", detector),
    ("regions", regions),
    ("training", speed.training),
    ("training_epoch", speed.training_epoch),
    ("earlier_version", speed.earlier_version),
    ("scst", speed.scst),
    ("scale", speed.scale),
    ("other_models", speed.other_models),
    ("other_models_learning", other_models_learning),
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
