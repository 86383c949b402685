"""`hf-captioners explain`: the intensity of each word (ZoDIAC), and attributes and gate (Entangled Transformer)."""

import numpy as np
import pytest
import torch
from PIL import Image

from hf_captioners.cli import main
from hf_captioners.explain.attributes import CELL_HEIGHT, HEAD, draw_attributes
from hf_captioners.explain.drawing import BAR, GAP, INTENSITY, LABEL, TILE, draw_attention, scale_of
from hf_captioners.explain.explanation import explain_caption, load_explainable
from hf_captioners.training.starting import ModelArguments, start_captioner

TRANSFORMER = ["hidden_size=16", "num_attention_heads=2", "ffn_dim=16", "encoder_layers=1", "decoder_layers=1"]
RECURRENT = ["embedding_size=16", "hidden_size=16", "num_heads=2", "refiner_layers=1"]
KINDS = {
    "zodiac": TRANSFORMER,
    "released": [*TRANSFORMER, "intensity_pool=released"],
    "zodiac_aoanet": RECURRENT,
    "eta": TRANSFORMER,
    "semantic_only": [*TRANSFORMER, "fusion=semantic_only"],
    "visual_only": [*TRANSFORMER, "fusion=visual_only"],
}
ARCHITECTURES = {"released": "zodiac", "semantic_only": "eta", "visual_only": "eta"}


@pytest.fixture(scope="module")
def explainable(scenes, vision_model, attribute_detector, tmp_path_factory):
    """Return the folder of an untrained captioner of one of the kinds."""
    captions = [caption for captions in scenes["captions"] for caption in captions]

    def build(kind):
        folder = tmp_path_factory.getbasetemp() / f"explainable_{kind}"
        if not folder.exists():
            architecture = ARCHITECTURES.get(kind, kind)
            more = {"attribute_detector": attribute_detector} if architecture == "eta" else {}
            parts = {"vision_model": vision_model, "image_size": 32, "min_word_count": 1, **more}
            torch.manual_seed(3)
            start = ModelArguments(architecture=architecture, model_config=KINDS[kind], **parts)
            model, processor = start_captioner(start, captions)
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
        return str(folder)

    return build


def explained(folder, images, scenes, **options):
    """Explain the first caption of the first image; return the explanation and the captioner's own outputs."""
    model, processor = load_explainable(folder)
    caption = " ".join(scenes[0]["captions"][0].lower().rstrip(".").split())
    explanation = explain_caption(model, processor, images / "scene_000.png", caption, **options)
    assert explanation.caption == caption
    inputs = processor(images=str(images / "scene_000.png"), return_tensors="pt")
    labels = processor(text_target=caption, return_tensors="pt")["labels"]
    start = model.prepare_decoder_input_ids_from_labels(labels)
    return explanation, model(**inputs, decoder_input_ids=start, output_gates=True), model, inputs


@pytest.mark.parametrize("kind", ["zodiac", "released", "zodiac_aoanet"])
def test_intensities(kind, explainable, images, scenes):
    """The pooled intensities of the attention to regions, mean over heads, with a bar and a scale."""
    explanation, outputs, *_ = explained(explainable(kind), images, scenes)
    gate = outputs.gates[-1]
    if kind == "zodiac_aoanet":
        expected = gate.attention[0].mean(-1)
        assert ((explanation.gates > 0) & (explanation.gates < 1)).all()
    else:
        expected = gate[0, 1].mean(0)
        assert explanation.gates is None
    words = len(explanation.words)
    np.testing.assert_allclose(explanation.intensities, expected[:words].detach(), atol=1e-5)
    assert (np.ptp(explanation.intensities) > 0) == (kind != "released"), "that pool has one number for all words"
    assert explanation.attributes is None
    sheet = draw_attention(explanation)
    rows = -(-(1 + words) // 5)
    assert sheet.size == (5 * (TILE + GAP) + GAP, rows * (TILE + LABEL + BAR + GAP) + GAP)
    line = np.asarray(sheet)[GAP + LABEL - 2]
    orange = (line == np.array(Image.new("RGB", (1, 1), INTENSITY).getpixel((0, 0)))).all(-1)
    low, high = scale_of(explanation.intensities)
    for tile in range(4):
        left = GAP + (tile + 1) * (TILE + GAP)
        drawn = orange[left : left + TILE].sum()
        assert abs(drawn - (TILE - 1) * abs(explanation.intensities[tile]) / (high - low)) < 2
    assert not orange[GAP : GAP + TILE].any(), "the first tile has the scale"
    with pytest.raises(ValueError, match="reads no attributes"):
        draw_attributes(explanation)


def test_scales_hold_their_values():
    assert scale_of(np.array([0.03, 0.21])) == (0, 0.5)
    assert scale_of(np.array([-0.02, 0.1])) == (-0.02, pytest.approx(0.1))
    assert scale_of(np.array([7.0])) == (0, 10)
    assert scale_of(np.array([]))[1] > 0


def test_attributes_and_gate(explainable, images, scenes):
    """Detected attributes with their probabilities, those with the largest weights first, and the visual share."""
    explanation, outputs, model, inputs = explained(explainable("eta"), images, scenes)
    words = len(explanation.words)
    np.testing.assert_allclose(explanation.gates, outputs.gates[-1][0].mean(-1)[:words].detach(), atol=1e-5)
    attributes, encoded = explanation.attributes, model.get_encoder()(**inputs)
    assert attributes.weights.shape == (words, len(attributes.words))
    np.testing.assert_allclose(attributes.weights.sum(1), 1, atol=1e-5)
    assert (np.diff(attributes.weights.sum(0)) <= 1e-6).all()
    known = dict(zip(encoded.attribute_ids[0].tolist(), encoded.attribute_probabilities[0].tolist(), strict=True))
    tokenizer = load_explainable(explainable("eta"))[1].tokenizer
    found = [known[token] for token in tokenizer.convert_tokens_to_ids(attributes.words)]
    np.testing.assert_allclose(attributes.probabilities, found, atol=1e-6)
    sheet = draw_attributes(explanation)
    assert sheet.height == HEAD + words * CELL_HEIGHT + GAP
    assert explanation.intensities is None


def test_given_attributes(explainable, images, scenes, tmp_path, capsys):
    """They take the place of detected ones; a captioner of attributes alone has no drawing of regions."""
    folder, image = explainable("semantic_only"), str(images / "scene_000.png")
    given = scenes[0]["captions"][0].lower().rstrip(".").split()[:2]
    explanation, *_ = explained(folder, images, scenes, attributes=given)
    assert sorted(explanation.attributes.words) == sorted(given) and explanation.attributes.probabilities is None
    assert explanation.maps.shape == (len(explanation.words), 0) and explanation.gates is None
    with pytest.raises(ValueError, match="attends to no regions"):
        draw_attention(explanation)
    output = tmp_path / "a.attention.png"
    typed = ["explain", image, "--model", folder, "--attributes", *given, "--output", str(output)]
    assert main(typed) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"Wrote {tmp_path / 'a.attributes.png'}."]
    assert not output.exists()
    assert main(typed) == 2
    assert "a.attributes.png exists. Pass --overwrite" in capsys.readouterr().err
    typed = ["explain", image, "--model", explainable("visual_only"), "--output", str(tmp_path / "b.png")]
    assert main([*typed, "--attributes", "dog"]) == 2
    assert "ETAForConditionalGeneration, which reads no attributes" in capsys.readouterr().err
    assert main(typed) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"Wrote {tmp_path / 'b.png'}."]
