"""Scenes of geometric objects: objects, relations and splits."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

COLOURS = ("red", "blue", "green", "yellow", "orange", "purple")
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
SIZES = ("small", "large")
BACKGROUNDS = ("white", "grey", "black")
PLACES = ("left", "right", "top", "bottom", "middle")
RELATIONS = ("left of", "right of", "above", "below", "inside")
INVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above", "inside": "around"}
HOLLOW_OR_WIDE = ("circle", "square", "ring")
MAX_COUNT = 4
MAX_COUNT_OF_TWO = 3
# Buckets of 100 that belong to each split.
SPLIT_SHARES = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}


@dataclass(frozen=True)
class Group:
    """Group of identical objects in a scene.

    Attributes:
        count: number of objects, from 1 to 4.
        size: one of `SIZES`.
        colour: one of `COLOURS`.
        shape: one of `SHAPES`.
    """

    count: int
    size: str
    colour: str
    shape: str


@dataclass(frozen=True)
class Scene:
    """Scene: one group of objects at a place, or two groups in a relation.

    Attributes:
        groups: one or two groups; two groups differ in colour or shape.
        where: one of `PLACES` for one group; one of `RELATIONS` of the first to the second group for two.
        background: one of `BACKGROUNDS`.
    """

    groups: tuple[Group, ...]
    where: str
    background: str

    def describe(self) -> str:
        """Return a canonical description of the scene."""
        things = [f"{group.count} {group.size} {group.colour} {group.shape}" for group in self.groups]
        return f"{' '.join([things[0], self.where, *things[1:]])} on {self.background}"

    def contents(self) -> str:
        """Return counts, colours and shapes, in any order, that every caption states.

        Splits depend on this and not on the whole description, so no caption of one split can occur in a different
        one.
        """
        return " + ".join(sorted(f"{group.count} {group.colour} {group.shape}" for group in self.groups))

    def split(self) -> str:
        """Return the split of the scene, the same for every random seed."""
        digest = hashlib.sha256(self.contents().encode()).digest()
        bucket = int.from_bytes(digest[:4], "big") % 100
        return next(split for split, share in SPLIT_SHARES.items() if bucket in share)


def sample_scene(rng: random.Random, split: str, groups: int | None = None) -> Scene:
    """Sample random scenes until one belongs to the split.

    Args:
        rng: the random generator.
        split: `train` (80 of 100 contents), `validation` or `test` (10 each).
        groups: 1 or 2 groups; None: one in three scenes has one group.
    """
    while True:
        two = groups == 2 if groups is not None else rng.randrange(3) > 0
        scene = _two_groups(rng) if two else _one_group(rng)
        if scene.split() == split:
            return scene


def _one_group(rng: random.Random) -> Scene:
    return Scene((_group(rng, MAX_COUNT),), rng.choice(PLACES), rng.choice(BACKGROUNDS))


def _two_groups(rng: random.Random) -> Scene:
    relation = rng.choice(RELATIONS)
    first, second = _group(rng, MAX_COUNT_OF_TWO), _group(rng, MAX_COUNT_OF_TWO)
    while (first.colour, first.shape) == (second.colour, second.shape):
        second = _group(rng, MAX_COUNT_OF_TWO)
    if relation == "inside":
        first = Group(1, "small", first.colour, first.shape)
        second = Group(1, "large", second.colour, rng.choice(HOLLOW_OR_WIDE))
        if first.colour == second.colour:
            second = Group(1, "large", _other(COLOURS, first.colour, rng), second.shape)
    return Scene((first, second), relation, rng.choice(BACKGROUNDS))


def _group(rng: random.Random, max_count: int) -> Group:
    return Group(rng.randint(1, max_count), rng.choice(SIZES), rng.choice(COLOURS), rng.choice(SHAPES))


def _other(values: tuple[str, ...], excluded: str, rng: random.Random) -> str:
    return rng.choice([value for value in values if value != excluded])
