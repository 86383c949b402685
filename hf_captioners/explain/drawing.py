"""Drawings of attention: the image and one tile per word, as in Figures 2 and 3 of Show, Attend and Tell."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from .explanation import Explanation

TILE, LABEL, GAP, COLUMNS = 224, 26, 6, 5
BACKGROUND, INK, GATE, INTENSITY, AXIS = "white", "black", "seagreen", "darkorange", "lightgray"
BAR = 8  # height of the bar of intensities, with a gap
OUTLINED = 3  # boxes that are outlined for each word, where regions overlap


def draw_attention(explanation: Explanation) -> Image.Image:
    """Draw the image and one tile per word, bright where the attention weight is high.

    Where the decoder has a gate, a bar above the tile shows how far it is open. Where it has intensities, a bar and a
    number show that of the word, and the first tile has their scale. Where regions contain each other, the boxes with
    the largest weights are outlined.

    Args:
        explanation: see `explain_caption`.

    Raises:
        ValueError: the captioner attends to no regions.
    """
    if not explanation.maps.shape[1]:
        raise ValueError("This captioner attends to no regions, so there is no attention to draw over the image.")
    image = explanation.image
    pixels = np.asarray(image, dtype=np.float32)
    tiles = [("", image)]
    for word, weights in zip(explanation.words, explanation.maps, strict=True):
        brightness = paint(weights, explanation.boxes, (image.height, image.width))[..., None]
        lit = pixels * (0.25 + 0.75 * brightness) + 255 * 0.25 * brightness
        tile = Image.fromarray(lit.clip(0, 255).astype(np.uint8))
        if explanation.graph is not None:
            outline(tile, weights, explanation.boxes)
        tiles.append((word, tile))
    columns = min(COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    label = LABEL if explanation.intensities is None else LABEL + BAR
    step_x, step_y = TILE + GAP, TILE + label + GAP
    sheet = Image.new("RGB", (columns * step_x + GAP, rows * step_y + GAP), BACKGROUND)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for index, (word, tile) in enumerate(tiles):
        left, top = GAP + index % columns * step_x, GAP + index // columns * step_y
        pen.text((left + 2, top), word, fill=INK, font=font)
        if index and explanation.gates is not None:  # a bar as long as the gate is open
            pen.rectangle(
                (left, top + label - 4, left + TILE * explanation.gates[index - 1], top + label - 1), fill=GATE
            )
        if explanation.intensities is not None:
            draw_intensity(pen, (left, top), explanation.intensities, index - 1 if index else None)
        sheet.paste(tile.resize((TILE, TILE), Image.Resampling.BICUBIC), (left, top + label))
    return sheet


def draw_intensity(
    pen: ImageDraw.ImageDraw, corner: tuple[int, int], intensities: NDArray[Any], word: int | None
) -> None:
    """Draw the bar of the intensity of a word, from 0, and its number; for no word, the scale of all bars.

    Args:
        pen: draws on the sheet.
        corner: left and top of the tile with its label.
        intensities: `[W]`.
        word: number of the word.
    """
    left, top = corner
    low, high = scale_of(intensities)
    font, bar = ImageFont.load_default(size=14), (top + LABEL - 4, top + LABEL - 1)
    zero = left - (TILE - 1) * low / (high - low)
    if word is None:
        pen.text((left + 2, top), f"intensity {low:g} to {high:g}", fill=INK, font=font)
        pen.rectangle((left, bar[0], left + TILE - 1, bar[1]), fill=AXIS)
        for place in (left, zero, left + TILE - 1):
            pen.line((place, bar[0] - 3, place, bar[1]), fill=INK)
        return
    end = left + (TILE - 1) * (float(intensities[word]) - low) / (high - low)
    pen.rectangle((left, bar[0], left + TILE - 1, bar[1]), fill=AXIS)
    pen.rectangle((min(zero, end), bar[0], max(zero, end), bar[1]), fill=INTENSITY)
    number = f"{intensities[word]:.3g}"
    pen.text((left + TILE - 2 - pen.textlength(number, font=font), top + 2), number, fill=INK, font=font)


def scale_of(values: NDArray[Any]) -> tuple[float, float]:
    """Return the ends of a scale that holds 0 and all values, each 0, or 1, 2 or 5 times a power of ten."""
    high, low = float(values.max(initial=0.0)), float(values.min(initial=0.0))
    return -next_round(-low), next_round(max(high, 1e-9))


def next_round(value: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below a value; 0 for 0."""
    if value <= 0:
        return 0.0
    power = 10.0 ** np.floor(np.log10(value))
    return next(float(step * power) for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def outline(tile: Image.Image, weights: NDArray[Any], boxes: NDArray[Any]) -> None:
    """Outline the boxes with the largest weights, the wider the larger the weight.

    Args:
        tile: the image, which is drawn on.
        weights: `[R]`.
        boxes: `[R, 4]`, normalised xyxy.
    """
    pen, scale = ImageDraw.Draw(tile), np.array([tile.width - 1, tile.height - 1] * 2)
    for index in np.argsort(-weights, kind="stable")[:OUTLINED]:
        pen.rectangle(tuple(boxes[index] * scale), outline=GATE, width=1 + round(4 * float(weights[index])))


def paint(weights: NDArray[Any], boxes: NDArray[Any], size: tuple[int, int]) -> NDArray[np.float32]:
    """Spread the weights of regions over the areas of their boxes.

    Args:
        weights: `[R]`.
        boxes: `[R, 4]`, normalised xyxy.
        size: height and width in pixels.

    Returns:
        A map `[H, W]` between 0 and 1, blurred by half the width of a region.
    """
    height, width = size
    canvas = np.zeros(size, dtype=np.float32)
    corners = (boxes * np.array([width, height, width, height])).round().astype(int)
    for weight, (left, top, right, bottom) in zip(weights, corners, strict=True):
        area = max(1, (right - left) * (bottom - top))
        canvas[top:bottom, left:right] += weight / area
    canvas /= max(float(canvas.max()), 1e-12)
    radius = float(np.median(corners[:, 2] - corners[:, 0])) / 2
    smooth = Image.fromarray((canvas * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(radius))
    painted = np.asarray(smooth, dtype=np.float32)
    return painted / max(float(painted.max()), 1e-12)
