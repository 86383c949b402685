"""Scene graphs from a spaCy dependency parse: figures made with it are called `spice_spacy`, never SPICE."""

from collections.abc import Callable, Iterable
from typing import Any

from .scene_graph import SceneTuple

_NOUNS = frozenset(["NOUN", "PROPN", "PRON"])
_ATTRIBUTE_LABELS = frozenset(["amod", "nummod", "acomp"])
_OBJECT_LABELS = frozenset(["dobj", "obj", "attr"])


class SpacyParser:
    """Turns captions into tuples by the labels of a dependency parse (spaCy's English scheme).

    Args:
        nlp: a loaded pipeline, as `spacy.load("en_core_web_sm")`.
    """

    def __init__(self, nlp: Callable[[str], Iterable[Any]]) -> None:
        self._nlp = nlp

    @classmethod
    def load(cls, model: str = "en_core_web_sm") -> "SpacyParser":
        """Load an installed spaCy model.

        Raises:
            ImportError: spaCy is not installed.
            OSError: the model is not installed.
        """
        try:
            import spacy
        except ImportError as error:
            raise ImportError(
                f"`spice_spacy` needs spaCy. Type `pip install spacy` and `python -m spacy download {model}`, or use "
                f"`spice_rules`."
            ) from error
        return cls(spacy.load(model))

    def __call__(self, caption: str) -> list[SceneTuple]:
        """Return the tuples of a caption."""
        tuples: list[SceneTuple] = []
        for token in self._nlp(caption):
            if token.pos_ in _NOUNS and token.dep_ != "compound":
                tuples.append((_name(token),))
                tuples += [
                    (_name(token), child.lemma_.lower()) for child in token.children if child.dep_ in _ATTRIBUTE_LABELS
                ]
                tuples += [
                    (_name(token), preposition.lemma_.lower(), _name(thing))
                    for preposition, thing in _prepositions(token)
                ]
            elif token.pos_ in ("VERB", "AUX"):
                tuples += _of_verb(token)
        return tuples


def _name(token: Any) -> str:
    before = [child.lemma_ for child in token.children if child.dep_ == "compound"]
    return " ".join([*before, token.lemma_]).lower()


def _prepositions(token: Any) -> list[tuple[Any, Any]]:
    return [
        (child, thing)
        for child in token.children
        if child.dep_ == "prep"
        for thing in child.children
        if thing.dep_ == "pobj"
    ]


def _of_verb(verb: Any) -> list[SceneTuple]:
    """Return what a verb says of its subject; a participle behind a noun (`acl`) has that noun for its subject."""
    subjects = [child for child in verb.children if child.dep_ in ("nsubj", "nsubjpass")]
    if verb.dep_ in ("acl", "relcl") and not subjects:
        subjects = [verb.head]
    action = verb.lemma_.lower()
    objects = [child for child in verb.children if child.dep_ in _OBJECT_LABELS]
    told: list[SceneTuple] = []
    for subject in map(_name, subjects):
        told += [(subject, child.lemma_.lower()) for child in verb.children if child.dep_ == "acomp"]
        told += [(subject, action, _name(thing)) for thing in objects]
        told += [
            (subject, f"{action} {preposition.lemma_.lower()}", _name(thing))
            for preposition, thing in _prepositions(verb)
        ]
        if len(told) == 0 and action != "be":
            told.append((subject, action))
    return told
