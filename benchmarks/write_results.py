"""Write docs/results.md from the figures in benchmarks/results.

python benchmarks/write_results.py
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def flickr8k(figures: dict) -> list[str]:
    """The section on photographs."""
    training = figures["training"]
    ratio = figures["cider_d"] / figures["cider_d_dealt"]
    return [
        "## Flickr8k: VisualGPT from 6,000 photographs, on a laptop's CPU",
        "",
        f"The {figures['pictures']:,} validation photographs, five references each, beam {figures['beams']}, metrics "
        "of this library.",
        "",
        "| captions | BLEU-4 | CIDEr-D |",
        "|---|---|---|",
        f"| **VisualGPT** | **{figures['bleu_4']:.3f}** | **{figures['cider_d']:.3f}** |",
        f"| the same captions dealt to other photographs | | {figures['cider_d_dealt']:.3f} |",
        "",
        f"Own photographs over other photographs: {ratio:.1f} times. {figures['distinct_captions']:,} of "
        f"{figures['pictures']:,} captions are distinct. Without any training, the consensus of the captions of 30 "
        "nearest neighbours (same backbone) reaches BLEU-4 0.154 and CIDEr-D 0.361.",
        "",
        f"Training: {training['epochs']:g} epochs, {training['steps']:,} steps, {training['seconds'] / 60:.0f} "
        f"minutes; best evaluation after epoch {training['best_epoch']:g}. Hardware: {figures['hardware']}. "
        f"Captioning the photographs took {figures['captioning_seconds']} s.",
        "",
        "Commands (`HF_CAPTIONERS_DATA_DIR` is the data folder):",
        "",
        "```bash",
        *(figures["commands"] or "").strip().splitlines(),
        "```",
        "",
        "First captions: " + "; ".join(f"“{caption}”" for caption in figures["examples"]) + ".",
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
        "| pictures at once | decoder | CPU seconds | relative to ours |",
        "|---|---|---|---|",
    ]
    lines += [f"| {r['batch']} | {r['decoder']} | {r['seconds']:.2f} | {r['ratio']:.2f} |" for r in figures["rows"]]
    return [*lines, ""]


def main() -> None:
    """Put all sections together."""
    lines = ["# Results", "", "Written by `python benchmarks/write_results.py` from `benchmarks/results`.", ""]
    for name, section in (("flickr8k_visualgpt", flickr8k), ("decoding", decoding)):
        path = RESULTS / f"{name}.json"
        if path.is_file():
            lines += section(json.loads(path.read_text(encoding="utf-8")))
    (ROOT / "docs" / "results.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
