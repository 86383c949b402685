"""The facts of captions of drawn scenes: references are right, captions of other scenes and changed ones are not."""

import pytest

from hf_captioners.data.scenes import draw_example
from hf_captioners.demo.facts import FACTS, facts_of_caption, interval, right_facts
from hf_captioners.metrics import compute_caption_metrics

SCENES = [draw_example(0, index, "test", 32) for index in range(60)]


def test_references_are_entirely_right_and_captions_of_other_scenes_are_not():
    for index, (scene, _, captions) in enumerate(SCENES):
        for caption in captions:
            assert right_facts(caption, scene.describe()) == set(FACTS), caption
            other = SCENES[index - 1][0]
            if other.contents() != scene.contents():
                assert right_facts(caption, other.describe()) != set(FACTS), caption


@pytest.mark.parametrize(
    ("caption", "right"),
    [
        ("two red circles to the left of a large blue star", {"number", "colour", "shape", "place"}),
        ("A blue star is on the right side of a pair of small red discs.", {"number", "colour", "shape", "place"}),
        ("two red circles to the right of a blue star", {"number", "colour", "shape"}),
        ("two blue circles to the left of a red star", {"number", "colour", "shape"}),
        ("three red circles to the left of a blue star", {"colour", "shape"}),
        ("two red circles to the left of a blue cross", {"number", "colour"}),
        ("two red circles at the top", set()),
        ("two red circle to the left of a blue star", set()),
        ("two red circles a blue star", set()),
        ("", set()),
    ],
)
def test_one_wrong_fact(caption, right):
    assert right_facts(caption, "2 small red circle left of 1 large blue star on grey") == right


def test_a_caption_with_two_places_states_none():
    assert facts_of_caption("a red circle at the top on the left") is None
    assert facts_of_caption("a red plus sign in the center").groups == ((1, "red", "cross"),)


def test_the_interval_is_wilsons():
    assert interval(75, 150) == pytest.approx((0.4210, 0.5790), abs=1e-4)
    assert interval(0, 10)[0] == 0 and interval(0, 10)[1] == pytest.approx(0.2775, abs=1e-4)


def facts_scores(predictions, references):
    names = ("hf_captioners.demo.facts:score_scene_facts",)
    return compute_caption_metrics(predictions, references, metrics=names)


def test_the_metric_of_facts_counts_what_is_wrong():
    references = [captions for *_, captions in SCENES]
    for place in range(5):
        scores = facts_scores([captions[place] for captions in references], references)
        assert scores["scene_right"] == 1
        assert not any(scores[f"scene_wrong_{name}"] for name in (*FACTS, "size"))
    one = [["Two small red circles to the left of a blue star.", "a large blue star right of two red discs"]]
    expected = {
        "two tiny red circles to the left of a big blue star": (),
        "three red circles to the left of a blue star": ("number", "place"),
        "two red circles above a blue star": ("place",),
        "two huge red circles to the left of a blue star": ("size",),
        "two red rings to the left of a small blue star": ("shape", "place", "size"),
        "a dog": FACTS,
    }
    for caption, wrong in expected.items():
        scores = facts_scores([caption], one)
        assert {name for name in (*FACTS, "size") if scores[f"scene_wrong_{name}"]} == set(wrong), caption
        assert scores["scene_right"] == (not set(wrong) & set(FACTS))


def test_no_caption_is_right_where_references_state_no_facts():
    assert facts_scores(["a dog"], [["a dog"]])["scene_right"] == 0
