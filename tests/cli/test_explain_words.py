"""`hf-captioners explain`: the intensity of each word (ZoDIAC), and attributes and gate (Entangled Transformer)."""

import numpy as np
import pytest
import torch

from hf_captioners.cli import main
from hf_captioners.explain.attributes import draw_attributes
from hf_captioners.explain.drawing import draw_attention
from hf_captioners.explain.explanation import explain_caption, load_explainable
from hf_captioners.explain.page import render_page
from hf_captioners.explain.panels import scale_of
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
        assert ((explanation.gates["attention gate"] > 0) & (explanation.gates["attention gate"] < 1)).all()
    else:
        expected = gate[0, 1].mean(0)
        assert explanation.gates == {}
    words = len(explanation.words)
    np.testing.assert_allclose(explanation.intensities, expected[:words].detach(), atol=1e-5)
    assert (np.ptp(explanation.intensities) > 0) == (kind != "released"), "that pool has one number for all words"
    assert explanation.attributes is None
    low, high = scale_of(explanation.intensities)
    bars = [patch for axes in draw_attention(explanation).axes for patch in axes.patches if patch.get_gid() == "value"]
    lengths = [bar.get_width() for bar in bars[len(explanation.gates) :: 1 + len(explanation.gates)]]
    np.testing.assert_allclose(lengths, 0.82 * np.abs(explanation.intensities) / (high - low), atol=1e-6)
    assert f"intensity, {low:g} to {high:g}" in render_page({"a": explanation})
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
    share = explanation.gates["share of the regions"]
    np.testing.assert_allclose(share, outputs.gates[-1][0].mean(-1)[:words].detach(), atol=1e-5)
    attributes, encoded = explanation.attributes, model.get_encoder()(**inputs)
    assert attributes.weights.shape == (words, len(attributes.words))
    np.testing.assert_allclose(attributes.weights.sum(1), 1, atol=1e-5)
    assert (np.diff(attributes.weights.sum(0)) <= 1e-6).all()
    known = dict(zip(encoded.attribute_ids[0].tolist(), encoded.attribute_probabilities[0].tolist(), strict=True))
    tokenizer = load_explainable(explainable("eta"))[1].tokenizer
    found = [known[token] for token in tokenizer.convert_tokens_to_ids(attributes.words)]
    np.testing.assert_allclose(attributes.probabilities, found, atol=1e-6)
    cells = [axes.images[0].get_array() for axes in draw_attributes(explanation).axes if axes.images]
    assert len(cells) == 1
    np.testing.assert_allclose(cells[0], attributes.weights, atol=1e-6)
    page = render_page({"a": explanation})
    assert all(f"<th><bdi>{word}</bdi></th>" in page for word in attributes.words)
    assert page.count("<td style") == words * len(attributes.words)
    assert explanation.intensities is None


def test_given_attributes(explainable, images, scenes, tmp_path, capsys):
    """They take the place of detected ones; a captioner of attributes alone has no drawing of regions."""
    folder, image = explainable("semantic_only"), str(images / "scene_000.png")
    given = scenes[0]["captions"][0].lower().rstrip(".").split()[:2]
    explanation, *_ = explained(folder, images, scenes, attributes=given)
    assert sorted(explanation.attributes.words) == sorted(given) and explanation.attributes.probabilities is None
    assert explanation.maps.shape == (len(explanation.words), 0) and explanation.gates == {}
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
