"""Facts that a caption of a drawn scene states (number, colour, shape, place), compared with the drawing."""

import math
import re
from dataclasses import dataclass

from hf_captioners.data.scene_captions import NUMBERS, PLACE_WORDS, PLURALS, RELATION_WORDS, SHAPE_WORDS, SIZE_WORDS
from hf_captioners.data.scene_world import COLOURS, INVERSE

FACTS = ("number", "colour", "shape", "place")
COUNTS = {word: count for count, words in NUMBERS.items() for word in words} | {"a": 1, "an": 1}
SHAPES = {word: (shape, 1) for shape, words in SHAPE_WORDS.items() for word in words}
SHAPES |= {PLURALS.get(word, f"{word}s"): (shape, 2) for word, (shape, _) in list(SHAPES.items())}
SIZES = sorted({word for words in SIZE_WORDS.values() for word in words})
PLACES = {phrase: place for place, phrases in PLACE_WORDS.items() for phrase in phrases}
RELATIONS = {phrase: relation for relation, phrases in RELATION_WORDS.items() for phrase in phrases}


def one_of(words: list[str]) -> str:
    """Return a regular expression of any of these words, longer ones first."""
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


GROUP = re.compile(
    rf"\b({one_of(list(COUNTS))}) (?:(?:{one_of(SIZES)}) )?({one_of(list(COLOURS))}) ({one_of(list(SHAPES))})\b"
)
DESCRIBED = re.compile(rf"(\d) \w+ ({one_of(list(COLOURS))}) (\w+)")


@dataclass(frozen=True)
class Facts:
    """Groups of objects in a scene, and their place or spatial relation.

    Args:
        groups: number, colour and shape of one or two groups of objects.
        where: the place of one group, or the relation of the first group to the second.
    """

    groups: tuple[tuple[int, str, str], ...]
    where: str

    def turned(self) -> "Facts":
        """Return the same facts with the groups exchanged: A left of B becomes B right of A."""
        inverse = INVERSE | {opposite: relation for relation, opposite in INVERSE.items()}
        return Facts(self.groups[::-1], inverse.get(self.where, self.where))


def facts_of_scene(description: str) -> Facts:
    """Parse the facts of a scene from its description, see `Scene.describe`."""
    matches = list(DESCRIBED.finditer(description))
    groups = tuple((int(match[1]), match[2], match[3]) for match in matches)
    after = description[matches[0].end() : matches[1].start() if len(matches) > 1 else description.rindex(" on ")]
    return Facts(groups, after.strip())


def facts_of_caption(caption: str) -> Facts | None:
    """Parse the facts that a caption states.

    Returns:
        The facts; None where the caption does not have the form of one: no group of objects or more than two, a number
        that does not agree with its noun, or no place.
    """
    text = " ".join(caption.lower().rstrip(".").split())
    matches = list(GROUP.finditer(text))
    if len(matches) not in (1, 2) or any((COUNTS[match[1]] > 1) != (SHAPES[match[3]][1] > 1) for match in matches):
        return None
    groups = tuple((COUNTS[match[1]], match[2], SHAPES[match[3]][0]) for match in matches)
    if len(matches) == 2:
        between = text[matches[0].end() : matches[1].start()].strip()
        phrases = [phrase for phrase in RELATIONS if f" {between}".endswith(f" {phrase}")]
        return Facts(groups, RELATIONS[max(phrases, key=len)]) if phrases else None
    places = {place for phrase, place in PLACES.items() if re.search(rf"\b{phrase}\b", text)}
    return Facts(groups, places.pop()) if len(places) == 1 else None


def right_facts(caption: str, description: str) -> set[str]:
    """Return the facts of `FACTS` that a caption states correctly; the place counts only if all groups are right.

    Args:
        caption: the caption.
        description: of the scene, see `Scene.describe`.
    """
    stated, drawn = facts_of_caption(caption), facts_of_scene(description)
    if stated is None:
        return set()
    right = {
        name
        for column, name in enumerate(FACTS[:3])
        if sorted(str(group[column]) for group in stated.groups)
        == sorted(str(group[column]) for group in drawn.groups)
    }
    return right | {"place"} if drawn in (stated, stated.turned()) else right


def interval(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion (Wilson, 1927)."""
    z, share = 1.959964, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
