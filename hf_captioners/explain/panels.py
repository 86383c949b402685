"""Colours and ranking of attention weights, for drawings and the page of explanations."""

import base64
import io
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_hex
from numpy.typing import NDArray
from PIL import Image

from .explanation import Explanation

OUTLINED = 3  # regions that are outlined for each word, at most
ABOVE_EVEN = 1.25  # they have this many times the weight of even attention
GATE_COLOURS = ("#1b7837", "#2166ac", "#b2182b", "#762a83")
INTENSITY_COLOUR = "#e08214"
# Orange for doubtful words, blue for sure ones: the two are distinct in all forms of colour blindness.
CONFIDENCE_COLOURS = LinearSegmentedColormap.from_list("confidence", ("#f4a259", "#f3f3f3", "#8ec1e8"))
# Opacity over the image of a weight of 0 and of the largest one: the image remains visible, most of all where the
# captioner looks.
VEIL, TINT = 0.6, 0.34


def veil_colours() -> ListedColormap:
    """Return RGBA colours for weights over an image: from a dark veil to a light tint."""
    steps = np.linspace(0, 1, 256)
    colours = colormaps["inferno"](0.05 + 0.85 * steps)
    colours[:, 3] = VEIL + (TINT - VEIL) * steps
    return ListedColormap(colours, name="veil")


def top_of(maps: NDArray[Any]) -> float:
    """Return the upper end of a colour scale: the maximum weight, rounded up to two digits."""
    largest = max(float(maps.max(initial=0.0)), 1e-6)
    unit = 10.0 ** (np.floor(np.log10(largest)) - 1)
    return min(1.0, float(np.ceil(largest / unit - 1e-9) * unit))


def paint(weights: NDArray[Any], boxes: NDArray[Any], size: tuple[int, int]) -> NDArray[np.float32]:
    """Return a map `[H, W]` of the maximum weight among the regions that cover each pixel.

    Args:
        weights: `[R]`.
        boxes: `[R, 4]`, normalised xyxy.
        size: height and width in pixels.
    """
    height, width = size
    canvas = np.zeros(size, dtype=np.float32)
    corners = (boxes * np.array([width, height, width, height])).round().astype(int)
    for index in np.argsort(weights, kind="stable"):  # the largest weight last
        left, top, right, bottom = corners[index]
        canvas[top:bottom, left:right] = weights[index]
    return canvas


def veil(weights: NDArray[Any], boxes: NDArray[Any], size: tuple[int, int], top: float) -> NDArray[np.uint8]:
    """Return RGBA colours `[H, W, 4]` to draw over an image, see `paint`.

    Args:
        weights, boxes, size: see `paint`.
        top: end of the scale, see `top_of`.
    """
    return veil_colours()(np.clip(paint(weights, boxes, size) / top, 0, 1), bytes=True)


def strongest(weights: NDArray[Any]) -> list[int]:
    """Return the regions with the largest weights, in order; none if the attention is nearly uniform."""
    order = np.argsort(-weights, kind="stable")[:OUTLINED]
    return [int(index) for index in order if weights[index] * len(weights) > ABOVE_EVEN]


def percent(weight: float) -> str:
    """Format a weight in per cent with at most two digits, without the sign."""
    return f"{100 * weight:.0f}" if weight >= 0.0995 else f"{100 * weight:.1f}"


def scale_of(values: NDArray[Any]) -> tuple[float, float]:
    """Return the ends of a scale that includes 0 and all values, each 0 or 1, 2 or 5 times a power of ten."""
    high, low = float(values.max(initial=0.0)), float(values.min(initial=0.0))
    return 0.0 - next_round(-low), next_round(max(high, 1e-9))


def next_round(value: float) -> float:
    """Return the smallest number 1, 2 or 5 times a power of ten that is not below a value; 0 for 0."""
    if value <= 0:
        return 0.0
    power = 10.0 ** np.floor(np.log10(value))
    return next(float(step * power) for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def word_bars(explanation: Explanation) -> list[tuple[str, NDArray[Any], tuple[float, float], str]]:
    """Return the bars under each word's panel: name, values `[W]`, scale, colour; gates first."""
    bars = [
        (name, values, (0.0, 1.0), GATE_COLOURS[index % len(GATE_COLOURS)])
        for index, (name, values) in enumerate(explanation.gates.items())
    ]
    if explanation.intensities is not None:
        bars.append(("intensity", explanation.intensities, scale_of(explanation.intensities), INTENSITY_COLOUR))
    return bars


def confidence_colour(confidence: float | None) -> str | None:
    """Return the background colour `#rrggbb` for a word's confidence; None without confidence."""
    return None if confidence is None else to_hex(CONFIDENCE_COLOURS(float(confidence)))


def data_address(pixels: Image.Image, image_format: str = "PNG") -> str:
    """Return an image as a data URL."""
    stream = io.BytesIO()
    pixels.save(stream, image_format)
    return f"data:image/{image_format.lower()};base64," + base64.b64encode(stream.getvalue()).decode()
