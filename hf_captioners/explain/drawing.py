"""Attention drawn over an image, one tile a word, as in Figures 2 and 3 of Show, Attend and Tell."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from hf_captioners.word_values import word_means

TILE, LABEL, GAP, COLUMNS = 224, 26, 6, 5
BACKGROUND, INK = "white", "black"


def shown_image(pixel_values: Tensor, image_processor: Any) -> Image.Image:
    """What the captioner saw, `[3, H, W]`, as an image again: cut and scaled by its processor."""
    mean, std = (np.array(getattr(image_processor, name)) for name in ("image_mean", "image_std"))
    pixels = pixel_values.float().permute(1, 2, 0).numpy() * std + mean
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))


def heat_of_words(
    processor: Any, sequence: list[int], maps: Tensor, boxes: Tensor, size: tuple[int, int]
) -> tuple[list[str], list[np.ndarray]]:
    """Words of a caption, and where the captioner looked for each.

    Args:
        processor: decodes tokens.
        sequence: T tokens, the begin token first.
        maps: `[T - 1, R]`, weights of regions for every token behind the first.
        boxes: `[R, 4]`, normalised xyxy. size: height and width in pixels.

    Returns:
        The words, and for each a map `[H, W]`; a word of several tokens has the mean of theirs.
    """
    words, means = word_means(processor, sequence, maps.numpy())
    return words, [paint(mean, boxes.numpy(), size) for mean in means]


def paint(weights: np.ndarray, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Weights `[R]` spread over the areas of their boxes, smoothed over half a region, as `[H, W]` in 0..1."""
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


def draw_attention(image: Image.Image, words: list[str], heat: list[np.ndarray]) -> Image.Image:
    """The image, and one tile a word: bright where the captioner looked, dark elsewhere."""
    pixels = np.asarray(image, dtype=np.float32)
    tiles = [("", image)]
    for word, brightness in zip(words, heat, strict=True):
        light = 0.25 + 0.75 * brightness[..., None]
        lit = pixels * light + 255 * 0.25 * brightness[..., None]
        tiles.append((word, Image.fromarray(lit.clip(0, 255).astype(np.uint8))))
    columns = min(COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    step_x, step_y = TILE + GAP, TILE + LABEL + GAP
    sheet = Image.new("RGB", (columns * step_x + GAP, rows * step_y + GAP), BACKGROUND)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for index, (word, tile) in enumerate(tiles):
        left, top = GAP + index % columns * step_x, GAP + index // columns * step_y
        pen.text((left + 2, top), word, fill=INK, font=font)
        sheet.paste(tile.resize((TILE, TILE), Image.Resampling.BICUBIC), (left, top + LABEL))
    return sheet
