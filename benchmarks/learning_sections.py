"""Sections of the results pages on what captioners learn."""

import statistics

from tables import columns, commands, spread

from hf_captioners.demo.facts import interval

LANGUAGE_IMAGES = 300  # of the test split of the recipe `languages`


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
