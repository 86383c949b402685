"""The Snowball English stemmer ("Porter 2") in the version of METEOR 1.5.

Newer releases of Snowball have different rules (evening, international, ...) and would give different scores.

Source: https://snowballstem.org/algorithms/english/stemmer.html, up to version 2.2.
"""

import re
from functools import lru_cache

_EXCEPTIONS = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
} | {word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")}
_DONE_AFTER_PLURALS = frozenset(
    ["inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"],
)
_VOWELS = "aeiouy"
_CONSONANT_Y = re.compile(f"^y|(?<=[{_VOWELS}])y")
_REGION = re.compile(f"[{_VOWELS}][^{_VOWELS}]")
_SPECIAL_REGION = re.compile("gener|commun|arsen")
_HAS_VOWEL = re.compile(f"[{_VOWELS}]").search
_SHORT_END = re.compile(f"(?:[^{_VOWELS}][{_VOWELS}][^{_VOWELS}wxY]|^[{_VOWELS}][^{_VOWELS}])$").search
_DOUBLE_END = re.compile("(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)$").search

_STEP_2 = {
    "ational": "ate",
    "fulness": "ful",
    "iveness": "ive",
    "ization": "ize",
    "ousness": "ous",
    "biliti": "ble",
    "lessli": "less",
    "tional": "tion",
    "alism": "al",
    "aliti": "al",
    "ation": "ate",
    "entli": "ent",
    "fulli": "ful",
    "iviti": "ive",
    "ousli": "ous",
    "abli": "able",
    "alli": "al",
    "anci": "ance",
    "ator": "ate",
    "enci": "ence",
    "izer": "ize",
    "bli": "ble",
}
_STEP_3 = {
    "ational": "ate",
    "tional": "tion",
    "alize": "al",
    "icate": "ic",
    "iciti": "ic",
    "ical": "ic",
    "ness": "",
    "ful": "",
}
_STEP_4 = (
    *("ement", "able", "ance", "ence", "ible", "ment", "ant", "ate", "ent", "ion"),
    *("ism", "iti", "ive", "ize", "ous", "al", "er", "ic"),
)


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the stem of a lower-case English word."""
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    if len(word) <= 2:
        return word
    word = _CONSONANT_Y.sub("Y", word.removeprefix("'"))
    r1, r2 = _regions(word)
    for ending in ("'s'", "'s", "'"):
        if word.endswith(ending):
            word = word.removesuffix(ending)
            break
    word = _plural(word)
    if word in _DONE_AFTER_PLURALS:
        return word
    word = _past_and_gerund(word, r1)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    word = _step_2(word, r1)
    word = _step_3(word, r1, r2)
    word = _step_4(word, r2)
    return _step_5(word, r1, r2).replace("Y", "y")


def _regions(word: str) -> tuple[int, int]:
    """Return the starts of the regions R1 and R2 of a word: after the first consonant that follows a vowel, twice."""
    special = _SPECIAL_REGION.match(word) or _REGION.search(word)
    r1 = special.end() if special else len(word)
    second = _REGION.search(word, r1)
    return r1, second.end() if second else len(word)


def _plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _HAS_VOWEL(word[:-2]):
        return word[:-1]
    return word


def _past_and_gerund(word: str, r1: int) -> str:
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            return word.removesuffix(ending) + "ee" if len(word) - len(ending) >= r1 else word
    for ending in ("ingly", "edly", "ing", "ed"):
        if word.endswith(ending):
            rest = word.removesuffix(ending)
            return _restore(rest, r1) if _HAS_VOWEL(rest) else word
    return word


def _restore(word: str, r1: int) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _DOUBLE_END(word):
        return word[:-1]
    return word + "e" if r1 >= len(word) and _SHORT_END(word) else word


def _step_2(word: str, r1: int) -> str:
    for ending, replacement in _STEP_2.items():
        if word.endswith(ending):
            return word.removesuffix(ending) + replacement if len(word) - len(ending) >= r1 else word
    if word.endswith("ogi"):
        return word[:-1] if len(word) - 3 >= r1 and word[-4:-3] == "l" else word
    if word.endswith("li") and len(word) - 2 >= r1 and word[-3:-2] and word[-3] in "cdeghkmnrt":
        return word[:-2]
    return word


def _step_3(word: str, r1: int, r2: int) -> str:
    for ending, replacement in _STEP_3.items():
        if word.endswith(ending):
            return word.removesuffix(ending) + replacement if len(word) - len(ending) >= r1 else word
    return word[:-5] if word.endswith("ative") and len(word) - 5 >= r2 else word


def _step_4(word: str, r2: int) -> str:
    for ending in _STEP_4:
        if word.endswith(ending):
            start = len(word) - len(ending)
            wrong = start < r2 or (ending == "ion" and word[start - 1 : start] not in ("s", "t"))
            return word if wrong else word[:start]
    return word


def _step_5(word: str, r1: int, r2: int) -> str:
    last = len(word) - 1
    if word.endswith("e") and (last >= r2 or (last >= r1 and not _SHORT_END(word[:-1]))):
        return word[:-1]
    return word[:-1] if word.endswith("ll") and last >= r2 else word
