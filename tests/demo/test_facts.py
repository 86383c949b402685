"""The facts of captions of drawn scenes: references are right, captions of other scenes and changed ones are not."""

import pytest

from hf_captioners.data.scenes import draw_example
from hf_captioners.demo.facts import FACTS, facts_of_caption, interval, right_facts

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
