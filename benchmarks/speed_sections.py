"""Sections of the results page on speed, memory and smaller forms of captioners."""

import statistics

from tables import columns, shell


def decoding(figures: dict) -> list[str]:
    """Format the section on decoding speed."""
    setting = figures["setting"]
    lines = [
        "## Decoding speed",
        "",
        f"Captioners with random weights, {setting['beams']} beams and {setting['tokens']} tokens in every caption, "
        f"region features given ({figures['machine']}). Every decoder has the same weights and runs once in each "
        "round; CPU seconds are medians of the rounds. *Speed* is relative to `stock generate`, the method of "
        "transformers, which repeats encoder results for each beam. *Over the floor* is the time divided by what "
        "this machine needs for the float32 products at the speed of packed weights, or for reading the weights once "
        "a step. `as released` projects the keys and values of cross-attention again for each beam and step, as the "
        "released code does, `keys of every step` those of the attention; `images one by one` is the loop of the "
        "common re-implementation of Show, Attend and Tell (196 regions; 50 elsewhere). *Equal* counts captions that "
        "are those of `stock generate`; float16, bfloat16 and int8 round, which random weights do not bear. Memory is "
        "the peak of one call above what was held before it.",
        "",
        *columns(
            "captioner", "width", "images", "decoder", "CPU seconds", "speed", "over the floor", "equal", "memory, MB"
        ),
    ]
    for row in figures["rows"]:
        equal = "" if row["equal"] is None else f"{row['equal']} of {row['images']}"
        over_floor = "" if row["over_floor"] is None else f"{row['over_floor']:.1f}"
        lines.append(
            f"| {row['case']} | {row['width']} | {row['images']} | {row['decoder']} | {row['seconds']:.2f} | "
            f"{row['speed']:.2f} | {over_floor} | {equal} | {row['memory']} |"
        )
    if profile := figures["profile"]:  # empty where VisualGPT was not among the cases
        shares = ", ".join(f"{share:.0%} {kind}" for kind, share in profile["shares"].items())
        lines += ["", f"Operators of {profile['case']}, {profile['images']} images, {profile['decoder']}: {shares}."]
    command = "make bench ARGS=--quick" if setting["quick"] else "make bench"
    sizes = " Its captioners are smaller; `make bench` has the sizes of the papers." if setting["quick"] else ""
    return [*lines, "", f"`{command}` repeats the measurement.{sizes}", ""]


def trained_decoding(figures: dict) -> list[str]:
    """Format the section on decoding with a trained captioner."""
    weights = figures["weights"]
    plain = weights[0]["cider_d"]
    return [
        "## Decoding with a trained captioner",
        "",
        f"The default captioner on torch, {figures['beams']} beams ({figures['machine']}). Batches of eight of "
        f"{figures['lengths'][0]['images']} validation photographs that are encoded already, every decoder in turn; "
        f"medians of {figures['rounds']} rounds.",
        "",
        *columns("length", "mean tokens", "decoder", "CPU seconds per photograph", "speed", "equal captions"),
        *(
            f"| {row['length']} | {row['tokens']} | {row['decoder']} | {row['seconds']:.3f} | {row['speed']:.2f} | "
            f"{row['equal']} of {row['images']} |"
            for row in figures["lengths"]
        ),
        "",
        f"Packed weights on {figures['images']:,} photographs, one at a time:",
        "",
        *columns("weights", "equal captions", "CIDEr-D", "change", "CPU seconds per photograph"),
        *(
            f"| {row['weights']} | {row['equal']:,} of {figures['images']:,} | {row['cider_d']:.4f} | "
            f"{row['cider_d'] / plain - 1:+.1%} | {row['seconds']:.3f} |"
            for row in weights
        ),
        "",
        "Command: `python benchmarks/trained_decoding.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k`.",
        "",
    ]


def scst(figures: dict) -> list[str]:
    """Format the section on the cost of self-critical training."""
    setting, profile, rival = figures["setting"], figures["profile"], figures["rival"]
    lines = [
        "## Cost of a self-critical step",
        "",
        f"A step of VisualGPT at the size of the paper (width {setting['width']}, {setting['layers']} layers) on "
        f"{profile['images']} images with {setting['beams']} beams of {setting['tokens']} tokens takes "
        f"{profile['step_seconds']:.0f} CPU seconds on one core: "
        + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in profile["parts"].items())
        + f". {100 * profile['outside_share']:.1f} % of the time is spent outside the model.",
        "",
        f"The table compares a step on {rival['images']} images with the method of the released code, which keeps the "
        "graph of the whole beam search (`python benchmarks/scst.py`):",
        "",
        *columns("step", "CPU seconds", "memory kept for backward, GB"),
    ]
    lines += [
        f"| {name} | {row['seconds']:.1f} | {row['activation_bytes'] / 1e9:.2f} |"
        for name, row in rival["rows"].items()
    ]
    return [*lines, f"| ratio | {rival['time_ratio']:.2f} | {rival['memory_ratio']:.2f} |", ""]


def training(figures: dict) -> list[str]:
    """Format the section on the cost of a cross-entropy training step."""
    setting = figures["setting"]
    size = "width 256, 4 layers" if setting["quick"] else "width 768, 12 layers"
    return [
        "## Cost of a training step",
        "",
        f"A step of cross-entropy training on {setting['batch_size']} captions with {setting['regions']} stored "
        "regions each: `CaptioningTrainer`, and a minimal loop over the same model in plain PyTorch whose batches lie "
        f"in memory (VisualGPT: {size}, 50,257 types; random weights; {figures['machine']}).",
        "",
        *columns("captioner", "trainer, CPU seconds", "loop, CPU seconds", "ratio"),
        *(
            f"| {row['captioner']} | {row['trainer']:.2f} | {row['loop']:.2f} | {row['ratio']:.2f} |"
            for row in figures["rows"]
        ),
        "",
        *memory_of_loss(figures["memory"]),
        "Command: `python benchmarks/training.py --tokenizer gpt2 --output benchmarks/results/training.json`"
        + (" with `--quick`" if setting["quick"] else "")
        + ".",
        "",
    ]


def training_epoch(figures: dict) -> list[str]:
    """Format the section on the parts of a training epoch's time."""
    images, rows = figures["images"], figures["rows"]
    return [
        "## An epoch of training",
        "",
        f"CPU seconds of an epoch on {images['train']} photographs of Flickr8k with 5 captions each, with an "
        f"evaluation on {images['validation']} photographs: the proportions of the whole data set "
        f"({figures['machine']}). The captioners and settings are those of the recipes on Flickr8k, VisualGPT with a "
        "language model of random weights. Features of the frozen vision model are computed before, once. The loss "
        "of the references is a forward pass of the model over the five captions of each validation photograph.",
        "",
        *columns("part of the epoch", *(row["captioner"] for row in rows)),
        *(f"| {part} | " + " | ".join(f"{row[part]:.1%}" for row in rows) + " |" for part in figures["parts"]),
        "| seconds of the epoch | " + " | ".join(f"{row['seconds']:.0f}" for row in rows) + " |",
        "| steps | " + " | ".join(f"{row['steps']}" for row in rows) + " |",
        "| seconds for the features before | " + " | ".join(f"{row['features']:.0f}" for row in rows) + " |",
        "",
        "Command: `python benchmarks/training_epoch.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --vision_model "
        "MOBILENETV2 --tokenizer gpt2 --output benchmarks/results/training_epoch.json`.",
        "",
    ]


def memory_of_loss(figures: dict) -> list[str]:
    """Format the sentence on the memory of the loss."""
    pieces, whole = figures["in pieces"] / 1e6, figures["at once"] / 1e6
    seconds = figures["in pieces, CPU seconds"], figures["at once, CPU seconds"]
    return [
        f"The loss over 50,257 types and its gradient take {pieces:,.0f} MB at most for a batch of "
        f"{figures['tokens']:,} tokens, {whole:,.0f} MB if the logits of all tokens are computed at once "
        f"({seconds[0]:.1f} and {seconds[1]:.1f} CPU seconds).",
        "",
    ]


def earlier_version(figures: dict) -> list[str]:
    """Format the section on an earlier version."""
    rows = figures["rows"]
    lines = [
        "## Compared with an earlier version",
        "",
        f"The command line of this version and of commit `{figures['commit']}`, in turn in one environment on one "
        f"thread ({figures['machine']}); medians of {figures['rounds']}. Each version captions with captioners that "
        "it trained for one step, Show, Attend and Tell at the size of its Flickr8k recipe and a VisualGPT of width "
        "256 with 6 layers, with 5 beams.",
        "",
        *columns("measure", "photographs", "earlier", "now", "earlier / now"),
    ]
    for name, row in rows.items():
        unit, digits = (1e6, 0) if name == "memory" else (1, 2)
        earlier, now = row["earlier"] / unit, row["now"] / unit
        compared_figures = f"{earlier:,.{digits}f} | {now:,.{digits}f} | {1 / row['ratio']:.2f}"
        lines.append(f"| {row['measure']} | {row['images']} | {compared_figures} |")
    return [
        *lines,
        "",
        "The import of the classes of transformers that a captioner is made of takes "
        f"{rows['startup']['floor']:.2f} CPU seconds by itself. Command (`--measures` chooses measures, `--images` "
        "the number of photographs):",
        "",
        "```bash",
        f"python benchmarks/earlier_version.py --commit {figures['commit']} "
        "--data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k/validation \\",
        "  --vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf --tokenizer gpt2",
        "```",
        "",
    ]


def vision(figures: dict) -> list[str]:
    """Format the section on the time of a vision model."""
    setting = figures["setting"]
    lines = [
        "## Images to regions on a CPU",
        "",
        f"CPU seconds of {setting['batch']} images of {setting['size']} x {setting['size']} pixels, "
        f"{setting['model']}, medians ({figures['machine']}). Without gradients, a captioner computes a few images "
        "at a time on a CPU, with channels last; the command line also makes the C library keep freed memory, "
        "and `extract-features` merges batch norms into convolutions ([speed](speed.md)). The first row is what plain "
        "torch does. `python benchmarks/vision.py` repeats the measurement.",
        "",
        *columns("images of a batch", "memory", "user", "system", "speed"),
    ]
    lines += [
        f"| {r['images']} | {r['memory']} | {r['user']:.2f} | {r['system']:.2f} | {r['ratio']:.2f} |"
        for r in figures["rows"]
    ]
    return [*lines, ""]


def compared(figures: dict) -> list[str]:
    """Format the table of a captioner and its smaller forms."""
    count = figures["images"]
    rows = [
        f"| {row['what']} | {row['equal']:,} of {count:,} | {row['cider_d']:.4f} | {row['megabytes']:.1f} | "
        f"{row['cpu_seconds']:.2f} |"
        for row in figures["rows"]
    ]
    header = columns(
        "captioner", "equal captions", "CIDEr-D", "weights and tokenizer, MB", "CPU seconds per photograph"
    )
    return [*header, *rows, ""]


def exported_captions(figures: dict) -> list[str]:
    """Format the section on captions of exported captioners."""
    rows = figures["rows"]
    loss = 1 - rows[-1]["cider_d"] / rows[0]["cider_d"]
    return [
        "## Captions of an exported captioner",
        "",
        "The default captioner, whose 11 million weights are stored in 16 bits and computed in 32, captions "
        f"{figures['images']:,} validation photographs with torch and with [onnxruntime](onnx.md), with "
        f"{figures['beams']} beams ({figures['machine']}, shared with other work). With 8-bit weights, CIDEr-D is "
        f"{abs(loss):.1%} {'lower' if loss >= 0 else 'higher'}.",
        "",
        *compared(figures),
        *shell(figures),
    ]


def trimmed_vocabulary(figures: dict) -> list[str]:
    """Format the section on captioners with a trimmed vocabulary."""
    return [
        "## A trimmed vocabulary",
        "",
        "VisualGPT with the vocabulary of GPT-2, before and after [`trim-vocabulary`](onnx.md#a-smaller-vocabulary) "
        f"with the 30,000 training captions of Flickr8k, on {figures['images']:,} validation photographs "
        f"({figures['machine']}, shared with other work). The captioner has a width of 128 and 4 layers, and was "
        f"trained for two epochs; {figures['rows'][0]['distinct']:,} of its captions are different. First captions: "
        + "; ".join(f"“{caption}”" for caption in figures["examples"])
        + ".",
        "",
        *compared(figures),
        *shell(figures),
    ]


def exported_decoding(figures: dict) -> list[str]:
    """Format the section on the time from photograph to caption, and the choice of a form."""
    setting, versions = figures["setting"], figures["versions"]
    packed, exported = (
        next(row for row in figures["rows"] if row["what"] == what)
        for what in ("this library, packed weights, float32", "onnxruntime, float32")
    )
    sizes = " and ".join(f"{size:.0f} MB with {name} weights" for name, size in figures["megabytes"].items())
    return [
        "## From photograph to caption: torch and onnxruntime",
        "",
        f"VisualGPT of the size of its paper ({setting['layers']} layers) with random weights and a "
        f"{setting['vision']}, one photograph, {setting['beams']} beams, {setting['tokens']} tokens "
        f"({figures['machine']}, shared with other work; torch {versions['torch'].split('+')[0]}, "
        f"transformers {versions['transformers']}, onnxruntime {versions['onnxruntime']}). The exported folder has "
        f"{sizes}.",
        "",
        *columns("", "CPU seconds", "speed relative to stock `generate()`"),
        *(f"| {row['what']} | {row['seconds']:.2f} | {row['speedup']:.2f} x |" for row in figures["rows"]),
        "",
        f"In each of {figures['rounds']} rounds every decoder ran once; medians (packed float32 weights: "
        f"{packed['least']:.2f} to {packed['most']:.2f} s, onnxruntime: {exported['least']:.2f} to "
        f"{exported['most']:.2f} s).",
        "",
        "What to use when: with a GPU, or to train, torch. On a CPU, an exported captioner: onnxruntime was "
        f"{packed['seconds'] / exported['seconds']:.1f} times as fast as [packed weights](speed.md#packed-weights), "
        "starts sooner and needs less memory; with 8-bit weights if it must be small and fast, after you have "
        "measured its captions. Packed weights, which need no export, for what an exported captioner does not do: "
        "other searches and options of `generate()`, ensembles, sampling in training. How much faster they are "
        "depends on the processor. `python benchmarks/exported_decoding.py` repeats the measurement.",
        "",
    ]


def first_caption(figures: dict) -> list[str]:
    """Format the section on the default captioner without torch."""
    rows, commit = figures["rows"], figures["commit"]
    start, speed, servers = rows["starts"], rows["speed"]["jobs"], rows["servers"]
    lines = [
        "## The first caption",
        "",
        f"The default captioner: `caption` and `serve` of this version on onnxruntime, and those of commit `{commit}` "
        f"on torch with packed float32 weights, in turn ({figures['machine']}, shared with other work). User and "
        f"system seconds, medians of {rows['speed']['rounds']} rounds; those of photographs leave out loading. "
        f"Small photographs are {figures['images']} of COCO (640 pixels at most), large ones "
        f"{figures['large_images']} of Flickr8k, enlarged to {figures['megapixels']:.0f} megapixels with grain.",
        "",
        *columns("measure", f"`{commit}`", "now", "ratio"),
        f"| process start to the first caption, s | {start['earlier']['seconds']:.2f} | "
        f"{start['now']['seconds']:.2f} | {start['ratio']:.1f} |",
        f"| its peak memory, MB | {start['earlier']['megabytes']:.0f} | {start['now']['megabytes']:.0f} | |",
    ]
    for name, row in speed.items():
        lines.append(
            f"| a photograph, {name}, ms | {1e3 * row['earlier']:.0f} | {1e3 * row['now']:.0f} | {row['ratio']:.2f} |"
        )
    batches = next(row for name, row in speed.items() if name.startswith("batches"))
    lines += [
        f"| peak memory of batches, MB | {batches['earlier, megabytes']:.0f} | {batches['now, megabytes']:.0f} | |",
        f"| `serve`: start to the first answer, s | | {servers['serve']['seconds']:.2f} | |",
        f"| `serve`: peak memory after a caption, MB | | {servers['serve']['megabytes']:.0f} | |",
        f"| `review`: peak memory after ten photographs, MB | | {servers['review']['megabytes']:.0f} | |",
        "",
    ]
    return [*lines, *equal_captions(rows["equal"], commit), *reduced_captions(rows["reduced"])]


def equal_captions(figures: dict, commit: str) -> list[str]:
    """Format the sentences on captions of both versions."""
    count, different, scores = figures["photographs"], figures["different"], figures["cider_d"]
    ties = sum(one["tie"] for one in different)
    others = f", and {ties} of the others are ties (log-probabilities within 1e-4)" if different else ""
    lines = [
        f"Of {count:,} validation photographs of Flickr8k, {count - len(different):,} have the same caption as with "
        f"`{commit}`{others}. CIDEr-D is {scores['now']:.4f}, and was {scores['earlier']:.4f}.",
        "",
    ]
    for one in different:
        first, second = one["log_probabilities"]
        lines.append(f'- {one["image"]}: "{one["now"]}" ({first:.4f}), was "{one["earlier"]}" ({second:.4f})')
    return [*lines, *([""] if different else [])]


def reduced_captions(figures: dict) -> list[str]:
    """Format the sentences on reading at a reduced size."""
    return [
        f"With `--reduced_reading`, {figures['different']} of the first {figures['read']:,} large photographs have "
        f"another caption, so it is no default (the limit was 1 % of {figures['photographs']:,}, where "
        "reading ends). Commands:",
        "",
        "```bash",
        "pip install --target earlier_packages --no-deps transformers==5.23.0",
        "python benchmarks/first_caption.py --commit 1be0327 --packages earlier_packages \\",
        "  --photographs $HF_CAPTIONERS_DATA_DIR/coco/images \\",
        "  --validation_dir $HF_CAPTIONERS_DATA_DIR/flickr8k/validation",
        "```",
        "",
    ]


def browser_captions(figures: dict) -> list[str]:
    """Format the section on captions in the browser."""
    return [
        "## Captions in the browser",
        "",
        f"The page [`examples/browser_captioner`](onnx.md#in-the-browser) with the exported AoANet in headless "
        f"Chromium {figures['chromium'].partition('.')[0]} (onnxruntime-web {figures['onnxruntime_web']}, one thread, "
        f"{figures['options']['num_beams']} beams): {figures['equal']} of {figures['images']} photographs of Flickr8k "
        "have the captions of `OnnxCaptioner`. The page loaded files from "
        f"{' and '.join(figures['hosts'])} only. `python benchmarks/browser_captions.py` repeats the measurement.",
        "",
    ]


def scale(figures: dict) -> list[str]:
    """Format the section on many images."""
    lines = ["## Many images", ""]
    if waiting := figures.get("waiting"):
        lines += [
            f"The default captioner, {waiting['images']:,} photographs in batches of {waiting['batch_size']}, one "
            f"thread that captions and one process that prepares images ({waiting['machine']}): of "
            f"{waiting['seconds']:.0f} seconds, the loop waits {waiting['waiting']:.1f} for its next batch, "
            f"{waiting['waiting'] / waiting['seconds']:.1%}.",
            "",
        ]
    if memory := figures.get("memory"):
        readings = [row["megabytes"] for row in memory["every"]]
        lines += [
            f"`hf-captioners caption` on {memory['images']:,} drawn images of 64 x 64 pixels with a tiny captioner, "
            f"greedily: its processes have {readings[0]:.0f} MB after {memory['every'][0]['images']:,} images, "
            f"and at most {max(readings):.0f} MB ({statistics.mean(readings):.0f} on average) after each further such "
            "number.",
            "",
        ]
    if ray := figures.get("ray"):
        rows = ray["cpu_seconds_an_image"]
        few, many = ray["images"]
        lines += [
            f"CPU seconds of an image with the default captioner, those of {many:,} photographs less those of {few}, "
            f"medians of {ray['rounds']} rounds, processes that manage Ray not counted: {rows['command line']:.3f} on "
            f"the command line, {rows['Ray']:.3f} with `--engine ray` ({ray['ratio']:.2f} times as many).",
            "",
        ]
    return [*lines, "`python benchmarks/scale.py` repeats the measurements.", ""]


def other_models(figures: dict) -> list[str]:
    """Format the section on instructed models of transformers."""
    seconds = figures["cpu_seconds"]
    return [
        "## Models that follow instructions: the cost of this library",
        "",
        f"CPU seconds of captioning {figures['images']} photographs in batches of {figures['batch_size']} with an "
        f"untrained LLaVA of {figures['parameters'] / 1e6:.0f} million parameters, {figures['new_tokens']} new tokens "
        f"each: medians of {figures['rounds']} rounds, in which both alternate. The loop of transformers opens the "
        "files, calls the processor and `generate()`, and decodes; this library reads the next images in another "
        "process, which is counted, and computes scores too. Loading and imports are not counted.",
        "",
        *columns("captioned by", "CPU seconds", "ratio"),
        f"| a loop with transformers | {seconds['transformers']:.2f} | 1.00 |",
        f"| `caption_batches` of this library | {seconds['hf_captioners']:.2f} | {figures['ratio']:.2f} |",
        "",
        "Command: `python benchmarks/other_models.py --images PHOTOGRAPHS`.",
        "",
    ]


def other_models_step(figures: dict) -> list[str]:
    """Return the section on a training step of a captioner of transformers."""
    return [
        "## A training step of a captioner of transformers",
        "",
        "`CaptioningTrainer` and the Trainer of transformers train a LLaVA of "
        f"{figures['parameters']:,} random weights on the same batches of {figures['batch_size']} pairs "
        f"({figures['tokens']:,} tokens in the first one), in turn. The batches of the latter are in memory before it "
        f"starts. CPU seconds of one thread, medians of {len(figures['ratios'])} rounds:",
        "",
        *columns("`CaptioningTrainer`", "Trainer of transformers", "ratio", "ratios of the rounds"),
        f"| {figures['trainer_seconds']:.3f} | {figures['plain_seconds']:.3f} | **{figures['ratio']:.2f}** | "
        f"{min(figures['ratios']):.2f} to {max(figures['ratios']):.2f} |",
        "",
    ]
