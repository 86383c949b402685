"""Self-contained HTML page of explanations."""

import io
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from PIL import Image

from .attributes import SHADES
from .explanation import AttributeWeights, Explanation
from .graph import draw_graph
from .panels import (
    CONFIDENCE_COLOURS,
    confidence_colour,
    data_address,
    percent,
    strongest,
    top_of,
    veil,
    veil_colours,
    word_bars,
)

TEMPLATE = "explanation_page.html"
UNIT = 200  # the image's width has this many units of line width and text size
STEPS = 9  # colours of the colour bar


def render_page(explanations: Mapping[str, Explanation], model: str = "The captioner") -> str:
    """Return the HTML page with a section for each image.

    The page has the panels of `draw_attention`, the table of `draw_attributes` and the drawing of `draw_graph`, and
    fits narrow screens. It refers to no other file.

    Args:
        explanations: by the names of their images, see `explain_caption`.
        model: name of the captioner, for the page's first lines.
    """
    text = files("hf_captioners.hub_cards").joinpath(TEMPLATE).read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(text)
    colours = [
        "rgba({:.0f}, {:.0f}, {:.0f}, {:.2f})".format(*(255 * part for part in colour[:3]), colour[3])
        for colour in veil_colours()(np.linspace(0, 1, STEPS))
    ]
    sections = [describe(name, explanation) for name, explanation in explanations.items()]
    sure = ", ".join(to_hex(CONFIDENCE_COLOURS(share)) for share in np.linspace(0, 1, STEPS))
    return template.render(sections=sections, ramp=", ".join(colours), sure_ramp=sure, model=model)


def describe(name: str, explanation: Explanation) -> dict[str, Any]:
    """Return the page's content about an image, for the template."""
    image, regions = explanation.image, explanation.maps.shape[1]
    top, even = top_of(explanation.maps), 1 / max(1, regions)
    return {
        "name": name,
        "words": [word_of(explanation, word) for word in range(len(explanation.words))],
        "is_assessed": explanation.confidences is not None,
        "confidence": None if explanation.confidence is None else f"{explanation.confidence:.2f}",
        "image": data_address(image),
        "width": image.width,
        "height": image.height,
        "unit": image.width / UNIT,
        "regions": regions,
        "method": explanation.method,
        "top": percent(top),
        "half": percent(top / 2),
        "even": percent(even),
        "even_at": round(100 * even / top, 1),
        "bar_key": [
            {"name": bar, "colour": colour, "low": f"{low:g}", "high": f"{high:g}"}
            for bar, _, (low, high), colour in word_bars(explanation)
        ],
        "panels": [panel_of(explanation, word, top) for word in range(-1, len(explanation.words))] if regions else [],
        "scale": bool(regions and explanation.words),
        "attributes": None if explanation.attributes is None else table_of(explanation.words, explanation.attributes),
        "graph": None if explanation.graph is None else graph_address(explanation),
    }


def word_of(explanation: Explanation, word: int) -> dict[str, Any]:
    """Return the page's content about a word's confidence."""
    confidence = None if explanation.confidences is None else explanation.confidences[word]
    number = None if confidence is None else f"{confidence:.2f}"
    return {"word": explanation.words[word], "confidence": number, "shade": confidence_colour(confidence)}


def panel_of(explanation: Explanation, word: int, top: float) -> dict[str, Any]:
    """Return the page's content about a word's attention; -1: about the image panel."""
    if word < 0:
        return {"word": "image", "label": "the image", "veil": None, "bars": [], "confidence": None, "shade": None}
    image, weights, name = explanation.image, explanation.maps[word], explanation.words[word]
    corners = explanation.boxes * np.array([image.width, image.height] * 2)
    boxes = [
        {
            "index": index,
            "x": round(float(left), 2),
            "y": round(float(upper), 2),
            "w": round(float(right - left), 2),
            "h": round(float(lower - upper), 2),
            "weight": percent(float(weights[index])),
            "name": explanation.region_names[index] if explanation.region_names else "",
        }
        for index, (left, upper, right, lower) in enumerate(corners)
    ]
    chosen = strongest(weights)
    largest_first = np.argsort(-(explanation.boxes[:, 2:] - explanation.boxes[:, :2]).prod(-1), kind="stable")
    of_word = "relevance for" if explanation.method == "relevance" else "attention of"
    label = f"{of_word} {name}" + (f", strongest {boxes[chosen[0]]['weight']} per cent" if chosen else ", even")
    bars = []
    for bar, values, (low, high), colour in word_bars(explanation):
        zero, end = (100 * (place - low) / (high - low) for place in (0.0, float(values[word])))
        number = f"{values[word]:.2f}" if high == 1 else f"{values[word]:.3g}"
        left, width = round(min(zero, end), 1), round(abs(end - zero), 1)
        bars.append({"name": bar, "colour": colour, "value": number, "left": left, "width": width})
    shade = veil(weights, explanation.boxes, (image.height, image.width), top)
    return {
        **word_of(explanation, word),
        "label": label,
        "veil": data_address(Image.fromarray(shade)),
        "regions": [boxes[index] for index in largest_first],  # the smallest on top, so that each can be pointed at
        "outlined": [boxes[index] for index in reversed(chosen)],
        "bars": bars,
    }


def table_of(words: list[str], attributes: AttributeWeights) -> dict[str, Any]:
    """Return the table of attributes, for the template."""
    shades, found = colormaps[SHADES], attributes.probabilities
    rows = [
        {
            "word": word,
            "cells": [
                {
                    "text": f"{weight:.2f}",
                    "colour": to_hex(shades(float(weight))),
                    "ink": "#ffffff" if weight > 0.6 else "#000000",
                }
                for weight in line
            ],
        }
        for word, line in zip(words, attributes.weights, strict=True)
    ]
    probabilities = None if found is None else [f"{value:.2f}" for value in found]
    return {"words": attributes.words, "probabilities": probabilities, "rows": rows}


def graph_address(explanation: Explanation) -> str:
    """Return a drawing of the region graph as a data URL."""
    stream = io.BytesIO()
    draw_graph(explanation).savefig(stream, format="png", dpi=140)
    return data_address(Image.open(stream).convert("RGB"))
