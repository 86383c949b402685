"""The AoA Transformer equals the baseline of VisualGPT's code base: forward, backward, cached, and in search."""

import pytest
from transformers import AutoModelForImageTextToText

from hf_captioners.hub.convert.aoa_transformer import KEY_MAP, convert_config, convert_state_dict
from hf_captioners.modeling.modeling_aoa_transformer import AoATransformerForConditionalGeneration

from .figures import Comparison, Figures, variants
from .m2_code import CodeBase, compare_all, gated_inputs, load_figures, slow_but_first, unnoticed_weights, unread

pytestmark = pytest.mark.parity

# The ablation of VisualGPT with attention on attention is a VisualGPT, see test_visualgpt.py.
FOLDERS = [name for name in variants("aoa_transformer") if not name.endswith("/gpt2_aoa")]
CANNOT_MATTER = {
    r".*\.k_proj\.bias": "a constant added to all scores of a query leaves the softmax as it is",
}


def build(figures: Figures):
    model = AutoModelForImageTextToText.from_config(convert_config(figures.config), attn_implementation="eager")
    assert type(model) is AoATransformerForConditionalGeneration
    loaded = model.load_state_dict(convert_state_dict(figures.weights), strict=False)
    assert not loaded.unexpected_keys and set(loaded.missing_keys) <= {"lm_head.weight"}, loaded
    model.tie_weights()
    return model.eval()


CODE = CodeBase(build, convert_state_dict, KEY_MAP, cannot_matter=CANNOT_MATTER)


def compare_encoder_gates(comparison: Comparison, figures: Figures, model) -> None:
    """The inputs of the gates in the encoder; those of the decoder are compared with the others."""
    with gated_inputs(model.model.encoder) as kept:
        model.model.encoder(region_features=figures.inputs["features"])
    for layer, values in enumerate(kept):
        comparison.close(f"aoa.enc.layer{layer}.pre_glu", values)


@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_released_code(folder, report_compared):
    figures = load_figures(folder)
    comparison = compare_all(CODE, figures)
    compare_encoder_gates(comparison, figures, build(figures))
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    missing = unread(figures, comparison)
    assert not missing, f"expected tensors that nothing was compared with: {missing}"


@pytest.mark.parametrize("folder", slow_but_first(FOLDERS))
def test_every_weight_matters(folder):
    unnoticed, tried = unnoticed_weights(CODE, load_figures(folder))
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 20, f"only {tried} weights were tried"
