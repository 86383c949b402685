"""Scene graphs of parsed captions and their comparison in SPICE.

Source: Anderson et al., "SPICE: Semantic Propositional Image Caption Evaluation", ECCV 2016, section 3.
"""

from collections.abc import Callable, Iterable, Sequence
from math import nan
from typing import NamedTuple

SceneTuple = tuple[str, ...]
"""(object,), (object, attribute) or (subject, relation, object)."""

FindSynonyms = Callable[[str], frozenset[int]]
"""Returns the synset numbers of a phrase, with `_` for blanks."""

_COLOR_WORDS = (
    "black brown blue red yellow pink gray grey green dark light white cream orange purple maroon beige violet"
)
_COUNTS = "one two three four five six seven eight nine ten"
_SIZES = """
    baby beefy big bony boundless brawny broad bulky chunky colossal compact corpulent cosmic cubby curvy
    elfin emaciated endless enormous epic expansive extensive fat fleshy full-size gargantuan gaunt giant
    gigantic grand great heavy hefty huge hulking illimitable immeasurable immense infinitesimal lanky large
    lean life-size limitless little mammoth massive meager measly microscopic mini miniature minuscule minute
    narrow obese outsized oversize overweight paltry petite pint-size plump pocket-size portly pudgy puny
    scanty scraggy scrawny short sizable skeletal skimpy skinny slender slim small squat stocky stout
    strapping sturdy tall teensy teeny teeny-tiny teeny-weeny thick thickset thin tiny titanic towering
    trifling trim tubby undersized underweight unlimited vast wee whopping wide
"""
_ATTRIBUTE_LISTS = {
    "Color": frozenset(_COLOR_WORDS.split()),
    "Cardinality": frozenset(_COUNTS.split()),
    "Size": frozenset(_SIZES.split()),
}
_ELEMENTS = {"Object": 1, "Attribute": 2, "Relation": 3}

CATEGORIES = ("All", *_ELEMENTS, *_ATTRIBUTE_LISTS)
"""The categories of scores. `Cardinality` is called Count in the paper."""


class Concept:
    """Object, attribute or relation of a scene graph: its phrases and their synset numbers."""

    def __init__(self, phrase: str, find_synonyms: FindSynonyms) -> None:
        self.words = {phrase: None}  # a dictionary is an ordered set
        self.numbers = set(find_synonyms(phrase.lower().replace(" ", "_")))

    def __str__(self) -> str:
        return "/".join(self.words)

    def equals(self, other: "Concept") -> bool:
        """Return True if phrases and synset numbers are equal."""
        return self.words.keys() == other.words.keys() and self.numbers == other.numbers

    def similarity(self, other: "Concept") -> float:
        """Return 1 if a phrase is shared, otherwise the Jaccard index of the synset numbers."""
        if self.words.keys() & other.words.keys():
            return 1.0
        common = len(self.numbers & other.numbers)
        return common / len(self.numbers | other.numbers) if common else 0.0

    def absorb(self, other: "Concept") -> None:
        """Merge the phrases and synset numbers of a second concept into this one."""
        self.words |= other.words
        self.numbers |= other.numbers


class _Relation(NamedTuple):
    subject: Concept
    relation: Concept
    object: Concept


class SceneGraph:
    """Scene graph: objects, their attributes and relations between them. Synonyms are merged as they are added.

    Merging is greedy in the order of the tuples. Of several equally similar objects the first one is used; the
    original program selects one at random.

    Args:
        tuples: the tuples of one or more captions.
        find_synonyms: returns the synset numbers of a phrase.
        merge: whether to merge synonyms. If False, only equal phrases are merged.
    """

    def __init__(self, tuples: Iterable[SceneTuple], find_synonyms: FindSynonyms, merge: bool = True) -> None:
        self._find = find_synonyms
        self._merge = merge
        self._objects: list[Concept] = []
        self._attributes: list[tuple[Concept, Concept]] = []
        self._relations: list[_Relation] = []
        for parts in tuples:
            self._add(parts)

    def tuples(self) -> list[tuple[Concept, ...]]:
        """Return all objects, attributes with their objects, and relations with subject and object."""
        return [*((node,) for node in self._objects), *self._attributes, *map(tuple, self._relations)]

    def _add(self, parts: SceneTuple) -> None:
        if len(parts) == 1:
            self._object(parts[0])
        elif len(parts) == 2:
            self._add_attribute(self._object(parts[0]), Concept(parts[1], self._find))
        elif len(parts) == 3:
            subject, other = self._object(parts[0]), self._object(parts[2])
            self._add_relation(subject, Concept(parts[1].removeprefix("be "), self._find), other)
        else:
            raise ValueError(
                f"The tuple {parts!r} has {len(parts)} parts, expected (object,), (object, attribute) or (subject, "
                f"relation, object)."
            )

    def _object(self, phrase: str) -> Concept:
        new = Concept(phrase, self._find)
        for node in self._objects:
            if node.equals(new):
                return node
        if self._merge and self._objects:
            nearest = max(self._objects, key=new.similarity)
            if new.similarity(nearest) > 0:
                nearest.absorb(new)
                return nearest
        self._objects.append(new)
        return new

    def _add_attribute(self, node: Concept, attribute: Concept) -> None:
        own = [mine for owner, mine in self._attributes if owner is node]
        if not self._absorbed(attribute, own):
            self._attributes.append((node, attribute))

    def _add_relation(self, subject: Concept, relation: Concept, other: Concept) -> None:
        own = [mine.relation for mine in self._relations if mine.subject is subject and mine.object is other]
        if not self._absorbed(relation, own):
            self._relations.append(_Relation(subject, relation, other))

    def _absorbed(self, new: Concept, existing: Sequence[Concept]) -> bool:
        """Merge a concept into an equal or synonymous one of `existing`; return True if there was any."""
        if any(new.equals(old) for old in existing):
            return True
        for old in existing:
            if self._merge and old.similarity(new) > 0:
                old.absorb(new)
                return True
        return False


class CategoryScore(NamedTuple):
    """SPICE of one category for one image. `f`, `precision` and `recall` are nan if the references have no tuple."""

    f: float
    precision: float
    recall: float
    true_positives: int
    false_positives: int
    false_negatives: int


def compare(
    candidate: Iterable[SceneTuple],
    references: Iterable[Iterable[SceneTuple]],
    find_synonyms: FindSynonyms,
    merge: bool = True,
) -> dict[str, CategoryScore]:
    """Compare the scene tuples of a candidate with those of all its references; return an F-score by category.

    A tuple of the candidate is a true positive if a tuple of the references with the same category is similar in
    every position. Several tuples may match the same one, so the number of false negatives can be negative.

    Args:
        candidate: the tuples of the candidate.
        references: the tuples of each reference.
        find_synonyms: returns the synset numbers of a phrase.
        merge: whether synonyms match. If False, only equal phrases match.

    Returns:
        The scores of each of `CATEGORIES`.
    """
    mine = SceneGraph(candidate, find_synonyms, merge).tuples()
    together = (parts for reference in references for parts in reference)
    theirs = SceneGraph(together, find_synonyms, merge).tuples()
    scores = {}
    for category in CATEGORIES:
        ours = [parts for parts in mine if _belongs(parts, category)]
        others = [parts for parts in theirs if _belongs(parts, category)]
        hits = sum(any(_similar(parts, other, merge) for other in others) for parts in ours)
        scores[category] = _score(category, hits, len(ours), len(others))
    return scores


def _similar(parts: tuple[Concept, ...], others: tuple[Concept, ...], merge: bool) -> bool:
    if len(parts) != len(others):
        return False
    pairs = zip(parts, others, strict=True)
    return all(part.similarity(other) > 0 if merge else part.equals(other) for part, other in pairs)


def _belongs(parts: tuple[Concept, ...], category: str) -> bool:
    if category == "All":
        return True
    if category in _ELEMENTS:
        return len(parts) == _ELEMENTS[category]
    return len(parts) == 2 and str(parts[1]) in _ATTRIBUTE_LISTS[category]


def _score(category: str, hits: int, n_candidate: int, n_reference: int) -> CategoryScore:
    if n_reference == 0 and category != "All":
        f = precision = recall = nan
    else:
        precision = hits / n_candidate if n_candidate else 0.0
        recall = hits / n_reference if n_reference else 0.0
        f = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return CategoryScore(f, precision, recall, hits, n_candidate - hits, n_reference - hits)
