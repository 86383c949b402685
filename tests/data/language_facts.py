"""Facts that a German, Chinese or Arabic caption of a drawn scene states."""

import re
from collections.abc import Mapping
from functools import cache

from hf_captioners.data.scene_languages import CASES, LANGUAGES
from hf_captioners.data.scene_world import COLOURS, MAX_COUNT, SHAPES, SIZES, Group
from hf_captioners.demo.facts import Facts

_THING = "\0"  # stands for a group of objects


def facts_in(language: str, caption: str) -> Facts | None:
    """Parse the facts that a caption states, in any upper and lower case and any grammatical case.

    Args:
        language: a code of `LANGUAGES`.
        caption: the caption.

    Returns:
        The facts, those of the subject first; None where the caption does not have the form of one: no group of
        objects or more than two, words that do not agree, or no place or relation.
    """
    things, pattern = _groups(language)
    text = caption.lower().strip(" .。")
    groups = [things[match[0]] for match in pattern.finditer(text)]
    masked, words = pattern.sub(_THING, text), LANGUAGES[language]
    if len(groups) == 1:
        return _with_place(masked, groups, words.places)
    if len(groups) != 2:
        return None
    phrases = {phrase.format(_THING): name for name, some in words.relations.items() for phrase, _ in some}
    stated = [(masked.index(phrase), phrase) for phrase in phrases if phrase in masked]
    if not stated:
        return None
    place, phrase = max(stated, key=lambda one: len(one[1]))
    other = masked[: place + len(phrase)].count(_THING) - 1
    return Facts((groups[1 - other], groups[other]), phrases[phrase])


def _with_place(
    masked: str, groups: list[tuple[int, str, str]], places: Mapping[str, tuple[str, ...]]
) -> Facts | None:
    stated = {name for name, phrases in places.items() if any(phrase.lower() in masked for phrase in phrases)}
    return Facts(tuple(groups), stated.pop()) if len(stated) == 1 else None


@cache
def _groups(language: str) -> tuple[dict[str, tuple[int, str, str]], re.Pattern[str]]:
    """Return object groups by their wording in all grammatical cases, and a regular expression of the wordings."""
    things = {}
    for group in (
        Group(count, size, colour, shape)
        for count in range(1, MAX_COUNT + 1)
        for size in SIZES
        for colour in COLOURS
        for shape in SHAPES
    ):
        for case in CASES:
            for with_size in (False, True):
                text = LANGUAGES[language].things(group, with_size, case).lower()
                things[text] = (group.count, group.colour, group.shape)
    words = "|".join(sorted(map(re.escape, things), key=len, reverse=True))
    # Chinese has no blanks; elsewhere words begin and end at them.
    return things, re.compile(words if language == "zh" else rf"(?<!\w)(?:{words})(?!\w)")
