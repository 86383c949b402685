"""Explanations of a tiny captioner of every architecture: arrays, figures and the page."""

import io

import numpy as np
import pytest
from PIL import Image

from hf_captioners.architectures import ARCHITECTURES
from hf_captioners.explain.attributes import draw_attributes
from hf_captioners.explain.drawing import draw_attention
from hf_captioners.explain.explanation import explain_caption
from hf_captioners.explain.graph import draw_graph
from hf_captioners.explain.page import render_page
from tests.hub.captioner_cases import case_of

GATES = {
    "visualgpt": {"visual gate", "language gate"},
    "show_attend_tell": {"visual gate"},
    "m2_transformer": {"gate of level 1", "gate of level 2"},
    "aoa_transformer": {"attention gate"},
    "aoanet": {"attention gate"},
    "zodiac_aoanet": {"attention gate"},
    "image_transformer": {"attention gate"},
    "eta": {"share of the regions"},
}


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_explanation(name):
    case = case_of(name)
    model, processor = case.make_model(attn_implementation="eager"), case.make_processor()
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    explanation = explain_caption(model, processor, Image.fromarray(noise), "a dog on the grass")
    count = len(explanation.words)
    assert explanation.caption == "a dog on the grass"
    assert explanation.maps.shape == (count, len(explanation.boxes))
    np.testing.assert_allclose(explanation.maps.sum(1), 1, atol=1e-4)
    assert set(explanation.gates) == GATES.get(name, set()), "gates of the architecture"
    for values in explanation.gates.values():
        assert values.shape == (count,) and ((values >= 0) & (values <= 1)).all()
    assert (explanation.intensities is not None) == (name in ("zodiac", "zodiac_aoanet"))
    assert (explanation.graph is not None) == (name == "image_transformer")
    assert (explanation.attributes is not None) == (name == "eta")
    draw_attention(explanation).savefig(io.BytesIO(), format="png", dpi=40)
    if explanation.graph is not None:
        draw_graph(explanation).savefig(io.BytesIO(), format="svg")
    if explanation.attributes is not None:
        draw_attributes(explanation).savefig(io.BytesIO(), format="svg")
    page = render_page({name: explanation})
    assert page.count("<figcaption") == count + 1
    assert all(gate in page for gate in explanation.gates)
