import math

import pytest

from hf_captioners.metrics.scene_graph import CATEGORIES, SceneGraph, compare


def same(score, expected):
    keys = ("f", "pr", "re", "tp", "fp", "fn")
    pairs = zip(score, (expected[key] for key in keys), strict=True)
    return all(math.isnan(got) if want is None else abs(got - want) < 1e-9 for got, want in pairs)


def compared(row, find, merge=True):
    references = [map(tuple, tuples) for tuples in row["ref_tuples"]]
    return compare(map(tuple, row["test_tuples"]), references, find, merge)


@pytest.mark.parametrize(("merge", "key"), [(True, "expected"), (False, "expected_no_synsets")])
def test_figures_of_the_original(truth_rows, tables, merge, key):
    rows = truth_rows("spice_tuples.jsonl.gz")
    wrong = []
    for row in rows:
        scores = compared(row, tables.synonyms.find, merge)
        wrong += [(row["id"], name) for name in CATEGORIES if not same(scores[name], row[key][name])]
    assert len(rows) >= 100
    assert not wrong


def test_rows_that_vary_in_the_original_give_one_of_its_results(truth_rows, tables):
    for row in truth_rows("spice_tuples_unstable.jsonl.gz"):
        scores = compared(row, tables.synonyms.find)
        assert any(all(same(scores[name], one[name]) for name in CATEGORIES) for one in row["expected_any"])


NUMBERS = {"bike": frozenset([1]), "bicycle": frozenset([1]), "azure": frozenset([2]), "blue": frozenset([2])}


def find(phrase):
    return NUMBERS.get(phrase, frozenset())


def names(graph):
    return [tuple(map(str, parts)) for parts in graph.tuples()]


def test_synonyms_are_merged():
    graph = SceneGraph([("bike", "blue"), ("bicycle", "azure")], find)
    assert names(graph) == [("bike/bicycle",), ("bike/bicycle", "blue/azure")]
    assert len(SceneGraph([("bike",), ("bicycle",)], find, merge=False).tuples()) == 2


def test_a_merged_attribute_is_in_no_list():
    scores = compare([("bike", "blue")], [[("bike", "blue"), ("bike", "azure")]], find)
    assert scores["Color"].true_positives == 0
    assert scores["Attribute"].true_positives == 1


def test_be_is_left_out_of_relations():
    assert names(SceneGraph([("cup", "be on", "table")], find))[-1] == ("cup", "on", "table")


def test_a_tuple_has_one_to_three_parts():
    with pytest.raises(ValueError, match="has 4 parts"):
        SceneGraph([("a", "b", "c", "d")], find)
