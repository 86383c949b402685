"""Support: the share of the content words of a caption that people used for the same image, in English."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from .meteor_tables import MeteorTables, Synonyms
from .registry import Score
from .snowball_english import stem

_FUNCTION_WORDS: Mapping[str, str] = {
    "articles": "a an the",
    "prepositions": """about above across after against along alongside amid among amongst around as at atop before
        behind below beneath beside besides between beyond by despite down during except for from inside into in like
        near of off on onto out outside over past per through throughout to toward towards under underneath until up
        upon via with within without""",
    "pronouns": """i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself
        she her hers herself it its itself they them their theirs themselves this that these those there who whom whose
        which what someone somebody something anyone anybody anything everyone everybody everything nobody nothing none
        each other others another all any both either neither some every""",
    "auxiliaries": """am is are was were be been being do does did have has had having can ca could may might must
        shall should will wo would""",
    "conjunctions": """and or but nor so yet because if while when whereas where whether although though than since
        unless""",
}
FUNCTION_WORDS = frozenset(word for words in _FUNCTION_WORDS.values() for word in words.split())
"""English articles, prepositions, pronouns, auxiliaries and conjunctions; all other words are content words."""
MIN_ENGLISH_SHARE = 0.1  # of function words: 0.3 to 0.5 of the words of English captions
MIN_JUDGED_WORDS = 50  # of references whose language is judged
_ABOUT = "share of the content words of a caption whose stem occurs in a reference of its image"


class CaptionSupport(NamedTuple):
    """The content words of a caption, and which of them the references of its image support.

    Attributes:
        words: content words in their order, repeated ones too.
        supported: for each word True if a reference has a word of the same stem, or a synonym where these count.
    """

    words: list[str]
    supported: list[bool]

    @property
    def share(self) -> float:
        """Share of the content words that are supported; NaN if there is no content word."""
        return sum(self.supported) / len(self.supported) if self.supported else math.nan


def is_content_word(token: str) -> bool:
    """Return True if a token of a tokenised caption is a content word: letters only, and no function word.

    Examples:
        >>> from hf_captioners.metrics.support import is_content_word
        >>> [word for word in "a man 's two dogs -lrb- 12 -rrb- are on it".split() if is_content_word(word)]
        ['man', 'two', 'dogs']
    """
    return token.isalpha() and token not in FUNCTION_WORDS


class Vocabulary:
    """Stems and synonyms of the words in an image's references, against which words of a caption are tested.

    Args:
        references: tokenised references.
        synonyms: table of synsets. None: only words of the same stem support a word.
    """

    def __init__(self, references: Collection[str], synonyms: Synonyms | None = None) -> None:
        words = {token for text in references for token in text.split() if token.isalpha()}
        self.stems = frozenset(map(stem, words))
        self.synonyms = synonyms
        self.synsets = frozenset(
            number
            for word in (words if synonyms is not None else ())
            if is_content_word(word)
            for number in synonyms.find(word)  # type: ignore[union-attr]
        )

    def supports(self, word: str) -> bool:
        """Return True if the references have a word with the same stem as this word, or a synonym of it."""
        if stem(word) in self.stems:
            return True
        return self.synonyms is not None and not self.synsets.isdisjoint(self.synonyms.find(word))


def caption_support(caption: str, references: Collection[str], synonyms: Synonyms | None = None) -> CaptionSupport:
    """Find which content words of a caption the references of its image support.

    Args:
        caption: tokenised caption.
        references: tokenised references of the image.
        synonyms: table of synsets, see `MeteorTables.synonyms`. None: only words of the same stem support a word.

    Examples:
        >>> from hf_captioners.metrics import caption_support
        >>> caption_support("two dogs running on sand", ["a dog runs", "dogs on a beach"])
        CaptionSupport(words=['two', 'dogs', 'running', 'sand'], supported=[False, True, True, False])
    """
    vocabulary = Vocabulary(references, synonyms)
    words = [token for token in caption.split() if is_content_word(token)]
    return CaptionSupport(words, [vocabulary.supports(word) for word in words])


def people_support(references: Sequence[str], synonyms: Synonyms | None = None) -> list[float]:
    """Return the support of each reference by the other references of the image; NaN without content words.

    Args:
        references: tokenised references of an image, two or more; of fewer ones there is nothing to compare.
        synonyms: see `caption_support`.

    Examples:
        >>> from hf_captioners.metrics.support import people_support
        >>> people_support(["a dog runs", "two dogs", "the dog sits"])
        [0.5, 0.5, 0.5]
    """
    if len(references) < 2:
        return []
    other_texts = ([*references[:place], *references[place + 1 :]] for place in range(len(references)))
    return [caption_support(text, rest, synonyms).share for text, rest in zip(references, other_texts, strict=True)]


def require_english(captions: Sequence[str]) -> None:
    """Check that tokenised captions are English: at least a tenth of their words are English function words.

    Raises:
        ValueError: fewer of the words are English function words.
    """
    words = [token for text in captions for token in text.split() if token.isalpha()]
    english = sum(word in FUNCTION_WORDS for word in words)
    if len(words) >= MIN_JUDGED_WORDS and english < MIN_ENGLISH_SHARE * len(words):
        raise ValueError(
            f"`support` is for English, and {english:,} of the {len(words):,} words of the references are English "
            "articles, prepositions, pronouns, auxiliaries or conjunctions, expected a tenth at least. Leave "
            "`support` out of `metrics`."
        )


def score_support(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Score]:
    """Compute the metric `support`: the supported share of the content words, over all captions and of each.

    Examples:
        >>> from hf_captioners.metrics import score_support
        >>> scores = score_support(["a dog on sand", "a cat"], [["a dog runs", "the dogs"], ["two cats", "one cat"]])
        >>> [(score.name, score.corpus) for score in scores]
        [('support', 0.75), ('support_people', 0.625)]
    """
    return list(_scores("support", predictions, references, None, _ABOUT))


def score_support_synonyms(
    predictions: Sequence[str], references: Sequence[Sequence[str]], tables: MeteorTables | None = None
) -> list[Score]:
    """Compute the metric `support_synonyms`, whose words are also supported by synonyms (WordNet 3.0).

    Examples:
        >>> from hf_captioners.metrics import score_support_synonyms
        >>> score_support_synonyms(["a bike"], [["a bicycle", "a man"]])[0].corpus  # doctest: +SKIP
        1.0
    """
    synonyms = (tables or _installed_tables()).synonyms
    return list(_scores("support_synonyms", predictions, references, synonyms, f"{_ABOUT}, or a synonym of it"))


def _scores(
    name: str,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    synonyms: Synonyms | None,
    about: str,
) -> Iterator[Score]:
    require_english([text for texts in references for text in texts])
    pairs = zip(predictions, references, strict=True)
    shares = np.array([caption_support(caption, texts, synonyms).share for caption, texts in pairs])
    left_out = int(np.isnan(shares).sum())
    note = f"; {left_out:,} captions without content words left out" if left_out else ""
    # Captions without any content word, as of a captioner that writes nothing yet, have no share: 0 says so.
    corpus = 0.0 if left_out == len(shares) else _mean(shares)
    yield Score(name, corpus, f"{about}{note}", shares.tolist())
    people = [people_support(texts, synonyms) for texts in references]
    everyone = np.array([share for shares in people for share in shares])
    if np.isnan(everyone).all():  # also of images with one reference each
        return
    about_people = f"the same of each reference by the other references of its image ({len(everyone):,} references)"
    per_image = [_mean(np.array(shares)) for shares in people]
    yield Score(f"{name}_people", _mean(everyone), about_people, per_image)


def _mean(shares: np.ndarray) -> float:
    """Average the shares that are not NaN; NaN if all are."""
    numbers = shares[~np.isnan(shares)]
    return float(numbers.mean()) if len(numbers) else math.nan


@cache
def _installed_tables() -> MeteorTables:
    return MeteorTables()
