"""Figures of attention: the image and a panel per word, as in Figures 2 and 3 of Show, Attend and Tell."""

import textwrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from .explanation import Explanation
from .panels import confidence_colour, percent, strongest, top_of, veil, veil_colours, word_bars

# Inches.
PANEL, GAP, TITLE, BAR, HEAD, LEGEND, COLUMNS = 2.1, 0.16, 0.3, 0.17, 0.42, 0.95, 5
LEGEND_LINE = 0.17
HEAD_LINE, HEAD_CHARACTER = 0.21, 0.117  # a further line of the caption, and the width of its characters
OUTLINE, SMALL, NORMAL = "#00e5ff", 7, 10  # colour of outlines; sizes of text in points


class Drawing(Figure):
    """Figure whose text stays text in SVG files, so that it can be searched and read aloud."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """Write the figure as Matplotlib does, without a change of its settings for other figures."""
        with rc_context({"svg.fonttype": "none"}):
            super().savefig(*args, **kwargs)


def draw_attention(explanation: Explanation) -> Figure:
    """Draw the image and a panel for each word, darkened where the attention or relevance is small.

    All panels have one scale, which the colour bar shows with the weight of even attention. The strongest regions of a
    word are outlined, with their share in per cent. Gates and intensities of the word are bars below
    its panel; those of the first panel are the legend. A word with a confidence has its colour and number.

    Args:
        explanation: see `explain_caption`.

    Returns:
        A figure of Matplotlib; `savefig` writes PNG, SVG and PDF.

    Raises:
        ValueError: the captioner attends to no regions.
    """
    regions = explanation.maps.shape[1]
    if not regions:
        raise ValueError("This captioner attends to no regions, so there is no attention to draw over the image.")
    bars, count = word_bars(explanation), len(explanation.words) + 1
    columns = min(COLUMNS, count)
    tall = PANEL * explanation.image.height / explanation.image.width
    step_x, step_y = PANEL + GAP, TITLE + tall + BAR * len(bars) + GAP
    rows = -(-count // columns)
    legend = LEGEND + (0 if explanation.confidences is None else LEGEND_LINE)
    figure, head = headed_figure(explanation.caption, max(columns * step_x + GAP, 6.5), rows * step_y + legend)
    top = top_of(explanation.maps)
    for index in range(count):
        left, upper = GAP + index % columns * step_x, head + index // columns * step_y + TITLE
        axes = axes_at(figure, left, upper, PANEL, tall)
        title_word(axes, explanation, index - 1)
        draw_word(axes, explanation, index - 1, top)
        for line, (name, values, ends, colour) in enumerate(bars):
            bar = axes_at(figure, left, upper + tall + BAR * line + 0.04, PANEL, BAR - 0.04)
            draw_bar(bar, name, None if index == 0 else float(values[index - 1]), ends, colour)
    draw_scale(figure, top, regions, explanation.method, explanation.confidences is not None)
    return figure


def title_word(axes: Axes, explanation: Explanation, word: int) -> None:
    """Write a word, and its confidence if known, above its panel; -1 stands for the image panel."""
    text = explanation.words[word] if word >= 0 else "image"
    confidence = explanation.confidences[word] if explanation.confidences is not None and word >= 0 else None
    if confidence is None:
        axes.set_title(text, fontsize=NORMAL, loc="left", pad=3)
        return
    colour = {"boxstyle": "round,pad=0.15", "facecolor": confidence_colour(confidence), "linewidth": 0}
    axes.set_title(f"{text} {confidence:.2f}", fontsize=NORMAL, loc="left", pad=4, x=0.02, bbox=colour)


def headed_figure(caption: str, width: float, height: float) -> tuple[Figure, float]:
    """Make a figure with the caption at the top, wrapped to several lines if needed.

    Args:
        caption: the caption.
        width: of the figure in inches.
        height: in inches, of what is below the caption.

    Returns:
        The figure, and the height of its caption in inches.
    """
    lines = textwrap.wrap(caption, int((width - 2 * GAP) / HEAD_CHARACTER))
    head = HEAD + HEAD_LINE * max(len(lines) - 1, 0)
    figure = Drawing(figsize=(width, head + height))
    place = GAP / width, 1 - 0.13 / (head + height)
    figure.text(*place, "\n".join(lines), fontsize=12, weight="bold", va="top")
    return figure, head


def axes_at(figure: Figure, left: float, upper: float, width: float, height: float) -> Axes:
    """Add axes without ticks at a position in inches from the upper left corner."""
    full_width, full_height = figure.get_size_inches()
    place = (
        left / full_width,
        1 - (upper + height) / full_height,
        width / full_width,
        height / full_height,
    )
    axes = figure.add_axes(place)
    axes.set_axis_off()
    return axes


def draw_word(axes: Axes, explanation: Explanation, word: int, top: float) -> None:
    """Draw the image with the attention of a word over it; -1: the image alone."""
    image = explanation.image
    frame = (0, image.width, image.height, 0)  # pixels, y downwards
    axes.imshow(np.asarray(image), extent=frame, aspect="auto")
    if word < 0:
        return
    weights = explanation.maps[word]
    shade = veil(weights, explanation.boxes, (image.height, image.width), top)
    axes.imshow(shade, extent=frame, aspect="auto", interpolation="nearest")
    corners = explanation.boxes * np.array([image.width, image.height] * 2)
    for index in reversed(strongest(weights)):
        name = explanation.region_names[index] if explanation.region_names else ""
        outline(axes, corners[index], f"{percent(float(weights[index]))} {name}".rstrip())


def outline(axes: Axes, corners: NDArray[Any], text: str, colour: str = OUTLINE) -> None:
    """Outline a box, in pixels, with a text in its upper left or, in the right half, upper right corner."""
    left, top, right, bottom = map(float, corners)
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="black", linewidth=2.2))
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=1.2))
    if text:
        label = {"boxstyle": "square,pad=0.1", "facecolor": "black", "alpha": 0.65, "linewidth": 0}
        side = "right" if left + right > sum(axes.get_xlim()) else "left"  # a long name stays in the panel
        place = (right if side == "right" else left, top)
        axes.text(*place, text, color=colour, fontsize=SMALL, va="top", ha=side, bbox=label, clip_on=True)


def draw_bar(axes: Axes, name: str, value: float | None, ends: tuple[float, float], colour: str) -> None:
    """Draw a horizontal bar for a value and print the value; without a value, the name and scale only."""
    low, high = ends
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    if value is None:
        axes.text(0, 0.5, f"{name}, {low:g} to {high:g}", color=colour, fontsize=SMALL, va="center")
        return
    room = 0.82  # of the bar; the number is right of it
    zero, end = (room * (place - low) / (high - low) for place in (0.0, value))
    axes.add_patch(Rectangle((0, 0.2), room, 0.6, facecolor="#e6e6e6", linewidth=0))
    axes.add_patch(Rectangle((min(zero, end), 0.2), abs(end - zero), 0.6, facecolor=colour, linewidth=0, gid="value"))
    axes.text(1, 0.5, f"{value:.2f}" if high == 1 else f"{value:.3g}", fontsize=SMALL, va="center", ha="right")


def draw_scale(figure: Figure, top: float, regions: int, method: str = "attention", is_assessed: bool = False) -> None:
    """Draw the colour bar with its scale, and a legend for outlined regions and confidence colours."""
    legend = LEGEND + (LEGEND_LINE if is_assessed else 0)
    of_word, of_regions = {
        "attention": ("attention of", "attention to"),
        "relevance": ("relevance for", "relevance of"),
    }[method]
    height = float(figure.get_size_inches()[1])
    axes = axes_at(figure, GAP, height - legend + 0.12, 3.2, 0.16)
    axes.set_axis_on()
    axes.set_facecolor("#8c8c8c")  # as of an image of medium brightness
    bar = figure.colorbar(ScalarMappable(Normalize(0, top), veil_colours()), cax=axes, orientation="horizontal")
    bar.solids.set_edgecolor("face")  # type: ignore[union-attr]
    bar.set_ticks([0, top / 2, top], labels=["0 %", *(f"{percent(value)} %" for value in (top / 2, top))])
    axes.tick_params(labelsize=SMALL)
    even = 1 / regions
    axes.axvline(even, color=OUTLINE, linewidth=1.5)
    lines = [
        f"Weight of a region in the {of_word} a word. Line: even {of_regions} {regions} regions, {percent(even)} %.",
        "Outlined: the strongest regions of a word, with their weights in per cent.",
    ]
    if is_assessed:
        lines.append("Number of a word: its confidence; orange: doubtful, blue: sure.")
    for line, text in enumerate(lines):
        y = 1 - (height - legend + 0.62 + LEGEND_LINE * line) / height
        figure.text(GAP / float(figure.get_size_inches()[0]), y, text, fontsize=SMALL + 0.5, color="#404040")
