"""Estimate the hours that the reference models take on a GPU, from measured steps of their full size.

    python benchmarks/reference_hours.py

The parts of a training are run on this machine with random weights and inputs: a step with cross-entropy, a step on
rewards, and the captions of a batch in an evaluation. In full size, their floating point operations are counted. With
the same layers so narrow that they compute next to nothing, the seconds are measured in which the host issues the
operations, which a GPU waits for. A part takes on a GPU the seconds of the host plus those of the operations, at an
assumed share of the card's float32 rate. Results: `benchmarks/results/reference_hours.json`, and the section of
docs/training_recipes.md.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
from known_changes import RESULTS, known_changes, provenance_lines
from provenance import ROOT, records_of, write_results
from tables import columns
from torch.utils.flop_counter import FlopCounterMode

from hf_captioners.modeling.configuration_show_attend_tell import ShowAttendTellConfig
from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.modeling_show_attend_tell import ShowAttendTellForConditionalGeneration
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration

OUTPUT = RESULTS / "reference_hours.json"
PAGE = ROOT / "docs" / "training_recipes.md"
BEGIN, END = "<!-- made by benchmarks/reference_hours.py -->\n", "<!-- end -->\n"
CARD, RATE, SHARE = "NVIDIA T4, 16 GB", 8.1e12, 0.3  # float32 operations per second of its data sheet; assumed share
CAPTION_TOKENS, SEARCHED_TOKENS, BEAMS, EVALUATED = 14, 20, 5, 25
REPEATS = 5
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
VGG_SIDE, VGG_REGIONS, VGG_FEATURES = 448, 196, 512
# Runs as the recipes state them. VisualGPT: 1 % of the 566,747 training captions, most of them of images of their own.
PLANS: dict[str, dict[str, Any]] = {
    "visualgpt-coco-1-percent": {
        "seeds": 4,
        "evaluated_images": 5_000,
        "encoded_images": 0,
        "phases": {"cross-entropy": (5_667, 25), "rewards": (5_667, 5)},
    },
    "show-attend-tell-flickr8k": {
        "seeds": 1,
        "evaluated_images": 1_000,
        "encoded_images": 8_000,
        "phases": {"cross-entropy": (30_000, 64)},
    },
}
EPOCHS = 100  # at most, for each phase; early stopping ends it before


def captioner(name: str, full: bool) -> tuple[Any, int, int]:
    """Return a captioner with random weights, and the number and width of its regions."""
    torch.manual_seed(0)
    if name.startswith("visualgpt"):
        regions, width = (50, 2048) if full else (2, 8)
        text = {"n_embd": 768 if full else 12, "n_head": 12, "n_layer": 12, "vocab_size": 50_258 if full else 60}
        config: Any = VisualGPTConfig(text_config=text, region_feature_size=width, **IDS)
        return VisualGPTForConditionalGeneration(config), regions, width
    regions, width = (VGG_REGIONS, VGG_FEATURES) if full else (2, 8)
    sizes = {"hidden_size": 1800 if full else 8, "vocab_size": 10_000 if full else 60, "attention_layers": 2}
    config = ShowAttendTellConfig(region_feature_size=width, **sizes, **IDS)
    return ShowAttendTellForConditionalGeneration(config), regions, width


def parts_of(name: str, full: bool) -> dict[str, Callable[[], Any]]:
    """Return the parts of a training as functions; each is one step or the captions of one batch."""
    model, regions, width = captioner(name, full)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def batch(images: int) -> dict[str, torch.Tensor]:
        return {"region_features": torch.rand(images, regions, width)}

    def learn(images: int, captions: int) -> None:
        model.train()
        labels = torch.randint(3, model.config.vocab_size, (images * captions, CAPTION_TOKENS))
        model(**batch(images), labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def search(images: int, captions: int = 1) -> None:
        model.eval()
        limits = {"max_new_tokens": SEARCHED_TOKENS, "min_new_tokens": SEARCHED_TOKENS}
        with torch.no_grad():
            model.generate(**batch(images), num_beams=BEAMS, num_return_sequences=captions, **limits)

    def on_rewards(images: int) -> None:
        search(images, BEAMS)
        learn(images, BEAMS)

    phases = PLANS[name]["phases"]
    steps: dict[str, Callable[[], Any]] = {"cross-entropy": lambda: learn(phases["cross-entropy"][1], 1)}
    if "rewards" in phases:
        steps["rewards"] = lambda: on_rewards(phases["rewards"][1])
    return steps | {"evaluation": lambda: search(EVALUATED)}


def measure(name: str) -> dict[str, dict[str, float]]:
    """Count the operations of the parts in full size, and measure the host's seconds in the narrow one."""
    figures: dict[str, dict[str, float]] = {}
    for part, run in parts_of(name, full=True).items():
        start = time.process_time()
        with FlopCounterMode(display=False) as counter:
            run()
        figures[part] = {"operations": counter.get_total_flops(), "cpu_seconds": time.process_time() - start}
    for part, run in parts_of(name, full=False).items():
        run()  # the first one warms up
        seconds = []
        for _ in range(REPEATS):
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        figures[part]["host_seconds"] = statistics.median(seconds)
    if PLANS[name]["encoded_images"]:
        vision = timm.create_model("vgg19", pretrained=False, num_classes=0, global_pool="").eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            vision.forward_features(torch.rand(1, 3, VGG_SIDE, VGG_SIDE))
        figures["features of an image"] = {"operations": counter.get_total_flops(), "host_seconds": 0.0}
    return figures


def seconds_on_card(part: dict[str, float]) -> float:
    """Return the estimated seconds of a part on the card."""
    return part["host_seconds"] + part["operations"] / (RATE * SHARE)


def estimates(name: str, figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return hours on the card: of an epoch of each phase with its evaluation, and of all seeds at most."""
    plan = PLANS[name]
    evaluation = plan["evaluated_images"] / EVALUATED * seconds_on_card(figures["evaluation"]) / 3600
    hours = {
        phase: rows / size * seconds_on_card(figures[phase]) / 3600 + evaluation
        for phase, (rows, size) in plan["phases"].items()
    }
    images = figures.get("features of an image")
    once = plan["encoded_images"] * seconds_on_card(images) / 3600 if images else 0.0
    return hours | {"features": once, "at most": once + plan["seeds"] * EPOCHS * sum(hours.values())}


def section(figures: dict[str, Any]) -> list[str]:
    """Format the section of the page."""
    lines = [
        *provenance_lines(OUTPUT.stem, records_of(OUTPUT), known_changes()),
        f"Hours on one {CARD}, in float32, estimated: operations counted in full size, at {SHARE:.0%} of the card's "
        f"{RATE / 1e12:.1f} TFLOP/s (assumed), plus the seconds in which the host issues them, measured with narrow "
        f"layers on one thread. An epoch includes its evaluation. At most: all seeds, {EPOCHS} epochs of each phase, "
        "which early stopping shortens. Rewards, metrics and reading of data, which the host does, are left out.",
        "",
        *columns(
            "reference model", "phase", "operations of a step", "host seconds", "hours of an epoch", "seeds", "at most"
        ),
    ]
    for name, plan in PLANS.items():
        measured, hours = figures["parts"][name], figures["hours"][name]
        for number, phase in enumerate(plan["phases"]):
            total = "" if number else f"{hours['at most']:,.0f}"
            step = measured[phase]
            lines.append(
                f"| {'' if number else f'`{name}`'} | {phase} | {step['operations'] / 1e12:.2f} x 10^12 | "
                f"{step['host_seconds']:.2f} | {hours[phase]:.2f} | {'' if number else plan['seeds']} | {total} |"
            )
    return [
        *lines,
        "",
        f"The process that measured all parts, with weights, gradients and moments of AdamW, took "
        f"{figures['peak_gib']:.1f} GiB of memory.",
        "",
    ]


def main() -> None:
    """Measure all parts, and write results and page."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    parts = {name: measure(name) for name in PLANS}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB
    assumed = {"card": CARD, "operations_per_second": RATE, "share": SHARE, "epochs_at_most": EPOCHS}
    hours = {name: estimates(name, figures) for name, figures in parts.items()}
    write_results(OUTPUT, {"assumed": assumed, "parts": parts, "hours": hours, "peak_gib": peak})
    figures = json.loads(OUTPUT.read_text(encoding="utf-8"))
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n".join(section(figures)) + "\n"
    PAGE.write_text(head + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
