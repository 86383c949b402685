"""Figures of attributes: each attribute's weight for each word of a caption, and the gate."""

import numpy as np
from matplotlib.figure import Figure

from .drawing import GAP, LEGEND, NORMAL, PANEL, SMALL, Drawing, axes_at, draw_bar
from .explanation import Explanation
from .panels import word_bars

CELL_WIDTH, CELL_HEIGHT, NAMES = 0.85, 0.26, 0.9  # inches
SHADES = "Greens"


def draw_attributes(explanation: Explanation) -> Figure:
    """Draw a table with a row for each word of the caption and a column for each attribute.

    A cell has the weight of the attribute in the attention of the word, the darker the larger; the colour bar has the
    scale. The head has the attributes, and their probabilities where they were detected. Captioners with a gate
    between regions and attributes have a bar with the share of the regions in each line.

    Args:
        explanation: see `explain_caption`, of a captioner with attributes.

    Returns:
        A figure of Matplotlib.

    Raises:
        ValueError: the captioner reads no attributes.
    """
    attributes = explanation.attributes
    if attributes is None:
        raise ValueError("This captioner reads no attributes, so there are no weights to draw.")
    bars, rows, columns = word_bars(explanation), len(explanation.words), max(1, len(attributes.words))
    first = GAP + max([len(word) for word in explanation.words], default=1) * 0.09 + 0.1
    offset = first + (PANEL + GAP) * len(bars)
    size = (max(offset + columns * CELL_WIDTH + GAP, 6.5), NAMES + rows * CELL_HEIGHT + LEGEND)
    figure = Drawing(figsize=size)
    figure.text(GAP / size[0], 1 - 0.28 / size[1], explanation.caption, fontsize=12, weight="bold")
    for row, word in enumerate(explanation.words):
        upper = NAMES + row * CELL_HEIGHT
        figure.text(GAP / size[0], 1 - (upper + CELL_HEIGHT / 2) / size[1], word, fontsize=NORMAL, va="center")
        for place, (name, values, ends, colour) in enumerate(bars):
            left = first + place * (PANEL + GAP)
            draw_bar(
                axes_at(figure, left, upper + 0.04, PANEL, CELL_HEIGHT - 0.08), name, float(values[row]), ends, colour
            )
            if row == 0:
                draw_bar(axes_at(figure, left, NAMES - 0.26, PANEL, 0.2), name, None, ends, colour)
    if not attributes.words:
        figure.text(offset / size[0], 1 - 0.6 / size[1], "no attribute", fontsize=NORMAL)
        return figure
    table = axes_at(figure, offset, NAMES, columns * CELL_WIDTH, rows * CELL_HEIGHT)
    weights = np.asarray(attributes.weights, dtype=float)
    cells = table.imshow(weights, aspect="auto", cmap=SHADES, vmin=0, vmax=1)
    for row, column in np.ndindex(*weights.shape):
        weight = float(weights[row, column])
        ink = "white" if weight > 0.6 else "black"  # readable on the shade
        table.text(column, row, f"{weight:.2f}", fontsize=SMALL, ha="center", va="center", color=ink)
    for column, word in enumerate(attributes.words):
        head = word if len(word) <= 11 else f"{word[:10]}…"
        table.text(column, -0.62 - 0.55 * (attributes.probabilities is not None), head, fontsize=NORMAL, ha="center")
        if attributes.probabilities is not None:
            text = f"p = {attributes.probabilities[column]:.2f}"
            table.text(column, -0.6, text, fontsize=SMALL, ha="center", color="#404040")
    scale = axes_at(figure, GAP, size[1] - LEGEND + 0.15, 3.2, 0.16)
    scale.set_axis_on()
    figure.colorbar(cells, cax=scale, orientation="horizontal").set_ticks([0, 0.5, 1])
    scale.tick_params(labelsize=SMALL)
    text = "Weight of an attribute in the attention of a word" + (
        "; p: its probability in the image." if attributes.probabilities is not None else "."
    )
    figure.text(GAP / size[0], 0.16 / size[1], text, fontsize=SMALL + 0.5, color="#404040")
    return figure
