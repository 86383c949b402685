"""A model card with everything it can have, rendered and opened in a real browser."""

import pytest
from PIL import Image

from hf_captioners.architectures import ARCHITECTURES
from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.hub.cards import make_card
from tests.browser import look_at, open_browser

from .captioner_cases import save_captioner
from .card_values import SAMPLE, facts

# The Hub lets wide tables and code scroll; everything else has to fit.
STYLE = "body { margin: 12px; font: 16px sans-serif; } table, pre { display: block; overflow-x: auto; }"


@pytest.mark.slow
def test_the_card_is_rendered(tmp_path):
    markdown_it = pytest.importorskip("markdown_it", reason="needs markdown-it-py, which rich installs")
    save_captioner("visualgpt", tmp_path)
    facts(TrainingFacts).save(tmp_path)
    Image.new("RGB", (320, 240), "green").save(tmp_path / SAMPLE["file"])
    text = make_card(tmp_path, "somebody/captioner", with_images=True).split("---\n", 2)[2]
    body = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{STYLE}</style>"
    (tmp_path / "card.html").write_text(f"<!doctype html>{head}<body>{body}", encoding="utf-8")
    for width in (390, 1200):
        with open_browser(width) as browser:
            shown = look_at(browser, tmp_path / "card.html")
            assert browser.execute_script("return document.images.length") >= 1, "the sample"
            assert ARCHITECTURES["visualgpt"].paper in shown and "A dog is running." in shown
            assert browser.execute_script("return document.querySelectorAll('table').length") >= 3
            outside = browser.execute_script(
                "document.querySelectorAll('code, pre').forEach((one) => one.remove()); return document.body.innerText"
            )
            left = [
                line for line in outside.splitlines() if "**" in line or "|--" in line or line.startswith(("#", "```"))
            ]
            assert not left, f"Markdown that was not rendered: {left}"
