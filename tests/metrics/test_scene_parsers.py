from types import SimpleNamespace

import pytest

from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.metrics.meteor_tables import Synonyms
from hf_captioners.metrics.scene_rules import RuleParser
from hf_captioners.metrics.scene_spacy import SpacyParser

SYNONYMS = Synonyms("dog\n1\nride\n2\nhorse\n3\nsit\n4\ntable\n5\n", "sit\nsat sitting\n")


@pytest.mark.parametrize(
    ("caption", "tuples"),
    [
        (
            "a man riding a brown horse on the beach",
            ["man", "horse", "horse brown", "man|ride|horse", "beach", "man|on|beach"],
        ),
        ("two dogs are sitting next to a table", ["dog", "dog two", "table", "dog|sit next to|table"]),
        ("a black and white cat", ["cat", "cat black", "cat white"]),
        ("a group of people", ["group", "people"]),
        ("the", []),
        ("", []),
    ],
)
def test_rules(caption, tuples):
    """Objects alone, attributes behind a blank, relations between bars."""
    expected = [tuple(text.split("|" if "|" in text else " ")) for text in tuples]
    assert RuleParser(SYNONYMS)(caption) == expected


def test_rules_bear_their_own_name(tables):
    figures = compute_caption_metrics(
        ["a man rides a horse", "a dog"], [["a man riding a horse"], ["two dogs"]], ["spice_rules"], tables=tables
    )
    assert "spice" not in figures
    assert figures["spice_rules"] > 0
    assert "not comparable with SPICE" in figures["variants"]["spice_rules"]


def token(text, pos, label, children=(), lemma=None):
    made = SimpleNamespace(text=text, pos_=pos, dep_=label, children=list(children), lemma_=lemma or text, head=None)
    for child in made.children:
        child.head = made
    return made


def test_dependency_parse():
    """`a brown dog rides on a skate board`, as spaCy would label it."""
    skate = token("skate", "NOUN", "compound")
    board = token("board", "NOUN", "pobj", [skate])
    on = token("on", "ADP", "prep", [board])
    brown = token("brown", "ADJ", "amod")
    dog = token("dog", "NOUN", "nsubj", [brown])
    rides = token("rides", "VERB", "ROOT", [dog, on], lemma="ride")
    parse = SpacyParser(lambda caption: [brown, dog, rides, on, skate, board])
    assert parse("a brown dog rides on a skate board") == [
        ("dog",),
        ("dog", "brown"),
        ("dog", "ride on", "skate board"),
        ("skate board",),
    ]


def test_missing_spacy_says_what_to_type(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "spacy", None)
    with pytest.raises(ImportError, match="pip install spacy"):
        SpacyParser.load()
