"""The page of explanations in a real browser, of a tiny captioner of every architecture."""

import numpy as np
import pytest
from PIL import Image

from hf_captioners.architectures import ARCHITECTURES
from hf_captioners.explain.explanation import explain_caption
from hf_captioners.explain.page import render_page
from tests.browser import look_at, open_browser
from tests.hub.captioner_cases import case_of

CAPTION = "a dog on the grass"
WIDTHS = "return [...document.querySelectorAll('svg.panel')].map((one) => one.clientWidth)"


@pytest.mark.slow
def test_pages_fit_a_phone_and_show_every_word(tmp_path):
    """Wide images too: the panels of an architecture, its bars, attributes and relations."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 96, 3), dtype=np.uint8))
    pages = {}
    for name in sorted(ARCHITECTURES):
        case = case_of(name)
        model, processor = case.make_model(attn_implementation="eager"), case.make_processor()
        explanation = explain_caption(model, processor, noise, CAPTION)
        pages[name] = explanation, tmp_path / f"{name}.html"
        pages[name][1].write_text(render_page({f"{name}{'_long' * 30}.jpg": explanation}), encoding="utf-8")
    for width in (390, 1200):
        with open_browser(width) as browser:
            for explanation, page in pages.values():
                text = look_at(browser, page)
                assert all(f"\n{word}\n" in text for word in explanation.words), page
                assert all(name in text for name in explanation.gates), page
                panels = browser.execute_script(WIDTHS)
                assert len(panels) == len(explanation.words) + 1 and min(panels) >= 150, page
