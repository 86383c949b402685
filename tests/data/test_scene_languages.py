"""Scenes in German, Chinese and Arabic: right words by hand, and each caption states what is drawn."""

import random

import numpy as np
import pytest

from hf_captioners.data import load_captions
from hf_captioners.data.scene_languages import ACCUSATIVE, DATIVE, LANGUAGES, NOMINATIVE, caption_in
from hf_captioners.data.scene_world import Group, sample_scene
from hf_captioners.demo.facts import facts_of_scene
from hf_captioners.metrics.caption_tokenizers import is_without_blanks

from .language_facts import facts_in


@pytest.mark.parametrize(
    ("language", "group", "case", "words"),
    [
        ("de", Group(1, "small", "red", "circle"), NOMINATIVE, "ein kleiner roter Kreis"),
        ("de", Group(1, "large", "green", "square"), NOMINATIVE, "ein großes grünes Quadrat"),
        ("de", Group(1, "small", "blue", "star"), ACCUSATIVE, "einen kleinen blauen Stern"),
        ("de", Group(1, "large", "orange", "cross"), DATIVE, "einem großen orangefarbenen Kreuz"),
        ("de", Group(3, "small", "yellow", "ring"), ACCUSATIVE, "drei kleine gelbe Ringe"),
        ("de", Group(2, "small", "purple", "triangle"), DATIVE, "zwei kleinen violetten Dreiecken"),
        ("zh", Group(2, "small", "red", "star"), NOMINATIVE, "两个红色的小星星"),
        ("ar", Group(1, "small", "red", "circle"), NOMINATIVE, "دائرة صغيرة حمراء"),
        ("ar", Group(1, "large", "blue", "square"), DATIVE, "مربع كبير أزرق"),
        ("ar", Group(2, "small", "red", "circle"), NOMINATIVE, "دائرتان صغيرتان حمراوان"),
        ("ar", Group(2, "large", "orange", "triangle"), DATIVE, "مثلثين كبيرين برتقاليين"),
        ("ar", Group(3, "small", "green", "star"), NOMINATIVE, "ثلاث نجوم صغيرة خضراء"),
        ("ar", Group(4, "small", "yellow", "square"), NOMINATIVE, "أربعة مربعات صغيرة صفراء"),
    ],
)
def test_words_agree(language, group, case, words):
    assert LANGUAGES[language].things(group, True, case) == words


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_caption_states_what_is_drawn(language):
    rng = random.Random(language)
    for _ in range(300):
        scene = sample_scene(rng, "train")
        drawn, captions = facts_of_scene(scene.describe()), caption_in(language, scene, rng)
        assert len(set(captions)) == 5
        for caption in captions:
            stated = facts_in(language, caption)
            assert stated is not None and drawn in (stated, stated.turned()), (scene.describe(), caption)


@pytest.mark.parametrize(
    ("language", "caption"),
    [
        ("de", "ein roter Quadrat ist links"),  # gender
        ("de", "zwei roter Kreis ist links"),
        ("de", "ein roter Kreis"),  # no place
        ("ar", "ثلاثة دوائر حمراء فوق نجمة زرقاء"),  # gender of the number
        ("zh", "红色的圆形在画面左边"),  # no number
    ],
)
def test_captions_that_do_not_agree_state_nothing(language, caption):
    assert facts_in(language, caption) is None


def test_wrong_places_and_sides_are_seen():
    assert facts_in("de", "links von zwei blauen Ringen ist ein roter Kreis").where == "left of"
    assert facts_in("de", "Ein roter Kreis ist rechts.").where == "right"
    assert facts_in("zh", "一个红色的圆形在两个蓝色的圆环的左边").groups[0] == (1, "red", "circle")


def test_images_are_those_of_the_english_scenes():
    english, chinese = (
        load_captions(
            "scenes", num_images={"train": 3}, image_size=32, split="train", streaming=True, language=language
        )
        for language in ("en", "zh")
    )
    for one, other in zip(english, chinese, strict=True):
        assert one["scene"] == other["scene"] and np.array_equal(np.asarray(one["image"]), np.asarray(other["image"]))
        assert all(map(is_without_blanks, other["captions"])) and one["captions"][0].isascii()


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueError, match="`language` is 'fr', expected one of en, de, zh, ar"):
        load_captions("scenes", language="fr")
