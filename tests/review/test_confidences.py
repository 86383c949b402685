"""Confidence of proposed captions on the review page: where it is read, what is underlined, the order of images."""

import json
import os

import pytest
from PIL import Image

from hf_captioners.captioning.sidecars import REFUSE, SidecarFiles
from hf_captioners.data.generated_captions import record_generated, text_digest
from hf_captioners.output_files import UnsafeFileError
from hf_captioners.review.confidences import Confidences, assessed_of
from hf_captioners.review.corrections import Corrections
from hf_captioners.review.table import ReviewTable
from tests.browser import open_browser

RECORDS = (
    {
        "image": "a.png",
        "caption": "a Red circle",
        "score": -1.0,
        "confidence": 0.4,
        "words": [{"word": "red", "confidence": 0.45}, {"word": "circle", "confidence": 0.9}],
    },
    {
        "image": "b.png",
        "caption": "reddish, a red square",
        "score": -2.0,
        "confidence": 0.1,
        "words": [{"word": "red", "confidence": 0.2}, {"word": "square", "confidence": 0.3}],
    },
    {"image": "c.png", "caption": "it is", "score": -2.0, "confidence": None, "words": []},
)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png", "c.png", "d.png"):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (300, 200), "red").save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def write_captions(folder, records=RECORDS):
    """A file of captions as `hf-captioners caption --output` writes it."""
    path = folder.parent / "captions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_beside(folder, records=RECORDS):
    """Text files as `hf-captioners caption --sidecar` writes them."""
    with SidecarFiles(folder, "txt", REFUSE, {}) as files:
        files.add([record | {"image": str(folder / record["image"])} for record in records])
        files.finish()


@pytest.mark.parametrize("write", [write_captions, write_beside])
def test_captions_have_the_confidence_with_which_they_were_written(folder, write):
    table = ReviewTable(folder, write(folder))
    confidences = Confidences(table)
    assert confidences.of_images() == [0.4, 0.1, None, None]
    for number, record in enumerate(RECORDS):
        captions, source = table.captions(number)
        (assessed,) = confidences.of_captions(number, captions, source)
        assert (assessed["confidence"], assessed["words"]) == (record["confidence"], record["words"])
    assert confidences.of_captions(3, [], "none") == []


def test_captions_without_confidence_have_none(folder):
    plain = [{name: record[name] for name in ("image", "caption", "score")} for record in RECORDS]
    confidences = Confidences(ReviewTable(folder, write_captions(folder, plain)))
    assert confidences.of_images() is None and confidences.of_captions(0, ["a Red circle"], "table") == [None]


def test_what_a_person_typed_or_kept_has_no_confidence(folder):
    write_beside(folder)
    (folder / "b.txt").write_text("two squares\n")  # by hand
    record_generated(folder, {"c.txt": text_digest("it is")}, by_person=True)
    corrections = Corrections(table := ReviewTable(folder))
    corrections.keep(0, ["a Red circle"])
    confidences = Confidences(table)
    assert "c.png" not in confidences.by_name
    for number in range(3):
        shown = corrections.captions(number)
        assert confidences.of_captions(number, shown["captions"], shown["source"]) == [None]
    corrections.type(1, ["two squares or more"])
    assert confidences.of_captions(1, ["two squares or more", "another"], "draft") == [None, None]


def test_a_draft_has_the_words_of_the_proposed_caption(folder):
    confidences = Confidences(ReviewTable(folder, write_captions(folder)))
    first, second = confidences.of_captions(0, ["a Red circle, typed", "another"], "draft")
    assert first["words"] == RECORDS[0]["words"] and second is None


def test_of_several_captions_the_first_has_words():
    row = {"image": "a", "captions": ["a dog", "a cat"], "confidence": 0.5, "confidences": [0.5, None]}
    row["words"] = [{"word": "dog", "confidence": 0.5}, {"word": "wet", "confidence": None}]
    assert assessed_of(row) == {
        "a dog": {"confidence": 0.5, "words": [{"word": "dog", "confidence": 0.5}]},
        "a cat": {"confidence": None, "words": []},
    }


@pytest.mark.parametrize(
    "fault",
    [
        {"confidence": "0.5"},
        {"confidence": 7},
        {"confidence": True},
        {"confidence": float("nan")},
        {"confidences": [[], 1]},
        {"words": 3},
        {"words": [3, {"word": 4, "confidence": 0.5}, {"word": "a", "confidence": 1e9}, {"confidence": 0.5}]},
    ],
)
def test_damaged_values_are_no_confidence(folder, fault):
    row = RECORDS[0] | fault
    values = assessed_of(row)
    assert values == ({} if "words" not in fault else {"a Red circle": {"confidence": 0.4, "words": []}})
    record_generated(folder, {"a.txt": "0"}, assessed={"a.txt": row})
    record_generated(folder, {"b.txt": "0"}, assessed={"b.txt": {"caption": [3], "confidence": 0.5}})
    assert Confidences(ReviewTable(folder)).of_images() in (None, [0.4, None, None, None])


def test_a_record_outside_of_the_folder_is_not_read(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "record"
    outside.write_text("{}\n")
    os.symlink(outside, folder / ".generated_captions.jsonl")
    with pytest.raises(UnsafeFileError, match="generated_captions"):
        Confidences(ReviewTable(folder))


UNDERLINED = "return [...document.querySelectorAll('.marks mark')].map((one) => one.textContent)"
PLACES = """const [marks, field] = [document.querySelector('.marks'), document.querySelector('#captions textarea')];
const names = ['font', 'padding', 'lineHeight', 'width', 'overflowWrap', 'direction', 'textAlign', 'unicodeBidi'];
const style = (one) => names.map((name) => getComputedStyle(one)[name]);
const texts = [marks.textContent, field.value];
return [style(marks), style(field), [marks, field].map((one) => one.getBoundingClientRect().top), texts]"""


@pytest.mark.parametrize("width", [390, 1280])
def test_doubtful_words_are_underlined_and_images_ordered_by_doubt(folder, width):
    pytest.importorskip("selenium", reason="selenium belongs to the extra `test`")
    from selenium.webdriver.common.keys import Keys

    from tests.review.review_page import ReviewPage, Server, wait_for

    write_beside(folder)
    server = Server(folder)
    try:
        with open_browser(width=width, height=844, waits="none") as browser:
            page = ReviewPage(browser, server.address)
            page.open(1)
            assert browser.execute_script(UNDERLINED) == ["red", "square"], "not the beginning of reddish"
            assert page.text("source") == "(from the text file; confidence 0.10)" and not page.is_wide
            doubt = browser.execute_script("return document.querySelector('.doubt').textContent")
            assert doubt == "Doubtful: red 0.20, square 0.30"
            for text in ("reddish, a red square", "مربع red في الأعلى."):
                page.type(text)
                wait_for(lambda text=text: page.captions == [text])
                marks, field, tops, texts = browser.execute_script(PLACES)
                assert marks == field and tops[0] == tops[1] and texts == [text] * 2, "the lines lie below the words"
            assert "rtl" in field
            page.type("a red circle")
            wait_for(lambda: browser.execute_script(UNDERLINED) == ["red"])
            page.type("a red square")
            page.alt("d")
            page.press("m", Keys.ENTER)  # most doubtful first
            wait_for(lambda: page.text("place").startswith("Image 2 "))
            seen = []
            for _ in range(3):
                page.alt(Keys.ARROW_RIGHT)
                wait_for(lambda: page.number not in [1, *seen])
                seen.append(page.number)
            assert seen == [0, 2, 3], "images without confidence come last"
            page.alt("o")
            names = "return [...document.querySelectorAll('#grid span')].map((one) => one.textContent)"
            shown = ["2 · 0.10 · b.png", "1 · 0.40 · a.png", "3 · c.png", "4 · d.png"]
            wait_for(lambda: browser.execute_script(names) == shown)
            assert not page.is_wide
    finally:
        server.kill()


def test_without_confidence_there_is_no_order_by_doubt(folder):
    pytest.importorskip("selenium", reason="selenium belongs to the extra `test`")
    from tests.review.review_page import ReviewPage, Server

    server = Server(folder)
    try:
        with open_browser(width=390, height=844, waits="none") as browser:
            page = ReviewPage(browser, server.address)
            page.open(0)
            assert not page.part("orders").is_displayed() and browser.execute_script(UNDERLINED) == []
    finally:
        server.kill()
