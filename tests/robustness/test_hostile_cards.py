"""Text of strangers in cards: shown as it is, without tags, images, links or damage to the metadata."""

import html
import json
import re

import pytest
from datasets import Dataset
from huggingface_hub import ModelCard

from hf_captioners.data.card import dataset_card
from hf_captioners.hub.card_facts import CheckpointFacts
from hf_captioners.hub.card_merging import read_card
from hf_captioners.hub.cards import render_card
from hf_captioners.inert_text import code_span, inert_text

from .attacked_checkpoints import ALLOWED_TAGS, HOSTILE, card_of, harmful_parts


@pytest.mark.parametrize("text", HOSTILE)
def test_cards_of_models(text):
    pytest.importorskip("markdown_it")
    card = card_of(text)
    body = read_card(card, "README.md")
    assert body is not None
    metadata = ModelCard(card).data
    assert metadata.library_name == "transformers" and (metadata.model_name or not text)
    markdown = card.split("---\n", 2)[2]
    found, rendered = harmful_parts(markdown)
    assert not [tag for tag in found if not tag.startswith(ALLOWED_TAGS)], found
    assert rendered.count("<img") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_are_shown_as_they_are(text):
    shown = " ".join(text.encode("utf-8", "replace").decode().split())
    markdown_it = pytest.importorskip("markdown_it")
    renderer = markdown_it.MarkdownIt("commonmark").enable("table")
    for made in (inert_text(text), code_span(text)):
        rendered = renderer.render(f"| a |\n|---|\n| x {made} |\n")
        cell = re.search(r"<td>(.*)</td>", rendered)[1]
        assert len(re.findall("<td>", rendered)) == 1
        found = html.unescape(re.sub(r"</?code>", "", cell)).replace("\u200b", "")
        assert " ".join(found.split()) == " ".join(f"x {shown}".split())
    assert "://" not in inert_text(text) and "@" not in inert_text(text)


@pytest.mark.parametrize("text", [text for text in HOSTILE if text and "\ud800" not in text])
def test_cards_of_data_sets(text):
    pytest.importorskip("markdown_it")
    rows = Dataset.from_dict({"captions": [["A dog."]], text: ["x"]})
    card = str(dataset_card("scenes", {"train": rows}))
    found, _ = harmful_parts(card.split("---\n", 2)[2])
    assert not found


def test_names_in_code_stay_in_their_quotes():
    name = 'x")\nimport os #'
    card = render_card(name, CheckpointFacts(adapter_of=name))
    code = re.search(r"```python\n(.*?)\n```", card, re.DOTALL)[1]
    assert "\nimport os #" not in code and json.dumps(name) in code
