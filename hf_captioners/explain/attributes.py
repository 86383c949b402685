"""Drawings of attributes: the weight of each attribute for each word of a caption, and the gate."""

from PIL import Image, ImageDraw, ImageFont

from .drawing import BACKGROUND, GAP, GATE, INK
from .explanation import Explanation

CELL_WIDTH, CELL_HEIGHT, HEAD, GATE_WIDTH = 96, 26, 46, 160
SHADE = (46, 139, 87)  # of a weight of 1; 0 is white


def draw_attributes(explanation: Explanation) -> Image.Image:
    """Draw a table: a line for each word of the caption, a column for each attribute.

    A cell has the weight of the attribute, the darker the larger. The head has the attributes, and their probabilities
    where they were detected. Captioners with a gate between regions and attributes have a bar with the share of the
    regions in each line.

    Args:
        explanation: see `explain_caption`, of a captioner with attributes.

    Raises:
        ValueError: the captioner reads no attributes.
    """
    attributes, gates = explanation.attributes, explanation.gates
    if attributes is None:
        raise ValueError("This captioner reads no attributes, so there are no weights to draw.")
    font, small = ImageFont.load_default(size=16), ImageFont.load_default(size=13)
    first = 20 + round(max([font.getlength(word) for word in (*explanation.words, "word")]))
    offset = first + (GATE_WIDTH if gates is not None else 0)
    columns = max(1, len(attributes.words))
    size = (offset + columns * CELL_WIDTH + GAP, HEAD + len(explanation.words) * CELL_HEIGHT + GAP)
    sheet = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    if gates is not None:
        pen.text((first, 4), "gate: share of regions", fill=INK, font=small)
        for share in (0.0, 0.5, 1.0):
            pen.text((first + share * (GATE_WIDTH - 40), 24), f"{share:g}", fill=INK, font=small)
    if not attributes.words:
        pen.text((offset, 4), "no attribute", fill=INK, font=small)
    for column, word in enumerate(attributes.words):
        left = offset + column * CELL_WIDTH
        pen.text((left + 4, 4), shortened(word, font), fill=INK, font=font)
        if attributes.probabilities is not None:
            pen.text((left + 4, 26), f"p = {attributes.probabilities[column]:.2f}", fill=INK, font=small)
    for row, word in enumerate(explanation.words):
        top = HEAD + row * CELL_HEIGHT
        pen.text((8, top + 2), word, fill=INK, font=font)
        if gates is not None:
            pen.rectangle((first, top + 6, first + (GATE_WIDTH - 40) * gates[row], top + CELL_HEIGHT - 8), fill=GATE)
            pen.text((first + GATE_WIDTH - 36, top + 4), f"{gates[row]:.2f}", fill=INK, font=small)
        for column in range(len(attributes.words)):
            draw_cell(pen, (offset + column * CELL_WIDTH, top), float(attributes.weights[row, column]))
    return sheet


def draw_cell(pen: ImageDraw.ImageDraw, corner: tuple[int, int], weight: float) -> None:
    """Draw the cell of one weight between 0 and 1."""
    left, top = corner
    fill = tuple(round(255 + (shade - 255) * weight) for shade in SHADE)
    pen.rectangle((left, top, left + CELL_WIDTH - 3, top + CELL_HEIGHT - 3), fill=fill)
    ink = BACKGROUND if weight > 0.75 else INK  # readable on the shade
    pen.text((left + 4, top + 4), f"{weight:.2f}", fill=ink, font=ImageFont.load_default(size=13))


def shortened(word: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return a word, cut where it is wider than a column."""
    while len(word) > 1 and font.getlength(word) > CELL_WIDTH - 8:
        word = word[:-2] + "…"
    return word
