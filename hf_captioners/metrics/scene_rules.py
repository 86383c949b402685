"""A small rule parser: captions to objects, attributes and relations, with word lists and no model.

It takes a caption for noun phrases joined by prepositions and verbs, which describes most captions. Its tuples are
coarser than those of SPICE's own pipeline, so figures made with it bear another name (`spice_rules`).
"""

from typing import NamedTuple

from .meteor_tables import Synonyms
from .scene_graph import COLORS, SceneTuple

_DETERMINER_WORDS = """
    a an the this that these those some any each every his her its their my our your another other own very many
    several few it he she they them him there which who whose while as
"""
_AUXILIARY_WORDS = """
    is are was were be been being am 's has have had do does did can could will would may might not n't to
"""
_PREPOSITION_WORDS = """
    of in on at with without by near over under above below behind beside besides between among through across along
    around against into onto toward towards from for inside outside off up down past atop amid amongst upon within
    underneath beneath next front top out during before after about like
"""
_PARTITIVE_WORDS = "group bunch couple pair lot number set row pile herd flock crowd"
_DETERMINERS, _AUXILIARIES, _PREPOSITIONS, _PARTITIVES = (
    frozenset(words.split()) for words in (_DETERMINER_WORDS, _AUXILIARY_WORDS, _PREPOSITION_WORDS, _PARTITIVE_WORDS)
)
_JOINERS = frozenset(["and", "or", "but", "plus", "&"])
_COMPOUND_PREPOSITIONS = {
    ("next", "to"): "next to",
    ("in", "front", "of"): "in front of",
    ("on", "top", "of"): "on top of",
    ("close", "to"): "close to",
    ("out", "of"): "out of",
    ("on", "the", "side", "of"): "on side of",
    ("in", "the", "middle", "of"): "in middle of",
}
_LONGEST = max(map(len, _COMPOUND_PREPOSITIONS))


class _Phrase(NamedTuple):
    """What stands between two noun phrases, and the noun phrase that follows."""

    joint: list[str]  # verbs and prepositions
    words: list[str]


class RuleParser:
    """Parses tokenised English captions.

    Args:
        synonyms: its base forms turn `dogs` into `dog`; without it words stay as they are.
    """

    def __init__(self, synonyms: Synonyms | None = None) -> None:
        self._base = synonyms.lemma if synonyms is not None else lambda word: word

    def __call__(self, caption: str) -> list[SceneTuple]:
        """Return the tuples of a caption, objects before what is said of them."""
        tuples: list[SceneTuple] = []
        subject: str | None = None
        for phrase in self._phrases(caption.lower().split()):
            if not phrase.words:
                tuples += [(subject, " ".join(phrase.joint))] if subject and phrase.joint else []
                continue
            head, attributes = self._base(phrase.words[-1]), phrase.words[:-1]
            tuples.append((head,))
            tuples += [(head, attribute) for attribute in attributes]
            if subject and phrase.joint and not self._is_partitive(subject, phrase.joint):
                tuples.append((subject, " ".join(phrase.joint), head))
            if subject is None or not phrase.joint or self._is_partitive(subject, phrase.joint):
                subject = head
            elif phrase.joint[-1] in _PREPOSITIONS or " " in phrase.joint[-1]:
                subject = subject if self._has_verb(phrase.joint) else head
        return tuples

    @staticmethod
    def _is_partitive(subject: str, joint: list[str]) -> bool:
        return subject in _PARTITIVES and joint == ["of"]

    @staticmethod
    def _has_verb(joint: list[str]) -> bool:
        return any(word not in _PREPOSITIONS and " " not in word for word in joint)

    def _phrases(self, words: list[str]) -> list[_Phrase]:
        phrases = [_Phrase([], [])]
        place, after_auxiliary = 0, False
        while place < len(words):
            compound, length = _compound(words, place)
            word = compound or words[place]
            place += length
            joint, noun = phrases[-1]
            joins = bool(compound) or word in _PREPOSITIONS or _is_verb(word, bool(noun) or after_auxiliary)
            if joins or word in _JOINERS or word in _AUXILIARIES:
                if noun and not (word in _JOINERS and noun[-1] in COLORS):  # `black and white` is one attribute list
                    phrases.append(_Phrase([], []))
                if joins:
                    phrases[-1].joint.append(word if compound else self._base(word))
            elif word not in _DETERMINERS:
                noun.append(word)
            after_auxiliary = word in _AUXILIARIES
        return [phrase for phrase in phrases if phrase.joint or phrase.words]


def _is_verb(word: str, after_noun: bool) -> bool:
    """Participles after a noun are verbs (`a man riding`), before one they are attributes (`a running dog`)."""
    return after_noun and len(word) > 4 and word.endswith(("ing", "ed"))


def _compound(words: list[str], place: int) -> tuple[str | None, int]:
    for length in range(_LONGEST, 1, -1):
        name = _COMPOUND_PREPOSITIONS.get(tuple(words[place : place + length]))
        if name:
            return name, length
    return None, 1
