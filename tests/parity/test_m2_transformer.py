"""The M2 Transformer equals the authors' code: every folder of figures, forward, backward, cached, and in search."""

import pytest
from transformers import AutoModelForImageTextToText

from hf_captioners.hub.convert.m2_transformer import KEY_MAP, convert_config, convert_state_dict
from hf_captioners.modeling.modeling_m2_transformer import M2TransformerForConditionalGeneration

from .figures import Figures, variants
from .m2_code import CodeBase, compare_all, load_figures, slow_but_first, unnoticed_weights, unread

pytestmark = pytest.mark.parity

# The ablation of VisualGPT with a meshed GPT-2 is a VisualGPT, see test_visualgpt.py.
FOLDERS = [name for name in variants("m2_transformer") if not name.endswith("/gpt2_meshed")]
CANNOT_MATTER = {
    r"model\.decoder\..*\.k_proj\.bias": "a constant added to all scores of a query leaves the softmax as it is",
}
KEY_BIAS_WITHOUT_SLOTS = {
    r"model\.encoder\..*\.k_proj\.bias": "without memory slots it is added to all scores of a query alike"
}


def build(figures: Figures):
    model = AutoModelForImageTextToText.from_config(convert_config(figures.config), attn_implementation="eager")
    assert type(model) is M2TransformerForConditionalGeneration
    loaded = model.load_state_dict(convert_state_dict(figures.weights), strict=False)
    assert not loaded.unexpected_keys and not loaded.missing_keys, loaded
    return model.eval()


def code_of(figures: Figures) -> CodeBase:
    """A bias of keys matters beside memory slots, which do not have it."""
    reasons = CANNOT_MATTER if figures.config["memory_slots"] else CANNOT_MATTER | KEY_BIAS_WITHOUT_SLOTS
    return CodeBase(build, convert_state_dict, KEY_MAP, cannot_matter=reasons)


@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_released_code(folder, report_compared):
    figures = load_figures(folder)
    comparison = compare_all(code_of(figures), figures)
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    missing = unread(figures, comparison)
    assert not missing, f"expected tensors that nothing was compared with: {missing}"


@pytest.mark.parametrize("folder", slow_but_first(FOLDERS))
def test_every_weight_matters(folder):
    figures = load_figures(folder)
    unnoticed, tried = unnoticed_weights(code_of(figures), figures)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 20, f"only {tried} weights were tried"
