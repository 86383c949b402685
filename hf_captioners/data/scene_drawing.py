"""Drawing of scenes with PIL."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import PIL.Image
import PIL.ImageDraw

from .scene_world import Group, Scene

PAINT = {
    "red": (214, 40, 40),
    "blue": (38, 84, 214),
    "green": (30, 150, 62),
    "yellow": (240, 214, 36),
    "orange": (244, 132, 26),
    "purple": (138, 54, 176),
    "white": (246, 246, 246),
    "grey": (150, 150, 150),
    "black": (16, 16, 16),
}
FINER = 4  # images are drawn at four times their size and downsampled, which smooths edges
TILT = 12  # largest rotation of shapes in degrees
DIAMETER = {"small": 0.165, "large": 0.30}  # of the image's side
OUTER = 0.56  # diameter of the object around a second one
Box = tuple[float, float, float, float]  # x1, y1, x2, y2 as shares of the side
PLACE_BOXES: dict[str, Box] = {
    "left": (0.02, 0.02, 0.45, 0.98),
    "right": (0.55, 0.02, 0.98, 0.98),
    "top": (0.02, 0.02, 0.98, 0.45),
    "bottom": (0.02, 0.55, 0.98, 0.98),
    "middle": (0.22, 0.22, 0.78, 0.78),
}
RELATION_BOXES = {
    "left of": (PLACE_BOXES["left"], PLACE_BOXES["right"]),
    "right of": (PLACE_BOXES["right"], PLACE_BOXES["left"]),
    "above": (PLACE_BOXES["top"], PLACE_BOXES["bottom"]),
    "below": (PLACE_BOXES["bottom"], PLACE_BOXES["top"]),
}


@dataclass(frozen=True)
class DrawnObject:
    """An object in a drawing: kind, colour and box.

    Attributes:
        group: index of its group in the scene.
        box: x1, y1, x2, y2 as shares of the image's side: the square that it is placed in.
        extent: the same of its drawn pixels, which depend on shape and angle.
    """

    group: int
    box: Box
    extent: Box


def draw_scene(scene: Scene, rng: random.Random, image_size: int) -> PIL.Image.Image:
    """Draw a scene and return the image.

    Args:
        scene: the scene to draw.
        rng: chooses positions, sizes, angles and shades that the scene does not fix.
        image_size: side of the square image in pixels.

    Returns:
        An RGB image `image_size` x `image_size`.
    """
    return draw_objects(scene, rng, image_size)[0]


def draw_objects(scene: Scene, rng: random.Random, image_size: int) -> tuple[PIL.Image.Image, list[DrawnObject]]:
    """Draw a scene; return the image and its objects."""
    side = image_size * FINER
    level = PAINT[scene.background][0] + rng.randint(-8, 8)
    image = PIL.Image.new("RGB", (side, side), (level, level, level))
    pen = PIL.ImageDraw.Draw(image)
    drawn = []
    for index, centre, diameter in _placed(scene, rng):
        extent = _draw_object(pen, scene.groups[index], centre, diameter, side, rng)
        (x, y), radius = centre, diameter / 2
        drawn.append(DrawnObject(index, (x - radius, y - radius, x + radius, y + radius), extent))
    return image.resize((image_size, image_size), PIL.Image.Resampling.BOX), drawn


def _placed(scene: Scene, rng: random.Random) -> Iterator[tuple[int, tuple[float, float], float]]:
    """Yield group, centre and diameter of each object, at random places."""
    if scene.where == "inside":
        x, y = (rng.uniform(0.3, 0.7) for _ in range(2))
        yield 1, (x, y), OUTER
        yield 0, (x, y), DIAMETER["small"]
        return
    boxes = RELATION_BOXES[scene.where] if len(scene.groups) == 2 else (PLACE_BOXES[scene.where],)
    for index, (group, box) in enumerate(zip(scene.groups, boxes, strict=True)):
        for left, top, right, bottom in _cells(box, group.count, rng):  # one object per cell, at a random position
            room = min(right - left, bottom - top)
            diameter = min(DIAMETER[group.size] * rng.uniform(0.94, 1.06), room)
            x = rng.uniform(left + diameter / 2, right - diameter / 2)
            y = rng.uniform(top + diameter / 2, bottom - diameter / 2)
            yield index, (x, y), diameter


def _cells(box: Box, count: int, rng: random.Random) -> list[Box]:
    """Return a box divided into `count` cells along its longer side; square boxes are divided into quarters."""
    x1, y1, x2, y2 = box
    width, height = x2 - x1, y2 - y1
    if count == 1:
        return [box]
    if width == height:
        columns, rows = 2, 2
    else:
        columns, rows = (count, 1) if width > height else (1, count)
    cells = [
        (
            x1 + width * column / columns,
            y1 + height * row / rows,
            x1 + width * (column + 1) / columns,
            y1 + height * (row + 1) / rows,
        )
        for row in range(rows)
        for column in range(columns)
    ]
    rng.shuffle(cells)
    return cells[:count]


def _draw_object(
    pen: PIL.ImageDraw.ImageDraw,
    group: Group,
    centre: tuple[float, float],
    diameter: float,
    side: int,
    rng: random.Random,
) -> Box:
    """Draw an object; return its box as shares of the image side."""
    fill = _shade(PAINT[group.colour], rng)
    x, y, radius = centre[0] * side, centre[1] * side, diameter * side / 2
    bounds = [round(x - radius), round(y - radius), round(x + radius), round(y + radius)]
    if group.shape == "circle":
        pen.ellipse(bounds, fill=fill)
    elif group.shape == "ring":
        pen.ellipse(bounds, outline=fill, width=max(2, round(radius * 0.38)))
    else:
        tilt = math.radians(rng.uniform(-TILT, TILT))
        points = [(math.cos(a + tilt) * r * radius, math.sin(a + tilt) * r * radius) for a, r in OUTLINES[group.shape]]
        corners = [(round(x + dx), round(y + dy)) for dx, dy in points]
        pen.polygon(corners, fill=fill)
        columns, rows = zip(*corners, strict=True)
        bounds = [min(columns), min(rows), max(columns), max(rows)]
    left, top, right, bottom = (min(max(edge, 0), side) for edge in (*bounds[:2], bounds[2] + 1, bounds[3] + 1))
    return left / side, top / side, right / side, bottom / side


def _outline(radii: list[float], first: float) -> list[tuple[float, float]]:
    """Return polygon corners at equal angles as (angle, share of the radius), starting at `first` degrees."""
    return [(math.radians(first + 360 * i / len(radii)), radius) for i, radius in enumerate(radii)]


def _cross_outline(arm: float) -> list[tuple[float, float]]:
    """Return the twelve corners of a cross with arms `2 * arm` wide, as (angle, share of the radius)."""
    quarter = [(1.0, -arm), (1.0, arm), (arm, arm)]
    corners = [_turned(x, y, turns) for turns in range(4) for x, y in quarter]
    return [(math.atan2(y, x), math.hypot(x, y)) for x, y in corners]


def _turned(x: float, y: float, quarters: int) -> tuple[float, float]:
    for _ in range(quarters):
        x, y = -y, x
    return x, y


# Corners of the shapes that are polygons: (angle, share of the radius).
OUTLINES = {
    "square": _outline([1.2] * 4, 45),
    "triangle": _outline([1.15] * 3, -90),
    "star": _outline([1.15, 0.5] * 5, -90),
    "cross": _cross_outline(0.33),
}


def _shade(colour: tuple[int, int, int], rng: random.Random) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, level + rng.randint(-12, 12))) for level in colour)
    return red, green, blue
