"""Drawings of a graph of boxes: boxes and their parents, and the attention of regions to related ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .drawing import BACKGROUND, GAP, INK, LABEL, TILE
from .explanation import Explanation, RegionGraph

# Regions whose attention is drawn: those that the caption attends to most, the first among those with a child and a
# parent.
QUERIES = 3
SHOWN = 6  # related regions that are drawn for each of them
QUERY_COLOUR = (220, 30, 30)
COLOURS = {"child": (240, 180, 0), "neighbour": (40, 90, 220), "parent": (0, 150, 80)}
OTHER_COLOUR = (120, 60, 160)


def draw_graph(explanation: Explanation) -> Image.Image:
    """Draw the graph over the image, and what some regions attend to by each relation (Image Transformer, Figure 6).

    The first row has the image and the graph: every box, and a line from it to the smallest box that contains it. Each
    further row belongs to a region, red, and has a tile for each relation: the related regions with the largest
    weights, the more visible the larger the weight.

    Args:
        explanation: see `explain_caption`, of a captioner with relations between regions.

    Raises:
        ValueError: the captioner has no relations.
    """
    graph = explanation.graph
    if graph is None:
        raise ValueError("This captioner has no relations between regions, so there is no graph to draw.")
    order = np.argsort(-explanation.maps.sum(axis=0), kind="stable")
    between: list[bool] = [  # with a child and a parent
        bool(graph.is_parent[:, region].any() and graph.is_parent[region].any()) for region in range(len(order))
    ]
    queries = sorted(order.tolist(), key=lambda region: not between[region])[:1]  # the sort is stable
    queries = [*queries, *(region for region in order.tolist() if region not in queries)][:QUERIES]
    rows = [[("", explanation.image), ("boxes and their parents", draw_boxes(explanation, graph))]]
    for query in queries:
        rows.append([(name, draw_related(explanation, int(query), name, graph.maps[name])) for name in graph.maps])
    return lay_out(rows)


def draw_boxes(explanation: Explanation, graph: RegionGraph) -> Image.Image:
    """Draw every box on the image, and a line to the smallest of its parents."""
    drawing, corners = explanation.image.copy(), in_pixels(explanation)
    pen = ImageDraw.Draw(drawing)
    areas = np.prod(explanation.boxes[:, 2:] - explanation.boxes[:, :2], axis=-1)
    parents = graph.is_parent
    for index, box in enumerate(corners):
        own = np.flatnonzero(parents[index])
        pen.rectangle(tuple(box), outline=shade(len(own)), width=2)
        if len(own):
            parent = own[np.argmin(areas[own])]
            pen.line((*centre(box), *centre(corners[parent])), fill=COLOURS["parent"], width=2)
    return drawing


def draw_related(explanation: Explanation, query: int, relation: str, weights: NDArray[Any]) -> Image.Image:
    """Draw a region and those that it attends to by one relation."""
    corners, row = in_pixels(explanation), weights[query]
    layer = Image.new("RGBA", explanation.image.size)
    pen, colour = ImageDraw.Draw(layer), COLOURS.get(relation, OTHER_COLOUR)
    shown = [int(index) for index in np.argsort(-row, kind="stable")[:SHOWN] if row[index] > 0 and index != query]
    for index in reversed(shown):  # the largest weight on top
        share = float(row[index] / max(row.max(), 1e-12))
        pen.rectangle(tuple(corners[index]), fill=(*colour, int(20 + 90 * share)), outline=(*colour, 255), width=2)
    pen.rectangle(tuple(corners[query]), outline=(*QUERY_COLOUR, 255), width=4)
    return Image.alpha_composite(explanation.image.convert("RGBA"), layer).convert("RGB")


def in_pixels(explanation: Explanation) -> NDArray[Any]:
    """Return the boxes `[R, 4]` in pixels of the image."""
    width, height = explanation.image.size
    return (explanation.boxes * np.array([width - 1, height - 1, width - 1, height - 1])).round()


def centre(box: NDArray[Any]) -> tuple[float, float]:
    """Return the centre of a box."""
    return float(box[0] + box[2]) / 2, float(box[1] + box[3]) / 2


def shade(depth: int) -> tuple[int, int, int]:
    """Return the colour of a box with this number of parents."""
    return ((220, 30, 30), (240, 140, 0), (40, 90, 220), (120, 60, 160))[min(depth, 3)]


def lay_out(rows: list[list[tuple[str, Image.Image]]]) -> Image.Image:
    """Put rows of named tiles on one sheet."""
    columns = max(len(row) for row in rows)
    step_x, step_y = TILE + GAP, TILE + LABEL + GAP
    sheet = Image.new("RGB", (columns * step_x + GAP, len(rows) * step_y + GAP), BACKGROUND)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for row, tiles in enumerate(rows):
        for column, (name, tile) in enumerate(tiles):
            left, top = GAP + column * step_x, GAP + row * step_y
            pen.text((left + 2, top), name, fill=INK, font=font)
            sheet.paste(tile.resize((TILE, TILE), Image.Resampling.BICUBIC), (left, top + LABEL))
    return sheet
