"""Captions of scenes in German, Chinese and Arabic, with agreement in number, gender and case."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .scene_world import INVERSE, Group, Scene

Inflect = Callable[[Group, bool, str], str]
NOMINATIVE, ACCUSATIVE, DATIVE = "nominative", "accusative", "dative"
CASES = (NOMINATIVE, ACCUSATIVE, DATIVE)


@dataclass(frozen=True)
class SceneLanguage:
    """Vocabulary and grammar of a language for captions of scenes.

    Attributes:
        things: returns the words for a group, with or without its size, in a case of `CASES`.
        places: phrases of the places of one group.
        relations: phrases of relations; `{}` stands for the other group, and the case is that of its words.
        backgrounds: phrases of the backgrounds.
        frames: sentences. `{a}` is the subject (`{a4}` in the accusative, `{a3}` in the dative), `{where}` its place,
            `{ground}` the background, `{is}` the verb.
        verbs: of one object and of several.
        end: final punctuation.
    """

    things: Inflect
    places: Mapping[str, tuple[str, ...]]
    relations: Mapping[str, tuple[tuple[str, str], ...]]
    backgrounds: Mapping[str, str]
    frames: tuple[str, ...]
    verbs: tuple[str, str] = ("", "")
    end: str = "."


# German: gender, singular, plural; the dative plural ends in n.
_GERMAN_SHAPES = {
    "circle": ("m", "Kreis", "Kreise"),
    "square": ("n", "Quadrat", "Quadrate"),
    "triangle": ("n", "Dreieck", "Dreiecke"),
    "star": ("m", "Stern", "Sterne"),
    "cross": ("n", "Kreuz", "Kreuze"),
    "ring": ("m", "Ring", "Ringe"),
}
_GERMAN_WORDS = {
    **{"red": "rot", "blue": "blau", "green": "grün", "yellow": "gelb", "orange": "orangefarben", "purple": "violett"},
    **{"small": "klein", "large": "groß"},
}
# Article, and ending of adjectives after it.
_GERMAN_ARTICLES = {
    ("m", NOMINATIVE): ("ein", "er"),
    ("n", NOMINATIVE): ("ein", "es"),
    ("m", ACCUSATIVE): ("einen", "en"),
    ("n", ACCUSATIVE): ("ein", "es"),
    ("m", DATIVE): ("einem", "en"),
    ("n", DATIVE): ("einem", "en"),
}
_GERMAN_NUMBERS = {2: "zwei", 3: "drei", 4: "vier"}


def _german(group: Group, with_size: bool, case: str) -> str:
    gender, singular, plural = _GERMAN_SHAPES[group.shape]
    adjectives = [_GERMAN_WORDS[word] for word in ([group.size] if with_size else []) + [group.colour]]
    if group.count == 1:
        first, ending = _GERMAN_ARTICLES[gender, case]
        noun = singular
    else:
        first, ending = _GERMAN_NUMBERS[group.count], "en" if case == DATIVE else "e"
        noun = plural + ("n" if case == DATIVE else "")
    return " ".join([first, *(word + ending for word in adjectives), noun])


_CHINESE_WORDS = {
    **{"red": "红色", "blue": "蓝色", "green": "绿色", "yellow": "黄色", "orange": "橙色", "purple": "紫色"},
    **{"circle": "圆形", "square": "正方形", "triangle": "三角形", "star": "星星", "cross": "十字", "ring": "圆环"},
    **{"small": "小", "large": "大"},
}
_CHINESE_NUMBERS = {1: "一个", 2: "两个", 3: "三个", 4: "四个"}


def _chinese(group: Group, with_size: bool, case: str) -> str:
    size = _CHINESE_WORDS[group.size] if with_size else ""
    return f"{_CHINESE_NUMBERS[group.count]}{_CHINESE_WORDS[group.colour]}的{size}{_CHINESE_WORDS[group.shape]}"


# Arabic: gender, singular, stem of the dual, plural.
_ARABIC_SHAPES = {
    "circle": ("f", "دائرة", "دائرت", "دوائر"),
    "square": ("m", "مربع", "مربع", "مربعات"),
    "triangle": ("m", "مثلث", "مثلث", "مثلثات"),
    "star": ("f", "نجمة", "نجمت", "نجوم"),
    "cross": ("m", "صليب", "صليب", "صلبان"),
    "ring": ("f", "حلقة", "حلقت", "حلقات"),
}
# Masculine, feminine, and the stems of their duals. Plurals of things take the feminine singular.
_ARABIC_WORDS = {
    "red": ("أحمر", "حمراء", "أحمر", "حمراو"),
    "blue": ("أزرق", "زرقاء", "أزرق", "زرقاو"),
    "green": ("أخضر", "خضراء", "أخضر", "خضراو"),
    "yellow": ("أصفر", "صفراء", "أصفر", "صفراو"),
    "orange": ("برتقالي", "برتقالية", "برتقالي", "برتقاليت"),
    "purple": ("بنفسجي", "بنفسجية", "بنفسجي", "بنفسجيت"),
    "small": ("صغير", "صغيرة", "صغير", "صغيرت"),
    "large": ("كبير", "كبيرة", "كبير", "كبيرت"),
}
# Numbers from 3 have the other gender than the thing.
_ARABIC_NUMBERS = {(3, "f"): "ثلاث", (3, "m"): "ثلاثة", (4, "f"): "أربع", (4, "m"): "أربعة"}


def _arabic(group: Group, with_size: bool, case: str) -> str:
    gender, singular, dual, plural = _ARABIC_SHAPES[group.shape]
    adjectives = [_ARABIC_WORDS[word] for word in ([group.size] if with_size else []) + [group.colour]]
    is_feminine = gender == "f"
    if group.count == 1:
        return " ".join([singular, *(forms[is_feminine] for forms in adjectives)])
    if group.count == 2:
        ending = "ان" if case == NOMINATIVE else "ين"
        return " ".join([dual + ending, *(forms[2 + is_feminine] + ending for forms in adjectives)])
    return " ".join([_ARABIC_NUMBERS[group.count, gender], plural, *(forms[1] for forms in adjectives)])


LANGUAGES: dict[str, SceneLanguage] = {
    "de": SceneLanguage(
        _german,
        {
            "left": ("links", "auf der linken Seite", "am linken Rand"),
            "right": ("rechts", "auf der rechten Seite", "am rechten Rand"),
            "top": ("oben", "im oberen Teil"),
            "bottom": ("unten", "im unteren Teil"),
            "middle": ("in der Mitte", "im Zentrum"),
        },
        {
            "left of": (("links von {}", DATIVE), ("links neben {}", DATIVE)),
            "right of": (("rechts von {}", DATIVE), ("rechts neben {}", DATIVE)),
            "above": (("über {}", DATIVE), ("oberhalb von {}", DATIVE)),
            "below": (("unter {}", DATIVE), ("unterhalb von {}", DATIVE)),
            "inside": (("in {}", DATIVE), ("innerhalb von {}", DATIVE)),
            "around": (("um {} herum", ACCUSATIVE),),
        },
        {"white": "auf weißem Grund", "grey": "auf grauem Grund", "black": "auf schwarzem Grund"},
        (
            "{a} {is} {where}",
            "{where} {is} {a}",
            "{a} {where}",
            "{a} {where} {ground}",
            "man sieht {a4} {where}",
            "ein Bild mit {a3} {where}",
        ),
        ("ist", "sind"),
    ),
    "zh": SceneLanguage(
        _chinese,
        {
            "left": ("在画面左边", "在画面左侧"),
            "right": ("在画面右边", "在画面右侧"),
            "top": ("在画面上方", "在画面上部"),
            "bottom": ("在画面下方", "在画面下部"),
            "middle": ("在画面中间", "在画面中央"),
        },
        {
            "left of": (("在{}的左边", DATIVE), ("在{}的左侧", DATIVE)),
            "right of": (("在{}的右边", DATIVE), ("在{}的右侧", DATIVE)),
            "above": (("在{}的上方", DATIVE), ("在{}的上面", DATIVE)),
            "below": (("在{}的下方", DATIVE), ("在{}的下面", DATIVE)),
            "inside": (("在{}的里面", DATIVE), ("在{}的内部", DATIVE)),
            "around": (("围绕着{}", DATIVE),),
        },
        {"white": "白色背景上", "grey": "灰色背景上", "black": "黑色背景上"},
        ("{a}{where}", "图中{a}{where}", "可以看到{a}{where}", "{ground}有{a}，{where}", "图中有{a}，{where}"),
        end="。",
    ),
    "ar": SceneLanguage(
        _arabic,
        {
            "left": ("على اليسار", "في الجانب الأيسر"),
            "right": ("على اليمين", "في الجانب الأيمن"),
            "top": ("في الأعلى", "في الجزء العلوي"),
            "bottom": ("في الأسفل", "في الجزء السفلي"),
            "middle": ("في الوسط", "في المنتصف"),
        },
        {
            "left of": (("على يسار {}", DATIVE), ("إلى يسار {}", DATIVE)),
            "right of": (("على يمين {}", DATIVE), ("إلى يمين {}", DATIVE)),
            "above": (("فوق {}", DATIVE),),
            "below": (("تحت {}", DATIVE),),
            "inside": (("داخل {}", DATIVE),),
            "around": (("حول {}", DATIVE),),
        },
        {"white": "على خلفية بيضاء", "grey": "على خلفية رمادية", "black": "على خلفية سوداء"},
        ("{a} {where}", "هناك {a} {where}", "{where} {a}", "في الصورة {a} {where}", "{a} {where} {ground}"),
    ),
}
"""The languages beside English, by code."""


def caption_in(language: str, scene: Scene, rng: random.Random, captions: int = 5) -> list[str]:
    """Return different captions of a scene in one of `LANGUAGES`, see `caption_scene`."""
    words = LANGUAGES[language]
    return [_sentence(words, frame, scene, rng) for frame in rng.sample(words.frames, captions)]


def _sentence(words: SceneLanguage, frame: str, scene: Scene, rng: random.Random) -> str:
    subject, where = scene.groups[0], scene.where
    if len(scene.groups) == 1:
        place = rng.choice(words.places[where])
    else:
        second = scene.groups[1]
        if rng.random() < 0.5:  # inverted: A is left of B, so B is right of A
            subject, second, where = second, subject, INVERSE[where]
        phrase, case = rng.choice(words.relations[where])
        place = phrase.format(words.things(second, rng.random() < 0.6, case))
    with_size = rng.random() < 0.6
    forms = {name: words.things(subject, with_size, case) for name, case in zip(("a", "a4", "a3"), CASES, strict=True)}
    verb = words.verbs[subject.count > 1]
    text = frame.format(where=place, ground=words.backgrounds[scene.background], **forms, **{"is": verb})
    return f"{text[0].upper()}{text[1:]}{words.end}"
