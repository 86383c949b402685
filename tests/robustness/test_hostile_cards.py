"""Text of strangers in cards: shown as it is, without tags, images, links or damage to the metadata."""

import html
import json
import re

import pytest
from datasets import Dataset
from huggingface_hub import ModelCard

from hf_captioners.data.card import dataset_card
from hf_captioners.hub.card_facts import CheckpointFacts, DataFacts, EvaluationFacts, SampleFacts, TrainingFacts
from hf_captioners.hub.card_merging import BEGIN, END, read_card
from hf_captioners.hub.cards import render_card
from hf_captioners.inert_text import code_span, inert_text

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=http://tracker.example/x.png onerror=alert(1)>",
    "![](http://tracker.example/x.png)",
    "[click](javascript:alert(1))",
    "[ref]: http://tracker.example/x.png",
    "![a][ref]",
    "http://tracker.example/x and www.tracker.example and me@tracker.example",
    "a | b | c",
    "a\\| ![](http://tracker.example/x.png) \\",
    "`a` ``b`` <b>`",
    "``` \n\n<script>alert(1)</script>",
    "name\n---\nlicense: mit",
    "---\n# Heading\n\n- list",
    "\u2028<script>\u2029",
    "lone \ud800 surrogate",
    "&lt;script&gt; &#60;img&#62;",
    f"{END} <!-- {BEGIN} -->",
    "{{ 7 * 7 }} {% raw %}",
    "<!-- comment",
    "",
]


def card_of(text):
    data = DataFacts(
        name=text, split=text, images=3, captions=6, licence=text, citation=text, homepage=text, description=text
    )
    sample = SampleFacts(
        image=text, file="sample_eval_1.jpg", caption=text, references=[text, text], visual_scores=[(text, 0.5)]
    )
    unscored = SampleFacts(image=text, file=None, caption=text, references=[text])
    evaluation = EvaluationFacts(
        data=data,
        figures={"bleu_4": 0.25, "cider_d": 0.7},
        variants={"bleu_4": text},
        tokenizer=text,
        document_frequency=text,
        generation={"stop": text},
        samples=[sample, unscored],
    )
    training = TrainingFacts(
        data=data,
        evaluations=[evaluation],
        licence=text,
        language=text,
        started_from=[text],
        converted_from=text,
        arguments={"run_name": text},
        hardware=text,
        versions={text: text},
    )
    return render_card("owner/name", CheckpointFacts(), training, frozenset(["sample_eval_1.jpg"]))


def harmful_parts(text):
    """Return tags, links and images that a renderer of GitHub's Markdown makes of a text."""
    markdown_it = pytest.importorskip("markdown_it")
    rendered = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    allowed = r"/?(p|h\d|table|thead|tbody|tr|t[hd]|code|pre|em|strong|ul|ol|li|br|sub|details|summary|blockquote)"
    tags = re.findall(r"<[^>]*>", rendered)
    return [tag for tag in tags if not re.fullmatch(rf"<{allowed}( class=\"language-\w+\")? ?/?>", tag)], rendered


@pytest.mark.parametrize("text", HOSTILE)
def test_cards_of_models(text):
    card = card_of(text)
    body = read_card(card, "README.md")
    assert body is not None
    metadata = ModelCard(card).data
    assert metadata.library_name == "transformers" and (metadata.model_name or not text)
    markdown = card.split("---\n", 2)[2]
    found, rendered = harmful_parts(markdown)
    expected = {'<img src="sample_eval_1.jpg" alt="', "<!-- hf-captioners:"}
    assert not [tag for tag in found if not any(tag.startswith(start) for start in expected)], found
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
    rows = Dataset.from_dict({"captions": [["A dog."]], text: ["x"]})
    card = str(dataset_card("scenes", {"train": rows}))
    found, _ = harmful_parts(card.split("---\n", 2)[2])
    assert not found


def test_names_in_code_stay_in_their_quotes():
    name = 'x")\nimport os #'
    card = render_card(name, CheckpointFacts(adapter_of=name))
    code = re.search(r"```python\n(.*?)\n```", card, re.DOTALL)[1]
    assert "\nimport os #" not in code and json.dumps(name) in code
