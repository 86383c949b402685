"""Merging keeps text that a person wrote and updates generated text."""

import logging

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_captioners.hub.card_merging import front_matter, merge_cards, new_card, read_card

FIRST = new_card({"library_name": "transformers", "tags": ["image-captioning"]}, "# Captioner\n\nCIDEr-D 0.5")
SECOND = new_card(
    {"library_name": "transformers", "tags": ["visualgpt"], "language": "en"}, "# Captioner\n\nCIDEr-D 0.7"
)


def figure(value, split="test"):
    metric = {"type": "cider", "value": value}
    data = {"name": "scenes", "type": "scenes", "split": split}
    return {"task": {"type": "image-to-text"}, "dataset": data, "metrics": [metric]}


def index_of(*figures):
    return {"model-index": [{"name": "captioner", "results": list(figures)}]}


def values(card):
    results = read_card(card, "a card").metadata["model-index"][0]["results"]
    return {result["dataset"]["split"]: result["metrics"][0]["value"] for result in results}


def test_an_automatic_card_is_replaced():
    assert merge_cards(None, FIRST, "there") == FIRST
    assert merge_cards("\n", FIRST, "there") == FIRST
    assert merge_cards(FIRST, SECOND, "there") == SECOND


def test_text_around_the_marks_survives_three_times():
    mine = FIRST.replace("tags:", "# my licence\nlicense: mit\ntags:") + "\n## My own words\n\nTaken in Bern.\n"
    once = merge_cards(mine, SECOND, "there")
    card = read_card(once, "there")
    assert card.after == "\n## My own words\n\nTaken in Bern.\n"
    assert "CIDEr-D 0.7" in once and "CIDEr-D 0.5" not in once
    assert card.metadata == {
        "library_name": "transformers",
        "license": "mit",
        "tags": ["image-captioning", "visualgpt"],
        "language": "en",
    }
    assert merge_cards(merge_cards(once, SECOND, "there"), SECOND, "there") == once


def test_an_edited_generated_part_is_kept():
    mine = FIRST.replace("CIDEr-D 0.5", "Great captions!")
    merged = merge_cards(mine, SECOND, "there")
    assert "Great captions!" in merged and "CIDEr-D 0.7" not in merged
    assert read_card(merged, "there").metadata["language"] == "en"


def test_a_whole_card_of_a_person_keeps_every_letter_of_its_text():
    metadata = "license: mit   # as agreed\nlibrary_name: transformers\ntags: [visualgpt]\nlanguage: en\n"
    mine = f"---\n{metadata}---\r\nMine.\r\n"
    assert merge_cards(mine, SECOND, "there") == mine
    merged = merge_cards("No metadata at all", SECOND, "there")
    assert merged == front_matter(yaml.safe_load(SECOND.split("---")[1])) + "No metadata at all"


def test_a_persons_new_card_replaces_only_a_generated_one(caplog):
    mine = "# My captioner\n"
    assert merge_cards(FIRST, mine, "there").endswith(mine)
    caplog.set_level(logging.WARNING)
    assert merge_cards("# Her captioner\n", mine, "there") == "# Her captioner\n"
    assert "text that a person wrote and that differs" in caplog.text


def test_figures_of_the_same_evaluation_are_replaced():
    mine = front_matter(index_of(figure(0.1, "test"), figure(0.2, "other"))) + "Mine"
    merged = merge_cards(mine, new_card(index_of(figure(0.3, "test"), figure(0.4, "third")), "text"), "there")
    assert values(merged) == {"other": 0.2, "test": 0.3, "third": 0.4}


def test_the_empty_card_of_transformers_is_replaced():
    from huggingface_hub import ModelCard, ModelCardData

    template = str(ModelCard.from_template(ModelCardData(library_name="transformers", tags=["mine"])))
    merged = merge_cards(template, FIRST, "there")
    assert "More Information Needed" not in merged and "CIDEr-D 0.5" in merged
    assert read_card(merged, "there").metadata["tags"] == ["mine", "image-captioning"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_dashes_in_a_value_do_not_end_the_metadata(end):
    card = read_card(end.join(["---", "license: a ---", "tags: [b]", "---", "text"]), "here")
    assert card.metadata == {"license": "a ---", "tags": ["b"]} and card.before == "text"
    assert read_card("---\n---\ntext", "here").before == "text"


@pytest.mark.parametrize("broken", ["---\ntags: [a\n---\nText", "---\n- a\n---\n", "---\nmodel-index: 3\n---\n"])
def test_broken_metadata_are_named(broken):
    with pytest.raises(ValueError, match="metadata of the card README.md of a/b cannot be read: .+Correct them"):
        merge_cards(broken, FIRST, "README.md of a/b")


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\f\v\x1c\x1d\x1e\x85\u2028\u2029"))


@settings(deadline=None, max_examples=60)
@given(before=TEXT, after=TEXT)
def test_any_text_survives(before, after):
    """Text around the marks is kept by every merge, and a second merge changes nothing."""
    if before.lstrip().startswith("---"):
        before = "x" + before
    top, _, generated = FIRST.partition("<!--")
    mine = f"{top}{before}<!--{generated}{after}"
    merged = merge_cards(mine, SECOND, "there")
    assert merge_cards(merged, SECOND, "there") == merged
    if (before + after).strip():
        assert before in merged and merged.endswith(after)
        assert merged.count("CIDEr-D 0.7") == 1
