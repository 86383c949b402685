"""Facts that a caption of a drawn scene states (number, colour, shape, place, size), compared with the drawing.

`hf_captioners.demo.facts:score_scene_facts` is a metric for captions of the data set `scenes`:

    hf-captioners evaluate MODEL scenes --metrics cider_d hf_captioners.demo.facts:score_scene_facts
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hf_captioners.data.scene_captions import NUMBERS, PLACE_WORDS, PLURALS, RELATION_WORDS, SHAPE_WORDS, SIZE_WORDS
from hf_captioners.data.scene_world import COLOURS, INVERSE
from hf_captioners.metrics.registry import Score

FACTS = ("number", "colour", "shape", "place")
COUNTS = {word: count for count, words in NUMBERS.items() for word in words} | {"a": 1, "an": 1}
SHAPES = {word: (shape, 1) for shape, words in SHAPE_WORDS.items() for word in words}
SHAPES |= {PLURALS.get(word, f"{word}s"): (shape, 2) for word, (shape, _) in list(SHAPES.items())}
SIZES = {word: size for size, words in SIZE_WORDS.items() for word in words}
PLACES = {phrase: place for place, phrases in PLACE_WORDS.items() for phrase in phrases}
RELATIONS = {phrase: relation for relation, phrases in RELATION_WORDS.items() for phrase in phrases}


def one_of(words: list[str]) -> str:
    """Return a regular expression of any of these words, longer ones first."""
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


GROUP = re.compile(
    rf"\b(?P<number>{one_of(list(COUNTS))}) (?:(?P<size>{one_of(list(SIZES))}) )?(?P<colour>{one_of(list(COLOURS))}) "
    rf"(?P<shape>{one_of(list(SHAPES))})\b"
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
    agree = all((COUNTS[match["number"]] > 1) == (SHAPES[match["shape"]][1] > 1) for match in matches)
    if len(matches) not in (1, 2) or not agree:
        return None
    groups = tuple((COUNTS[match["number"]], match["colour"], SHAPES[match["shape"]][0]) for match in matches)
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
    return agreement(facts_of_caption(caption), facts_of_scene(description))


def agreement(stated: Facts | None, drawn: Facts) -> set[str]:
    """Return the `FACTS` that are stated as drawn; the place counts only if all groups are right."""
    if stated is None:
        return set()
    right = {
        name
        for column, name in enumerate(FACTS[:3])
        if sorted(str(group[column]) for group in stated.groups)
        == sorted(str(group[column]) for group in drawn.groups)
    }
    return right | {"place"} if drawn in (stated, stated.turned()) else right


def stated_sizes(captions: Iterable[str]) -> set[tuple[str, str, str]]:
    """Return (colour, shape, size) of all groups of objects whose size a caption states."""
    matches = [match for caption in captions for match in GROUP.finditer(" ".join(caption.lower().split()))]
    return {(match["colour"], SHAPES[match["shape"]][0], SIZES[match["size"]]) for match in matches if match["size"]}


def score_scene_facts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Iterator[Score]:
    """Score captions of drawn scenes by the facts that they state.

    The facts of a scene are those of its first reference. Sizes, which captions may leave out, are compared with those
    that any reference states.

    Args:
        predictions: one caption per image.
        references: captions of the data set `scenes` for each image.

    Yields:
        `scene_right`, the share of captions whose facts are all right, and the shares with a wrong number, colour,
        shape, place or size: `scene_wrong_number`, ... A caption without the form of one has all facts but the size
        wrong; so has every caption of an image whose first reference has not that form.
    """
    right, sizes = [], []
    for caption, texts in zip(predictions, references, strict=True):
        drawn = facts_of_caption(texts[0])
        right.append(agreement(facts_of_caption(caption), drawn) if drawn else set())
        known, stated = stated_sizes(texts), stated_sizes([caption])
        sizes.append(any((*group, other) in known for *group, size in stated for other in {*SIZES.values()} - {size}))
    yield from scores_of_facts(right)
    wrong = list(map(float, sizes))
    yield Score("scene_wrong_size", sum(wrong) / len(wrong), "share of captions with a wrong size", wrong)


def scores_of_facts(right: Sequence[set[str]]) -> Iterator[Score]:
    """Yield the share of captions whose facts are all right, and the shares with each wrong one.

    Args:
        right: the right facts of each caption, see `agreement`.
    """
    whole = [float(len(facts) == len(FACTS)) for facts in right]
    yield Score("scene_right", sum(whole) / len(whole), "share of captions with right facts only", whole)
    for name in FACTS:
        wrong = [float(name not in facts) for facts in right]
        yield Score(f"scene_wrong_{name}", sum(wrong) / len(wrong), f"share of captions with a wrong {name}", wrong)


def interval(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion (Wilson, 1927)."""
    z, share = 1.959964, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
