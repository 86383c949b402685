import gzip

import pytest

from hf_captioners.metrics.paraphrases import ParaphraseIndex, PhraseMatch, build

ENTRIES = [("is", "has"), ("has", "is"), ("a lot of", "many"), ("many", "lots of"), ("on top", "above"), ("a", "one")]


@pytest.fixture
def index(tmp_path) -> ParaphraseIndex:
    table = tmp_path / "table.gz"
    with gzip.open(table, "wt", encoding="utf-8") as file:
        file.writelines(f"0.5\n{phrase}\n{paraphrase}\n" for phrase, paraphrase in ENTRIES)
    build(table, tmp_path / "cache" / "index")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["index"]
    return ParaphraseIndex(tmp_path / "cache" / "index")


def match(index, hypothesis, reference):
    return list(index.match([hypothesis.split(), reference.split()], [(0, 1)]))[0]


def test_phrases_of_several_words(index):
    assert match(index, "x many dogs", "a lot of dogs") == [PhraseMatch(0, 3, 1, 1)]


def test_both_directions_are_listed(index):
    assert match(index, "it has", "it is") == [PhraseMatch(1, 1, 1, 1)] * 2


def test_one_direction_is_enough(index):
    assert match(index, "on top", "above") == [PhraseMatch(0, 1, 0, 2)]
    assert match(index, "above", "on top") == [PhraseMatch(0, 2, 0, 1)]


def test_words_that_are_in_no_phrase(index):
    assert match(index, "zebra", "giraffe") == []
    assert match(index, "", "") == []


def test_every_pair_gets_its_own_matches(index):
    captions = [["is"], ["has"], ["many"], ["lots", "of"]]
    found = list(index.match(captions, [(0, 1), (0, 2), (2, 3), (3, 2)]))
    assert [len(matches) for matches in found] == [2, 0, 1, 1]


def test_a_phrase_that_only_begins_an_entry_matches_nothing(index):
    assert match(index, "many", "a lot") == []
