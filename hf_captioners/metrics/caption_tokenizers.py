"""The tokenizers of the metrics, by name, and the check that a language has blanks between its words.

| name | tokens | for |
|---|---|---|
| `"ptb"` | those of the COCO caption evaluation | English, and others that separate words by blanks |
| `"none"` | what stands between blanks, unchanged | captions that are tokenised already |
| `"characters"` | characters as readers see them (grapheme clusters), without punctuation | Chinese, Japanese, Thai |
| `"unicode"` | words by the rules of Unicode (UAX #29), without punctuation | Korean, Arabic, Hindi, German |

Texts are composed (NFC) and, for the last two, converted to lower case before they are split.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from hf_captioners.names import did_you_mean

from .ptb_tokenizer import PTBTokenizer

CaptionTokenizer = Callable[[Iterable[str]], list[str]]
"""Returns the tokens of each caption, joined by single blanks."""
TOKENIZERS = ("ptb", "none", "characters", "unicode")
"""The names of the tokenizers."""

# Letters of scripts without blanks between words, and the largest mean length of words: words of Chinese and Japanese
# have about 2 letters, those of Thai, Lao, Burmese and Khmer about 5.
_UNSPACED = (
    (3, r"[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]"),
    (10, r"[\p{Script=Thai}\p{Script=Lao}\p{Script=Myanmar}\p{Script=Khmer}]"),
)
_CHECKED = 1000  # captions that are looked at


def require_tokenizer(name: str) -> None:
    """Raise a `ValueError` if `name` is not the name of a tokenizer of the metrics.

    Raises:
        ValueError: there is none of this name; the message has the nearest one.
    """
    if name not in TOKENIZERS:
        raise ValueError(
            f"`tokenizer` is {name!r}, expected one of {', '.join(map(repr, TOKENIZERS))}."
            f"{did_you_mean(str(name), TOKENIZERS)}"
        )


def caption_tokenizer(name: str) -> CaptionTokenizer:
    """Return the function of a tokenizer by its name; it maps captions to tokens joined by blanks.

    Raises:
        ValueError: there is none of this name.

    Examples:
        >>> from hf_captioners.metrics.caption_tokenizers import caption_tokenizer
        >>> caption_tokenizer("unicode")(["Ein Hund läuft, schnell!"]), caption_tokenizer("characters")(["狗在跑。"])
        (['ein hund läuft schnell'], ['狗 在 跑'])
    """
    require_tokenizer(name)
    splits: dict[str, CaptionTokenizer] = {"characters": _characters, "unicode": _unicode_words, "none": list}
    split: CaptionTokenizer = PTBTokenizer() if name == "ptb" else splits[name]

    def tokenize(captions: Iterable[str]) -> list[str]:
        return split([unicodedata.normalize("NFC", text) for text in captions])

    return tokenize


def require_blanks(captions: Sequence[str], tokenizer: str, argument: str = "tokenizer") -> None:
    """Check that captions have blanks between words, if the PTB tokenizer splits them.

    Args:
        captions: texts as they were written; the first 1,000 are looked at.
        tokenizer: name of the tokenizer.
        argument: name of the argument to change, for the message.

    Raises:
        ValueError: the words of most captions are not separated, so each would be one word.
    """
    if tokenizer != "ptb":
        return
    unspaced = [text for text in captions[:_CHECKED] if is_without_blanks(text)]
    if 2 * len(unspaced) > min(len(captions), _CHECKED):
        raise ValueError(
            f"`{argument}` is 'ptb', which splits words at blanks, and captions such as {unspaced[0][:40]!r} have "
            f"none: each would count as one word. Pass `{argument}=characters`; or separate words by blanks with a "
            f"segmenter and pass `{argument}=none`."
        )


def is_without_blanks(caption: str) -> bool:
    """Return True if the words of a caption are not separated by blanks, as usual in Chinese or Japanese.

    Examples:
        >>> from hf_captioners.metrics.caption_tokenizers import is_without_blanks
        >>> is_without_blanks("一只狗在海滩上奔跑。"), is_without_blanks("一只 狗 在 海滩 上 奔跑")
        (True, False)
    """
    if caption.isascii():
        return False
    for longest, letters in _unspaced_patterns():
        pieces = [len(runs) for piece in caption.split() if (runs := letters.findall(piece))]
        if sum(pieces) > max(longest * len(pieces), len(caption) / 2 - 1):
            return True
    return False


@cache
def _unspaced_patterns() -> list[tuple[int, Any]]:
    import regex

    return [(longest, regex.compile(pattern)) for longest, pattern in _UNSPACED]


@cache
def _pattern(expression: str) -> Any:
    import regex  # knows the boundaries of UAX #29; loaded where it is needed

    return regex.compile(expression, regex.V1)


def _characters(captions: Iterable[str]) -> list[str]:
    return [_joined(_pattern(r"\X").findall(text.lower())) for text in captions]


def _unicode_words(captions: Iterable[str]) -> list[str]:
    return [_joined(_pattern(r"(?w)\b").split(text.lower())) for text in captions]


def _joined(pieces: Iterable[str]) -> str:
    return " ".join(piece for piece in pieces if any(map(str.isalnum, piece)))
