"""Captions of scenes: five different sentences per scene."""

from __future__ import annotations

import random

from .scene_world import INVERSE, Group, Scene

NUMBERS = {2: ("two", "two", "a pair of"), 3: ("three",), 4: ("four",)}
SIZE_WORDS = {"small": ("small", "small", "little", "tiny"), "large": ("large", "large", "big", "huge")}
SHAPE_WORDS = {
    "circle": ("circle", "circle", "disc"),
    "square": ("square", "square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "cross": ("cross", "cross", "plus sign"),
    "ring": ("ring", "ring", "hoop"),
}
PLURALS = {"cross": "crosses", "box": "boxes"}
RELATION_WORDS = {
    "left of": ("to the left of", "to the left of", "left of", "on the left side of"),
    "right of": ("to the right of", "to the right of", "right of", "on the right side of"),
    "above": ("above", "above", "over", "on top of"),
    "below": ("below", "below", "under", "beneath"),
    "inside": ("inside", "inside", "in", "within"),
    "around": ("around", "around", "surrounding"),
}
PLACE_WORDS = {
    "left": ("on the left", "on the left side", "at the left edge"),
    "right": ("on the right", "on the right side", "at the right edge"),
    "top": ("at the top", "in the upper part", "near the top"),
    "bottom": ("at the bottom", "in the lower part", "near the bottom"),
    "middle": ("in the middle", "in the center", "at the center"),
}
BACKGROUND_WORDS = ("on a {} background", "against a {} background", "on {} ground")
# {a}: the objects, {is}: is or are, {where}: place, or relation and the other objects,
# {ground}: the background.
FRAMES = (
    "{a} {is} {where}",
    "there {is} {a} {where}",
    "{a} {where}",
    "{a} {where} {ground}",
    "{ground} {is} {a} {where}",
    "you can see {a} {where}",
    "a picture of {a} {where}",
    "{a} can be seen {where}",
    "{a} {is} shown {where} {ground}",
)


def caption_scene(scene: Scene, rng: random.Random, captions: int = 5) -> list[str]:
    """Return different captions of a scene.

    Every caption states counts, colours, shapes and positions; some state sizes and the background.

    Args:
        scene: the content of the image.
        rng: chooses words, order and details.
        captions: number of captions, at most `len(FRAMES)`.

    Returns:
        `captions` different sentences.
    """
    return [_sentence(frame, scene, rng) for frame in rng.sample(FRAMES, captions)]


def _sentence(frame: str, scene: Scene, rng: random.Random) -> str:
    subject, where = scene.groups[0], scene.where
    if len(scene.groups) == 1:
        place = rng.choice(PLACE_WORDS[where])
    else:
        second = scene.groups[1]
        if rng.random() < 0.5:  # inverted: A is left of B, so B is right of A
            subject, second, where = second, subject, INVERSE[where]
        place = f"{rng.choice(RELATION_WORDS[where])} {_things(second, rng)}"
    text = frame.format(
        a=_things(subject, rng),
        where=place,
        ground=rng.choice(BACKGROUND_WORDS).format(scene.background),
        **{"is": "is" if subject.count == 1 else "are"},
    )
    return f"{text[0].upper()}{text[1:]}."


def _things(group: Group, rng: random.Random) -> str:
    """Return the noun phrase of a group: a small red circle, two blue stars."""
    size = [rng.choice(SIZE_WORDS[group.size])] if rng.random() < 0.6 else []
    shape = rng.choice(SHAPE_WORDS[group.shape])
    words = [*size, group.colour, shape if group.count == 1 else PLURALS.get(shape, f"{shape}s")]
    if group.count == 1:
        return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])
    return " ".join([rng.choice(NUMBERS[group.count]), *words])
