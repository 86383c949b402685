"""Content words of a caption with the log-probabilities of their tokens."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from hf_captioners.metrics.ptb_tokenizer import PTBTokenizer
from hf_captioners.metrics.snowball_english import stem
from hf_captioners.metrics.support import is_content_word

MAX_MISSED = 4  # letters without a token of their own, as of one that is spelt by bytes


class CaptionWord(NamedTuple):
    """Content word of a caption, with token log-probabilities.

    Args:
        word: in lower case.
        stem: of the word.
        logprob: sum of the log-probabilities of its tokens; None of a word that the captioner did not write, as one of
            the prompt.
    """

    word: str
    stem: str
    logprob: float | None


def caption_words(record: Mapping[str, Any]) -> list[CaptionWord]:
    """Return the content words of a caption in order, with token log-probabilities.

    Args:
        record: `generated_text`, `tokens` (the text of each generated token, with the end token) and `token_scores`
            of an `image-captioning` pipeline with `return_token_scores=True`.
    """
    text = record["generated_text"]
    letters = _letter_logprobs(text, record["tokens"], record["token_scores"])
    lowered = text.lower()
    if len(lowered) != len(text):  # a letter whose small form has several characters
        lowered = text
    words, place = [], 0
    for token in content_words(text):
        start = lowered.find(token, place)
        if start < 0:
            continue
        place = start + len(token)
        written = {number: value for number, value in letters[start:place] if number is not None}
        is_whole = all(number is not None for number, _ in letters[start:place])
        words.append(CaptionWord(token, stem(token), sum(written.values()) if is_whole else None))
    return words


def content_words(text: str) -> list[str]:
    """Return the content words of a text in order, in lower case."""
    return [token for token in _tokenizer()([text])[0].split() if is_content_word(token)]


def stems_of(text: str) -> frozenset[str]:
    """Return the stems of a text's content words."""
    return frozenset(map(stem, content_words(text)))


@cache
def _tokenizer() -> PTBTokenizer:
    return PTBTokenizer()


def _letter_logprobs(text: str, tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[int | None, float]]:
    """Return for each character of a caption its token's index and log-probability; None without a token.

    Captions differ from their tokens in blanks, and lack special tokens. Tokens are looked for from the end, since a
    caption may begin with a prompt that has the same words.
    """
    tokens_of_letters: list[tuple[int | None, float]] = [(None, 0.0)] * len(text)
    end = len(text)
    for number in range(len(tokens) - 1, -1, -1):
        piece = tokens[number].strip()
        while end and text[end - 1].isspace():
            end -= 1
        if not piece or not end:
            continue
        start = text.rfind(piece, max(0, end - len(piece) - MAX_MISSED), end)
        if start < 0:  # a special token, or bytes of a letter
            continue
        if text[start + len(piece) : end].strip() and not _is_missed(text[start + len(piece) : end]):
            continue
        tokens_of_letters[start : start + len(piece)] = [(number, float(scores[number]))] * len(piece)
        end = start
    return tokens_of_letters


def _is_missed(text: str) -> bool:
    """Return whether a text has characters outside ASCII, for which tokens may have no text of their own."""
    return not text.isascii()
