import json
import math
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.metrics.caption_tokenizers import caption_tokenizer, is_without_blanks, require_blanks

# Written by `make_icu_tokens.mjs`.
ICU = json.loads((Path(__file__).parent / "icu_tokens.json").read_text(encoding="utf-8"))
CHINESE = ["一只棕色的狗在海滩上奔跑。", "两只猫坐在红色的沙发上。", "三个孩子在踢足球"]
CHINESE_REFERENCES = [
    ["一只狗在海滩上奔跑。", "一只棕色的狗跑在沙滩上"],
    ["两只猫坐在沙发上", "红色沙发上有两只猫。"],
    ["几个孩子在草地上踢足球。", "三个男孩踢球"],
]


@pytest.mark.parametrize("name", ["unicode", "characters"])
def test_tokens_are_those_of_icu(name):
    texts, expected = zip(*ICU[name], strict=True)
    for text, tokens, words in zip(texts, caption_tokenizer(name)(texts), expected, strict=True):
        assert tokens.split(" ") == words, text


def test_a_composed_and_a_decomposed_letter_are_the_same_word():
    decomposed = unicodedata.normalize("NFD", "läuft über")
    for name in ("ptb", "none", "unicode", "characters"):
        tokenize = caption_tokenizer(name)
        assert tokenize([decomposed]) == tokenize(["läuft über"]), name
    scores = compute_caption_metrics([decomposed] * 2, [["läuft über"]] * 2, ["bleu"])
    assert scores["bleu_1"] == pytest.approx(1)


def plain_cider_d(predictions, references):
    """CIDEr-D (Vedantam et al., 2015) in dictionaries, over the characters of texts that hold nothing else."""

    def grams(text):
        return Counter(text[i : i + n] for n in range(1, 5) for i in range(len(text) - n + 1))

    documents = Counter(gram for texts in references for gram in set().union(*map(grams, texts)))
    log_images = math.log(len(references))

    def vectors(text):
        weighted = {g: c * (log_images - math.log(max(1, documents[g]))) for g, c in grams(text).items()}
        return [{g: value for g, value in weighted.items() if len(g) == n} for n in range(1, 5)]

    def similarity(text, reference):
        total = 0.0
        for own, other in zip(vectors(text), vectors(reference), strict=True):
            product = sum(min(value, other.get(gram, 0)) * other.get(gram, 0) for gram, value in own.items())
            lengths = math.hypot(*own.values()) * math.hypot(*other.values())
            total += product / lengths if lengths else 0.0
        # The released program takes the number of pairs as the length of a caption.
        return total / 4 * math.exp(-((max(0, len(text) - 1) - max(0, len(reference) - 1)) ** 2) / 72) * 10

    return [
        float(np.mean([similarity(text, reference) for reference in texts]))
        for text, texts in zip(predictions, references, strict=True)
    ]


def test_cider_d_over_characters_is_that_of_a_plain_program():
    scores = compute_caption_metrics(CHINESE, CHINESE_REFERENCES, ["cider_d"], "characters")
    expected = plain_cider_d(
        [text.strip("。") for text in CHINESE], [[text.strip("。") for text in texts] for texts in CHINESE_REFERENCES]
    )
    assert scores["per_image"]["cider_d"] == pytest.approx(expected, abs=1e-9)
    assert scores["cider_d"] > 0.5 and scores["tokenizer"] == "characters"


def test_ptb_is_refused_on_text_without_blanks():
    with pytest.raises(ValueError, match="`tokenizer=characters`"):
        compute_caption_metrics(CHINESE, CHINESE_REFERENCES)
    for texts in (["犬が走っている"] * 3, ["สุนัขวิ่งบนชายหาดกับแมว"] * 3):
        with pytest.raises(ValueError, match="`caption_tokenizer` is 'ptb'"):
            require_blanks(texts, "ptb", "caption_tokenizer")


@pytest.mark.parametrize(
    "caption",
    [
        "一只 狗 在 海滩 上 奔跑",
        "สุนัข สีน้ำตาล วิ่ง บน ชายหาด",
        "강아지가 해변에서 달리고 있다",
        "كلب يجري",
        "एक कुत्ता",
        "a dog",
    ],
)
def test_words_that_are_separated_are_not_refused(caption):
    assert not is_without_blanks(caption)
    require_blanks([caption], "ptb")


def test_one_chinese_caption_among_english_ones_is_scored():
    captions = ["a dog runs", "two cats", CHINESE[0]]
    assert compute_caption_metrics(captions, [[text] for text in captions], ["bleu"])["bleu_1"] == pytest.approx(1)


def test_an_unknown_tokenizer_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="'caracters'.*characters"):
        compute_caption_metrics(["a"], [["a"]], ["bleu"], "caracters")
