"""The PTB tokenizer of the COCO caption evaluation, without Java."""

import re
from collections.abc import Iterable
from functools import lru_cache

from .ptb_characters import ANY_DIGIT, shape
from .ptb_lexer import ABBREVIATION, BLANKS, NUMBERED_ABBREVIATIONS, SPLIT_WORDS, lex

DROPPED_TOKENS = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
"""Tokens that the COCO evaluation drops. It keeps brackets, because it compares with their upper-case names."""

_MAX_CACHED = 1 << 18  # pieces; an English caption corpus has about 50,000
_LINE_BREAKS = re.compile("[\n\r\v\f\u2028\u2029]")
_PLAIN_WORD = re.compile("([A-Za-z]{2,})([.,]?)")
# Pieces that may form one token with their neighbours or depend on them: numbers, tags, blanks other than the space,
# `K. The ...` and `fig. 5`.
_CONTEXTUAL = re.compile(
    rf"[<0-9{ANY_DIGIT}]|^[{BLANKS}]|[^a-z].*[a-z]\.$|^(?:[a-z]|{NUMBERED_ABBREVIATIONS})\.$", re.IGNORECASE
)
_ASK_THE_NEIGHBOURS = "\0"  # replaces the tokens of such a piece; the lexer deletes this character
_END = "\n"  # separates the captions of a batch


def _lex_and_drop(text: str) -> str:
    line = _LINE_BREAKS.sub(" ", text) + "\n"
    return " ".join(token for token in map(str.lower, lex(line)) if token not in DROPPED_TOKENS)


def _tokenize_piece(piece: str) -> str:
    if (plain := _PLAIN_WORD.fullmatch(piece)) and not (plain[2] == "." and ABBREVIATION.fullmatch(piece)):
        word = plain[1].lower()
        if word not in SPLIT_WORDS and not (plain[2] == "." and _CONTEXTUAL.search(piece)):
            return word
    return _ASK_THE_NEIGHBOURS if _CONTEXTUAL.search(shape(piece)) else _lex_and_drop(piece)


class _Pieces(dict[str, str]):
    """Cache that maps a piece of text between two blanks to its tokens."""

    def __missing__(self, piece: str) -> str:
        if len(self) >= _MAX_CACHED:
            self.clear()
            self[_END] = _END
        tokens = self[piece] = _tokenize_piece(piece)
        return tokens


class PTBTokenizer:
    """Tokenizer with the output of pycocoevalcap's `PTBTokenizer`: Stanford rules, lower case, no punctuation.

    The tokens equal those of the Java program, except where these depend on the *next* caption of the batch. Here a
    caption is always tokenised as if a line with a lower-case first word followed. Line breaks inside a caption are
    blanks; in the Java program they shift all later captions of the batch by one.

    The tokens of pieces between blanks are cached, so that most captions need only look-ups.

    Examples:
        >>> from hf_captioners.metrics import PTBTokenizer
        >>> tokenize = PTBTokenizer()
        >>> tokenize(["A man (left) can't ride.", "Two dogs!"])
        ["a man -lrb- left -rrb- ca n't ride", 'two dogs']
        >>> tokenize.tokenize("A dog, a cat.")
        'a dog a cat'
    """

    def __init__(self) -> None:
        self._pieces = _Pieces({_END: _END})
        self._whole = lru_cache(maxsize=1 << 14)(_lex_and_drop)

    def tokenize(self, caption: str) -> str:
        """Return the tokens of one caption, joined by single blanks.

        A token may contain U+00A0: `1 1/2` and telephone numbers are one token. Every string can be tokenised.
        """
        return self([caption])[0]

    def __call__(self, captions: Iterable[str]) -> list[str]:
        """Return the tokens of each caption, joined by single blanks.

        Raises:
            TypeError: `captions` is one string.
        """
        if isinstance(captions, str):
            raise TypeError(
                f"`captions` is the string {captions!r}, expected a list of strings. For one caption call tokenize."
            )
        captions = list(captions)
        if not captions:
            return []
        text = _END.join(captions)
        if text.count(_END) >= len(captions):
            text = _END.join(caption.replace(_END, " ") for caption in captions)
        pieces = text.replace(_END, f" {_END} ").split(" ")
        rows = " ".join(filter(None, map(self._pieces.__getitem__, pieces))).split(_END)
        return [
            self._whole(caption) if _ASK_THE_NEIGHBOURS in row else row.strip(" ")
            for caption, row in zip(captions, rows, strict=True)
        ]
