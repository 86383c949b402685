"""The text normalisation of METEOR 1.5 with `-norm`, followed by lower-casing.

Source: behaviour of the METEOR 1.5 program.
"""

import re
from functools import lru_cache

_LETTER = r"A-Za-z\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u017E\u0400-\u0527\uA640-\uA66E\uA67E-\uA697\u1D00-\u1D7F"
_WORD = rf"{_LETTER}0-9"
_SUBSTITUTIONS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"([^{_WORD} \t\n\r\f\v.'`,\-\u2018\u2019])", r" \1 "),
        (r"([^0-9]),([^0-9])", r"\1 , \2"),
        (r"([0-9]),([^0-9])", r"\1 , \2"),
        (r"([^0-9]),([0-9])", r"\1 , \2"),
        (r"[`\u2018\u2019]", "'"),
        (r"''|[\u201C\u201D]", ' " '),
        (r"\u2013", "-"),
        (r"--", "-"),
        (rf"([{_WORD}.])-([{_WORD}])", r"\1 \2"),
        (rf"([^{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        (rf"([^{_LETTER}0-9])'([{_LETTER}])", r"\1 ' \2"),
        (rf"([{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        (rf"([{_LETTER}])'([{_LETTER}])", r"\1 '\2"),
        (r"([0-9])'(s)", r"\1 '\2"),
    )
]
_STOPS = re.compile(r"\.{2,}")
_LETTERS = re.compile(f"[{_LETTER}]")
_BLANKS = re.compile(r"[ \t\n\r\f\v\u00A0\u2000-\u200A\u202F\u205F\u3000]+")
_PLAIN = re.compile(r"[A-Za-z0-9 ]*")
_PROTECTED_STOP = "\ufdd0"  # replaces each stop of a run while single stops are processed; not a Unicode character


class MeteorNormalizer:
    """Text normaliser of METEOR 1.5, with a cache of normalised captions.

    Args:
        prefixes: words that keep their full stop (`Mr`, `e.g`).
        number_prefixes: words that keep their full stop before a number (`No`).
    """

    def __init__(self, prefixes: frozenset[str], number_prefixes: frozenset[str]) -> None:
        self._prefixes = prefixes
        self._number_prefixes = number_prefixes
        self.normalize = lru_cache(maxsize=1 << 16)(self._normalize)
        """Return the normalised caption: lower-case tokens joined by single blanks."""

    def _normalize(self, text: str) -> str:
        if not _PLAIN.fullmatch(text):
            text = self._separate_stops(_separate_punctuation(f" {text} "))
        return _BLANKS.sub(" ", text).strip(" ").lower()

    def _separate_stops(self, text: str) -> str:
        words = [word for word in _BLANKS.split(text) if word]
        for place, word in enumerate(words):
            if word.endswith(".") and len(word) > 1:
                words[place] = self._stop(word[:-1], words[place + 1] if place + 1 < len(words) else "")
        return " ".join(words).replace(_PROTECTED_STOP, ".")

    def _stop(self, word: str, following: str) -> str:
        if "." in word and _LETTERS.search(word):
            return word.replace(".", "")
        if word in self._prefixes or "a" <= following[:1] <= "z":
            return f"{word}."
        if word in self._number_prefixes and following[:1].isdigit():
            return f"{word}."
        return f"{word} ."


def _separate_punctuation(text: str) -> str:
    first, *others = _SUBSTITUTIONS
    text = first[0].sub(first[1], text)
    text = _STOPS.sub(lambda run: f" {_PROTECTED_STOP * len(run[0])} ", text)
    for pattern, replacement in others:
        text = pattern.sub(replacement, text)
    return text
