"""Confidence of captioners of subwords, and of models of transformers, whose tokens are parts of words."""

from pathlib import Path

import numpy as np
import pytest

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.confidence.caption_words import caption_words, content_words
from tests.confidence.conftest import calibration_of
from tests.hub.captioner_cases import save_captioner
from tests.tiny_families import write_family

OPTIONS = {"num_beams": 3, "max_new_tokens": 16}
OWN, OTHERS = ("visualgpt",), ("blip", "git")
IMAGES = [np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8) for seed in range(4)]


@pytest.fixture(scope="module", params=[*OWN, *OTHERS])
def folder(request, once_a_run):
    """A tiny captioner with a calibration by hand."""

    def fill(place: Path) -> None:
        if request.param in OWN:
            save_captioner(request.param, place)
        else:
            write_family(place, request.param)
        calibration_of(place).save(place)

    return str(once_a_run(f"calibrated_{request.param}", fill))


def sums_by_hand(record):
    """For each content word the sum over the tokens with a letter of it, where the tokens are the caption as it is."""
    joined = "".join(record["tokens"])
    start = joined.index(record["generated_text"])
    of_letter = [score for place, token in enumerate(record["tokens"]) for score in [place] * len(token)][start:]
    sums, place, text = [], 0, record["generated_text"].lower()
    for word in content_words(text):
        place = text.index(word, place)
        tokens = set(of_letter[place : place + len(word)])
        place += len(word)
        sums.append((word, pytest.approx(sum(record["token_scores"][token] for token in tokens)), len(tokens)))
    return sums


def test_every_word_has_the_probability_of_its_tokens(folder):
    pipeline, lengths = load_pipeline(folder, device="cpu"), []
    for image in IMAGES:
        (record,) = pipeline(image, return_token_scores=True, return_scores=True, **OPTIONS)
        if record["generated_text"] not in "".join(record["tokens"]):
            continue  # the decoder moved blanks
        expected = sums_by_hand(record)
        assert [(word.word, word.logprob) for word in caption_words(record)] == [pair[:2] for pair in expected]
        lengths += [length for *_, length in expected]
    assert lengths, "no word was compared"
    assert max(lengths) > 1 or "blip" in folder, "words of several tokens"


def test_confidence_does_not_depend_on_the_batch(folder):
    captioner = CaptionBatches(folder, device="cpu", confidence="search", **OPTIONS)
    together = captioner({"image": IMAGES})
    assert together["caption"] == CaptionBatches(folder, device="cpu", **OPTIONS)({"image": IMAGES})["caption"]
    for place, image in enumerate(IMAGES):
        alone = captioner({"image": [image]})
        words = together["words"][place]
        assert [word["word"] for word in words] == content_words(together["caption"][place])
        assert [word["word"] for word in alone["words"][0]] == [word["word"] for word in words]
        values = [word["confidence"] for word in words]
        assert all(value is None or 0 < value < 1 for value in values)
        assert [word["confidence"] for word in alone["words"][0]] == pytest.approx(values, abs=2e-3)
    assert any(together["words"])
