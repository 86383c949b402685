"""Figures of region graphs: boxes with their parents, and attention to related regions."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from .drawing import GAP, NORMAL, PANEL, SMALL, TITLE, axes_at, headed_figure
from .explanation import Explanation, RegionGraph
from .panels import percent

# Regions whose attention is drawn: those that the caption attends to most, the first among those with a child and a
# parent.
QUERIES = 3
SHOWN = 6  # related regions that are drawn for each of them
QUERY_COLOUR = "#dc1e1e"
COLOURS = {"child": "#f0b400", "neighbour": "#285adc", "parent": "#009650"}
OTHER_COLOUR = "#783ca0"
DEPTHS = ("#dc1e1e", "#f08c00", "#285adc", "#783ca0")  # outlines of boxes with 0, 1, 2, 3 or more parents
DEPTH_NAMES = ("box without parent", "1 parent", "2 parents", "3 or more")
KEY = 0.6  # height of the legend in inches


def draw_graph(explanation: Explanation) -> Figure:
    """Draw the region graph and the attention of some regions by relation (Image Transformer, Figure 6).

    The first row has the image and the graph: every box, and a line from it to the smallest box that contains it. Each
    further row belongs to a region, red, and has a panel for each relation: the related regions with the largest
    weights, with their share of the attention by this relation in per cent.

    Args:
        explanation: see `explain_caption`, of a captioner with relations between regions.

    Returns:
        A figure of Matplotlib.

    Raises:
        ValueError: the captioner has no relations.
    """
    graph = explanation.graph
    if graph is None:
        raise ValueError("This captioner has no relations between regions, so there is no graph to draw.")
    queries, names = queries_of(explanation, graph), list(graph.maps)
    tall = PANEL * explanation.image.height / explanation.image.width
    step_x, step_y = PANEL + GAP, TITLE + tall + GAP
    columns = max(2, len(names))
    height = (1 + len(queries)) * step_y + KEY
    figure, head = headed_figure(explanation.caption, columns * step_x + GAP, height)
    size = figure.get_size_inches()

    def panel(row: int, column: int, title: str) -> Axes:
        """Add a panel with the image to the figure."""
        axes = axes_at(figure, GAP + column * step_x, head + row * step_y + TITLE, PANEL, tall)
        axes.set_title(title, fontsize=NORMAL, loc="left", pad=3)
        image = explanation.image
        axes.imshow(np.asarray(image), extent=(0, image.width, image.height, 0), aspect="auto")
        return axes

    panel(0, 0, "image")
    draw_boxes(panel(0, 1, "boxes and their parents"), explanation, graph)
    for row, query in enumerate(queries, start=1):
        for column, name in enumerate(names):
            title = f"region {query}: {name}"
            draw_related(panel(row, column, title), explanation, query, name, graph.maps[name])
    key = [Patch(color=colour, label=text) for colour, text in zip(DEPTHS, DEPTH_NAMES, strict=True)]
    related = [Patch(color=COLOURS.get(name, OTHER_COLOUR), label=name) for name in names]
    related = [Patch(edgecolor=QUERY_COLOUR, fill=False, linewidth=2, label="the region"), *related]
    options: dict[str, Any] = {"loc": "lower left", "fontsize": SMALL, "frameon": False, "borderaxespad": 0}
    figure.legend(handles=key, ncols=4, bbox_to_anchor=(GAP / size[0], 0.34 / size[1]), **options)
    figure.legend(handles=related, ncols=4, bbox_to_anchor=(GAP / size[0], 0.14 / size[1]), **options)
    note = "Numbers: share of the region's attention by this relation, in per cent."
    figure.text(GAP / size[0], 0.05 / size[1], note, fontsize=SMALL, color="#404040")
    return figure


def queries_of(explanation: Explanation, graph: RegionGraph) -> list[int]:
    """Return the regions whose attention is drawn."""
    order = np.argsort(-explanation.maps.sum(axis=0), kind="stable").tolist()
    parents = graph.is_parent
    between = [bool(parents[:, region].any() and parents[region].any()) for region in range(len(order))]
    first = sorted(order, key=lambda region: not between[region])[:1]  # the sort is stable
    return [*first, *(region for region in order if region not in first)][:QUERIES]


def draw_boxes(axes: Axes, explanation: Explanation, graph: RegionGraph) -> None:
    """Draw all boxes, each with a line to its smallest parent."""
    corners = in_pixels(explanation)
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=-1)
    for index, (left, top, right, bottom) in enumerate(corners):
        parents = np.flatnonzero(graph.is_parent[index])
        colour = DEPTHS[min(len(parents), len(DEPTHS) - 1)]
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=1.5))
        if len(parents):
            centres = [centre(corners[region]) for region in (index, parents[np.argmin(areas[parents])])]
            axes.plot(*zip(*centres, strict=True), color=COLOURS["parent"], linewidth=1)


def draw_related(axes: Axes, explanation: Explanation, query: int, relation: str, weights: NDArray[Any]) -> None:
    """Draw a region and the related regions that it attends to."""
    corners, row = in_pixels(explanation), weights[query]
    colour = COLOURS.get(relation, OTHER_COLOUR)
    shown = [int(index) for index in np.argsort(-row, kind="stable")[:SHOWN] if row[index] > 0 and index != query]
    for index in reversed(shown):  # the largest weight on top
        left, top, right, bottom = corners[index]
        share = float(row[index] / max(row.max(), 1e-12))
        fill, edge = to_rgba(colour, 0.08 + 0.35 * share), to_rgba(colour)
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, facecolor=fill, edgecolor=edge, linewidth=1))
        text: dict[str, Any] = {"color": "white", "fontsize": SMALL - 1, "va": "top", "clip_on": True}
        label = {"facecolor": colour, "pad": 0.6, "linewidth": 0}
        axes.text(left, top, percent(float(row[index])), bbox=label, **text)
    if not shown:
        paper = {"facecolor": "white", "alpha": 0.8, "pad": 2, "linewidth": 0}
        place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "bbox": paper}
        axes.text(0.5, 0.5, "none", fontsize=NORMAL, color=QUERY_COLOUR, **place)
    left, top, right, bottom = corners[query]
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=QUERY_COLOUR, linewidth=2))


def in_pixels(explanation: Explanation) -> NDArray[Any]:
    """Return the boxes `[R, 4]` in pixels of the image."""
    width, height = explanation.image.size
    return np.asarray(explanation.boxes * np.array([width, height, width, height]), dtype=float)


def centre(box: NDArray[Any]) -> tuple[float, float]:
    """Return the centre of a box."""
    return float(box[0] + box[2]) / 2, float(box[1] + box[3]) / 2
