"""The demonstration's page: one file with images, captions, visual scores and learning curves."""

import base64
import io
import statistics
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from hf_captioners.word_values import word_means

from .experiment import Parts, Run, Scale, judge, mean

SHOWN = 12
CURVE_WIDTH, CURVE_HEIGHT, MARGIN = 640, 260, 46


def write_page(path: Path, parts: Parts, runs: list[Run], scale: Scale, seconds: float) -> Path:
    """Render the template `hub_cards/demo_page.html`.

    Args:
        path: of the page; parts, runs, scale: what was done; seconds: how long it took.
    """
    best = max((run for run in runs if run.pretrained), key=lambda run: run.cider_d)
    template = files("hf_captioners.hub_cards").joinpath("demo_page.html").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True).from_string(template)
    text = page.render(
        parts=parts,
        scale=scale,
        minutes=seconds / 60,
        rows=table_rows(runs),
        verdicts=judge(runs),
        curves=curve_lines(runs),
        width=CURVE_WIDTH,
        height=CURVE_HEIGHT,
        margin=MARGIN,
        ticks=curve_ticks(runs),
        examples=examples(best, parts),
        best=best,
        threshold=best.model.config.srau_threshold,
    )
    path.write_text(text, encoding="utf-8")
    return path


def table_rows(runs: list[Run]) -> list[dict[str, Any]]:
    """One row for each way to start: figures of all seeds and their means."""
    rows = []
    for pretrained, name in ((True, "the language model"), (False, "random weights")):
        side = [run for run in runs if run.pretrained == pretrained]
        values = [run.cider_d for run in side]
        rows.append(
            {
                "name": name,
                "seeds": ", ".join(f"{value:.3f}" for value in values),
                "mean": mean(values),
                "spread": statistics.stdev(values) if len(values) > 1 else None,
                "bleu_4": mean([run.bleu_4 for run in side]),
                "dealt": mean([run.dealt for run in side]),
            }
        )
    return rows


def curve_lines(runs: list[Run]) -> list[dict[str, Any]]:
    """Polylines of CIDEr-D on unseen images over each run, in the image's coordinates."""
    top = curve_top(runs)
    return [
        {
            "pretrained": run.pretrained,
            "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in (position(*point, top) for point in run.curve)),
        }
        for run in runs
    ]


def curve_top(runs: list[Run]) -> float:
    """A round figure above all curves."""
    highest = max((value for run in runs for _, value in run.curve), default=1.0)
    return max(0.5, round(highest * 2 + 0.5) / 2)


def curve_ticks(runs: list[Run]) -> list[tuple[float, str]]:
    """Heights and labels of the vertical axis."""
    top = curve_top(runs)
    step = 0.25 if top <= 1 else 0.5
    values = [step * index for index in range(int(top / step) + 1)]
    return [(position(0, value, top)[1], f"{value:.2f}") for value in values]


def position(share: float, value: float, top: float) -> tuple[float, float]:
    """A point of a curve in pixels."""
    x = MARGIN + share * (CURVE_WIDTH - 2 * MARGIN)
    return x, CURVE_HEIGHT - MARGIN - value / top * (CURVE_HEIGHT - 2 * MARGIN)


def examples(run: Run, parts: Parts) -> list[dict[str, Any]]:
    """The first unseen images with their captions, references and visual scores."""
    count = min(SHOWN, len(parts.unseen))
    scored = [word_scores(run, parts, index) for index in range(count)]
    values = [score for words in scored for _, score in words]
    low, high = min(values, default=0.0), max(values, default=1.0)
    return [
        {
            "image": data_address(parts.unseen[index]["image"]),
            "words": [
                {"text": word, "score": score, "share": (score - low) / max(high - low, 1e-9)} for word, score in words
            ],
            "references": parts.unseen[index]["captions"],
        }
        for index, words in enumerate(scored)
    ]


def word_scores(run: Run, parts: Parts, index: int) -> list[tuple[str, float]]:
    """Words of the caption of an image with their visual scores, the mean over a word's pieces."""
    processor, model = parts.processor, run.model.eval()
    inputs = processor(images=parts.unseen[index]["image"], return_tensors="pt")
    sequences = model.generate(**inputs, num_beams=3, max_new_tokens=24)
    scores = model.visual_scores(sequences, **inputs)[0].tolist()
    words, means = word_means(processor, sequences[0].tolist(), scores)
    return list(zip(words, map(float, means), strict=True))


def data_address(image: Any) -> str:
    """An image as an address that holds it."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
