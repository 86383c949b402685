"""Drawings of attention: the image and one tile per word, as in Figures 2 and 3 of Show, Attend and Tell."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from .explanation import Explanation

TILE, LABEL, GAP, COLUMNS = 224, 26, 6, 5
BACKGROUND, INK, GATE = "white", "black", "seagreen"
OUTLINED = 3  # boxes that are outlined for each word, where regions overlap


def draw_attention(explanation: Explanation) -> Image.Image:
    """Draw the image and one tile per word, bright where the attention weight is high.

    Where the decoder has a gate, a bar above the tile shows how far it is open; where regions contain each other, the
    boxes with the largest weights are outlined.

    Args:
        explanation: see `explain_caption`.
    """
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
    step_x, step_y = TILE + GAP, TILE + LABEL + GAP
    sheet = Image.new("RGB", (columns * step_x + GAP, rows * step_y + GAP), BACKGROUND)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for index, (word, tile) in enumerate(tiles):
        left, top = GAP + index % columns * step_x, GAP + index // columns * step_y
        pen.text((left + 2, top), word, fill=INK, font=font)
        if index and explanation.gates is not None:  # a bar as long as the gate is open
            pen.rectangle(
                (left, top + LABEL - 4, left + TILE * explanation.gates[index - 1], top + LABEL - 1), fill=GATE
            )
        sheet.paste(tile.resize((TILE, TILE), Image.Resampling.BICUBIC), (left, top + LABEL))
    return sheet


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
