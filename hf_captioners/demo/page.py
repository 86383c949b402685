"""The pages of the demonstration: images, captions, how many are right, visual scores, curves; and the attention."""

import base64
import io
import statistics
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from hf_captioners.default_model import ListedModel, list_models
from hf_captioners.explain.explanation import explain_caption
from hf_captioners.explain.page import render_page
from hf_captioners.hub.cards import MIN_SPREAD_OF_SCORES
from hf_captioners.loading import load_captioner
from hf_captioners.output_files import write_text
from hf_captioners.processing.image_reading import read_image
from hf_captioners.processing.vocabulary import word_means

from .claims import best_run, count_right, facts_of_run
from .experiment import Parts, Run, Scale, mean
from .facts import FACTS, interval, right_facts

SHOWN = 12
ATTENTION = "attention.html"
DOCS = Path(__file__).resolve().parents[2] / "docs"  # of a checkout; not in the wheel
PHOTOGRAPHS = [DOCS / name for name in ("photo.jpg", "plane.jpg")]
CURVE_WIDTH, CURVE_HEIGHT, MARGIN = 420, 230, 40


def write_page(
    path: Path, parts: Parts, runs: list[Run], claims: list[tuple[str, bool]], scale: Scale, seconds: float
) -> Path:
    """Render the template `hub_cards/demo_page.html` to a file, and the attention of its captions to one beside it.

    Args:
        path: file to write.
        parts: the pretrained parts and the data.
        runs: the fine-tunings.
        claims: see `check_claims`.
        scale: sizes of data sets and lengths of training.
        seconds: duration of the demonstration.

    Returns:
        The path.
    """
    best, installed = best_run(runs), list_models()[:1]
    shown = examples(best, parts)
    scores = [word["score"] for example in shown for word in example["words"]] or [0.0]
    template = files("hf_captioners.hub_cards").joinpath("demo_page.html").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True).from_string(template)
    text = page.render(
        parts=parts,
        scale=scale,
        minutes=seconds / 60,
        rows=table_rows(runs, parts.unseen["scene"]),
        claims=claims,
        attention=ATTENTION,
        curves=curve_lines(runs),
        width=CURVE_WIDTH,
        height=CURVE_HEIGHT,
        margin=MARGIN,
        ticks=curve_ticks(runs),
        examples=shown,
        gates=(min(scores), max(scores)),
        show_gates=max(scores) - min(scores) >= MIN_SPREAD_OF_SCORES,
        threshold=best.model.config.srau_threshold,
        photographs=captioned_photographs(PHOTOGRAPHS, installed[0]) if installed else [],
        introduction=installed[0].introduction if installed else "",
    )
    write_text(path, text)
    write_text(path.with_name(ATTENTION), attention_page(best, parts))
    return path


def captioned_photographs(paths: Sequence[Path], captioner: ListedModel) -> list[dict[str, str]]:
    """Return those photographs that are there, with what an installed captioner says."""
    found = [path for path in paths if path.is_file()]
    if not found:
        return []
    model, processor = load_captioner(str(captioner.folder))
    inputs = processor(images=[read_image(path) for path in found], return_tensors="pt")
    captions = processor.batch_decode(model.eval().generate(**inputs), skip_special_tokens=True)
    encoded = [base64.b64encode(path.read_bytes()).decode() for path in found]
    return [
        {"image": f"data:image/jpeg;base64,{image}", "caption": caption}
        for image, caption in zip(encoded, captions, strict=True)
    ]


def attention_page(run: Run, parts: Parts) -> str:
    """Return a page with the attention of every word of the captions that the page shows."""
    model = run.model.eval()
    model.set_attn_implementation("eager")
    rows = parts.unseen.select(range(min(SHOWN, len(parts.unseen))))
    shown = {row["image_id"]: explain_caption(model, parts.processor, row["image"], num_beams=3) for row in rows}
    return render_page(shown, "The captioner of the demonstration")


def table_rows(runs: list[Run], scenes: list[str]) -> list[dict[str, Any]]:
    """Return one row per initialisation: the metrics of all seeds and their means, and counts of right captions.

    Args:
        runs: the fine-tunings.
        scenes: descriptions of the evaluation images, see `Scene.describe`.
    """
    rows = []
    for pretrained, name in ((True, "the language model"), (False, "random weights")):
        side = [run for run in runs if run.pretrained == pretrained]
        values = [run.cider_d for run in side]
        facts = [found for run in side for found in facts_of_run(run, scenes)]
        right = count_right(facts)
        rows.append(
            {
                "name": name,
                "seeds": ", ".join(f"{value:.3f}" for value in values),
                "mean": mean(values),
                "spread": statistics.stdev(values) if len(values) > 1 else None,
                "bleu_4": mean([run.bleu_4 for run in side]),
                "shuffled": mean([run.shuffled for run in side]),
                "right": right,
                "captions": len(facts),
                "interval": interval(right, len(facts)),
                "facts": {name: sum(name in found for found in facts) / len(facts) for name in FACTS},
            }
        )
    return rows


def curve_lines(runs: list[Run]) -> list[dict[str, Any]]:
    """Return the CIDEr-D of each run over training as polylines in pixels."""
    top = curve_top(runs)
    return [
        {
            "pretrained": run.pretrained,
            "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in (position(*point, top) for point in run.curve)),
        }
        for run in runs
    ]


def curve_top(runs: list[Run]) -> float:
    """Return a round value above all curves."""
    highest = max((value for run in runs for _, value in run.curve), default=1.0)
    return max(0.5, round(highest * 2 + 0.5) / 2)


def curve_ticks(runs: list[Run]) -> list[tuple[float, str]]:
    """Return heights and labels of the vertical axis."""
    top = curve_top(runs)
    step = 0.25 if top <= 1 else 0.5
    values = [step * index for index in range(int(top / step) + 1)]
    return [(position(0, value, top)[1], f"{value:.2f}") for value in values]


def position(share: float, value: float, top: float) -> tuple[float, float]:
    """Convert a point of a curve to pixels."""
    x = MARGIN + share * (CURVE_WIDTH - 2 * MARGIN)
    return x, CURVE_HEIGHT - MARGIN - value / top * (CURVE_HEIGHT - 2 * MARGIN)


def examples(run: Run, parts: Parts) -> list[dict[str, Any]]:
    """Return the first evaluation images with their captions, references and visual scores."""
    count = min(SHOWN, len(parts.unseen))
    scored = [word_scores(run, parts, index) for index in range(count)]
    return [
        {
            "image": data_address(parts.unseen[index]["image"]),
            "words": [{"text": word, "score": score} for word, score in words],
            "right": sorted(right_facts(run.captions[index], parts.unseen[index]["scene"]), key=FACTS.index),
            "references": parts.unseen[index]["captions"],
        }
        for index, words in enumerate(scored)
    ]


def word_scores(run: Run, parts: Parts, index: int) -> list[tuple[str, float]]:
    """Caption an image and return its words with their visual scores, averaged over the tokens of a word."""
    processor, model = parts.processor, run.model.eval()
    inputs = processor(images=parts.unseen[index]["image"], return_tensors="pt")
    sequences = model.generate(**inputs, num_beams=3, max_new_tokens=24)
    scores = model.visual_scores(sequences, **inputs)[0].tolist()
    words, means = word_means(processor, sequences[0].tolist(), scores)
    return list(zip(words, map(float, means), strict=True))


def data_address(image: Any) -> str:
    """Encode an image as a data URL."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
