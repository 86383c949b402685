"""Encodings of text files: by the byte order mark, as UTF-8, or guessed among those of spreadsheets and editors."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable
from encodings.aliases import aliases

from hf_captioners.names import did_you_mean

UTF_8 = "utf-8"
# The longer mark first: that of UTF-32 begins with that of UTF-16.
MARKS = {
    codecs.BOM_UTF8: UTF_8,
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# Encodings of one byte per character that programs for European languages write: Windows (West, Central Europe,
# Turkey), older Macs, DOS. That of Windows in the West has all letters of Latin-1 in the same places.
CANDIDATES = ("cp1252", "cp1250", "cp1254", "mac_roman", "cp850")
COMMON = frozenset("äöüßÄÖÜéèêëàâçîïôûùœæñáíóúåøØÅÆÉÈÀÇÑÁÍÓÚãõìòąćęłńśźżŁŚŻčďěňřšťůýžČŘŠŽőűıİşŞğĞ°“”„‘’–—…€«»\xa0")
MIN_COMMON = 0.8  # share of characters beyond ASCII that are among the common ones
MAX_BEYOND_ASCII = 0.4  # share of letters beyond ASCII
NULLS_BY_WIDTH = 4  # characters of a first line that show an encoding of two bytes without a mark


def encoding_of_mark(start: bytes) -> tuple[str, int] | None:
    """Return the encoding that a byte order mark states, and the length of the mark; None if there is no mark."""
    return next(((name, len(mark)) for mark, name in MARKS.items() if start.startswith(mark)), None)


def encoding_without_mark(start: bytes) -> str | None:
    """Return UTF-16 if every second byte of the beginning is 0, as in English text; None otherwise."""
    if len(start) < 2 * NULLS_BY_WIDTH or 0 not in start:
        return None
    pair = start[: 2 * NULLS_BY_WIDTH]
    if not any(pair[1::2]) and all(pair[::2]):
        return "utf-16-le"
    if not any(pair[::2]) and all(pair[1::2]):
        return "utf-16-be"
    return None


def is_wide(encoding: str) -> bool:
    """Return True if an encoding has several bytes for the end of a line."""
    return len("\n".encode(encoding)) > 1


def require_encoding(name: str) -> str:
    """Return the name of an encoding as Python spells it.

    Raises:
        ValueError: there is none. The message has the nearest one.
    """
    try:
        info = codecs.lookup(str(name))
        text = getattr(info, "_is_text_encoding", True)
    except (LookupError, ValueError):
        text = False
    if not text:
        hint = did_you_mean(str(name), sorted({*aliases, *aliases.values()}))
        raise ValueError(
            f"`encoding` is {name!r}, expected one of Python's encodings, such as utf-8, cp1252 (Western Europe), "
            f"cp1250, cp1251 (Cyrillic), gb18030 (Chinese) or shift_jis.{hint}"
        )
    return info.name


def decoded(content: bytes) -> tuple[str, str | None]:
    """Decode a whole file; return its text, and the encoding if it was guessed.

    Raises:
        UnicodeDecodeError: it is not in the encoding of its mark, nor UTF-8, and a trial finds no other.
    """
    name, length = encoding_of_mark(content) or (UTF_8, 0)
    try:
        return content[length:].decode(name), None
    except UnicodeDecodeError:
        guess = None if length else guessed_encoding(content.splitlines())
        if guess is None:
            raise
        return content.decode(guess, "replace"), guess


def sample_beyond_ascii(text: str) -> str:
    """Return some words of a text around its first non-ASCII letter, to show the result of a guessed encoding."""
    text = " ".join(text.split())
    place = next((place for place, letter in enumerate(text) if not letter.isascii()), 0)
    return text[max(0, place - 30) : place + 30]


def guessed_encoding(lines: Iterable[bytes]) -> str | None:
    """Guess the encoding of text that is not UTF-8, by trying common ones.

    Args:
        lines: all lines of the text.

    Returns:
        One of `CANDIDATES`. None: some lines are UTF-8 beyond ASCII, so that the others are damaged; or the letters
        of no candidate are plausible.
    """
    beyond: Counter[int] = Counter()
    letters = 0
    for line in lines:
        if line.isascii():
            letters += sum(map(line.count, b"etaoinsr"))  # a few frequent letters are enough to compare with
            continue
        try:
            line.decode(UTF_8)
        except UnicodeDecodeError:
            counts = Counter(line)
            beyond.update({byte: count for byte, count in counts.items() if byte >= 0x80})
            letters += sum(count for byte, count in counts.items() if byte < 0x80 and chr(byte).isalpha())
        else:
            return None
    total = beyond.total()
    if total > MAX_BEYOND_ASCII * (letters + total):
        return None
    scores = {
        name: sum(count for byte, count in beyond.items() if bytes([byte]).decode(name, "replace") in COMMON)
        for name in CANDIDATES
    }
    best = max(CANDIDATES, key=lambda name: scores[name])  # the first of equal ones
    return best if scores[best] >= MIN_COMMON * total else None
