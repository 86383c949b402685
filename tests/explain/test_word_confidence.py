"""Words of explanations with the colour of their confidence."""

import re

import pytest

from hf_captioners.captioning.batches import CaptionBatches
from hf_captioners.cli import main
from hf_captioners.confidence.calibration import NotCalibratedError
from hf_captioners.explain.drawing import draw_attention
from hf_captioners.explain.explanation import explain_caption, load_explainable
from hf_captioners.explain.panels import confidence_colour
from hf_captioners.explain.word_confidence import ExplainedConfidence, confidences_of, with_confidence
from tests.browser import look_at, open_browser
from tests.cli.conftest import captioner, images, language_model, offline, scenes, vision_model  # noqa: F401
from tests.confidence.conftest import calibrated  # noqa: F401


@pytest.mark.parametrize(
    ("caption", "assessed", "expected"),
    [
        ("a red bike", [("red", 0.2), ("bike", 0.9)], [None, 0.2, 0.9]),
        ("A T-shirt-clad man.", [("t-shirt-clad", 0.4), ("man", 0.7)], [None, 0.4, 0.7]),
        ("dog dog", [("dog", 0.1), ("dog", 0.3)], [0.1, 0.3]),
        ("black/white dog", [("black", 0.6), ("white", 0.5), ("dog", 0.9)], [0.5, 0.9]),
        ("on the way", [("way", None)], [None, None, None]),
        ("", [], []),
    ],
)
def test_words_have_the_confidence_of_their_content_words(caption, assessed, expected):
    values = [{"word": word, "confidence": confidence} for word, confidence in assessed]
    assert confidences_of(caption.split(), values) == expected


def test_colours_go_from_orange_over_grey_to_blue():
    shades = [[int(confidence_colour(share)[place : place + 2], 16) for place in (1, 3, 5)] for share in (0, 0.5, 1)]
    assert shades[0][0] > shades[0][2] + 50 and shades[2][2] > shades[2][0] + 50
    assert max(shades[1]) - min(shades[1]) < 4
    assert confidence_colour(None) is None


def test_an_explanation_has_the_confidence_of_the_pipeline(calibrated, images, tmp_path):  # noqa: F811
    image = images / "scene_000.png"
    record = CaptionBatches(calibrated, device="cpu", confidence="search")({"image": [str(image)]})
    model, processor = load_explainable(calibrated)
    found = ExplainedConfidence(model, processor).caption(image)
    explanation = with_confidence(explain_caption(model, processor, image, found["generated_text"]), found)
    assert explanation.caption == record["caption"][0] and explanation.confidence == record["confidence"][0]
    confidences = [word["confidence"] for word in record["words"][0]]
    assert [value for value in explanation.confidences if value is not None] == confidences
    titles = {axes.get_title("left") for axes in draw_attention(explanation).axes}
    assert {
        f"{word} {value:.2f}" for word, value in zip(explanation.words, explanation.confidences, strict=True) if value
    } <= titles


def test_the_page_names_and_colours_what_is_doubtful(calibrated, images, tmp_path, capsys):  # noqa: F811
    image, page = str(images / "scene_000.png"), tmp_path / "page.html"
    assert main(["explain", image, "--model", calibrated, "--confidence", "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    record = CaptionBatches(calibrated, device="cpu", confidence="search")({"image": [image]})
    for word in record["words"][0]:
        shade = f'style="background: {confidence_colour(word["confidence"])}"'
        assert re.search(rf"{shade}[^>]*>{word['word']} <small>{word['confidence']:.2f}<", text, re.IGNORECASE)
    with open_browser(390) as browser:
        seen = look_at(browser, page)
        assert f"that they use all of them: {record['confidence'][0]:.2f}" in seen
    assert main(["explain", image, "--model", calibrated, "--output", str(page), "--overwrite"]) == 0
    assert "Confidence of a word" not in page.read_text(encoding="utf-8")


def test_without_calibration_there_is_no_colour(captioner, images, capsys):  # noqa: F811
    with pytest.raises(NotCalibratedError, match="calibrate"):
        ExplainedConfidence(*load_explainable(str(captioner)))
    assert main(["explain", str(images / "scene_000.png"), "--model", str(captioner), "--confidence"]) != 0
    assert "hf-captioners calibrate" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--caption", "a dog"], ["--attributes", "dog"]])
def test_captions_of_others_have_no_confidence(images, capsys, more):  # noqa: F811
    status = main(["explain", str(images / "scene_000.png"), "--confidence", *more])
    assert status != 0 and "leave out `--" in capsys.readouterr().err
