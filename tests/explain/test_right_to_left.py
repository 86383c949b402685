"""Explanations of captions that are written from right to left."""

import numpy as np
from PIL import Image

from hf_captioners.explain.explanation import AttributeWeights, Explanation
from hf_captioners.explain.page import render_page
from tests.directions import directions

NAME = "صورة 1.jpg"
WORDS = ["دائرة", "حمراء", "في", "الأعلى."]


def test_the_words_of_the_page_decide_its_directions():
    """Heading, order of the panels and attributes; boxes and bars of a panel stay as the image is."""
    weights = AttributeWeights(["نجمة"], np.ones((4, 1)))
    boxes = np.array([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]])
    explanation = Explanation(
        WORDS,
        np.full((4, 2), 0.5),
        boxes,
        Image.new("RGB", (8, 8)),
        attributes=weights,
        confidences=[0.1, 0.9, None, 0.5],
    )
    page = render_page({NAME: explanation})
    sides = directions(page)
    assert all(sides[text] == {"auto"} for text in [NAME, "نجمة", *WORDS])
    assert sides["image"] == {"ltr"}, "it does not decide the order of the panels"
    captions = page.split('<div class="panels" dir="auto">')[1].split("<figcaption")[2:]
    assert len(captions) == 4 and all(text.startswith(">") for text in captions), (
        "a word with a direction decides nothing"
    )
    style = page.split("</style>")[0]
    assert all("direction: ltr" in style.split(name)[1].split("}")[0] for name in ("svg.panel {", ".bar {"))
