"""The PTB tokenizer of the COCO caption evaluation, without Java."""

import re
from collections.abc import Iterable
from functools import lru_cache

from .ptb_characters import DIGITS
from .ptb_lexer import ABBREVIATION, NUMBERED_ABBREVIATIONS, lex

DROPPED_TOKENS = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
"""Tokens that the COCO evaluation leaves out; it means to drop brackets too, but compares their names with capitals."""

_MAX_CACHED = 1 << 18  # pieces; an English caption corpus has about 50,000
_LINE_BREAKS = re.compile("[\n\r\v\f\u2028\u2029]")
_PLAIN_WORD = re.compile("[A-Za-z]{2,}[.,]?")
_SPLIT_WORDS = frozenset(["cannot", "gonna", "gotta", "lemme", "gimme", "wanna"])
# What may be one token together with the next piece, or reads on into it: numbers, tags, `K. The ...`, `fig. 5`.
_CONTEXTUAL = re.compile(rf"[<{DIGITS}]|(?:^|[^a-z])(?:[a-z]|{NUMBERED_ABBREVIATIONS})\.$", re.IGNORECASE)


def _lex_and_drop(text: str) -> str:
    line = _LINE_BREAKS.sub(" ", text) + "\n"
    return " ".join(token for token in map(str.lower, lex(line)) if token not in DROPPED_TOKENS)


class _Pieces(dict[str, str | None]):
    """Tokens of what stands between two blanks; None where they depend on the neighbours."""

    def __missing__(self, piece: str) -> str | None:
        if len(self) >= _MAX_CACHED:
            self.clear()
        tokens = self[piece] = self._tokenize(piece)
        return tokens

    @staticmethod
    def _tokenize(piece: str) -> str | None:
        if _CONTEXTUAL.search(piece):
            return None
        if _PLAIN_WORD.fullmatch(piece) and not ABBREVIATION.fullmatch(piece):
            word = piece.rstrip(".,").lower()
            if word not in _SPLIT_WORDS:
                return word
        return _lex_and_drop(piece)


class PTBTokenizer:
    """Tokenises captions as `PTBTokenizer` of pycocoevalcap does: Stanford rules, lower case, punctuation dropped.

    Equal to the Java program but for what depends on the *next* caption of its batch: here a caption is always read
    as if a line followed that starts with a lower-case word. Line breaks inside a caption are blanks; in the Java
    program they shift all later captions of the batch by one.

    Pieces between blanks are remembered, so the cost of a caption is that of looking up its words.
    """

    def __init__(self) -> None:
        self._pieces = _Pieces()
        self._whole = lru_cache(maxsize=1 << 14)(_lex_and_drop)

    def tokenize(self, caption: str) -> str:
        """Return the tokens of one caption, joined by single blanks.

        A token may hold U+00A0: `1 1/2` and telephone numbers are one token. Never raises for a string.
        """
        pieces = self._pieces
        tokens = [pieces[piece] for piece in caption.split(" ")]
        if None in tokens:
            return self._whole(caption)
        return " ".join(filter(None, tokens))

    def __call__(self, captions: Iterable[str]) -> list[str]:
        """Return the tokens of each caption, joined by single blanks."""
        return [self.tokenize(caption) for caption in captions]
