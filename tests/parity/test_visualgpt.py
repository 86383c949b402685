"""VisualGPT equals the authors' code: every folder of figures, forward, backward, cached, and in beam search."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, GPT2Config, GPT2Model

from hf_captioners.hub.convert.visualgpt import KEY_MAP, convert_config, convert_state_dict
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration, self_resurrecting_gates
from tests.variants import slow_unless

from .figures import FIGURES, Figures, variants
from .m2_code import CodeBase, compare_all, load_figures, unnoticed_weights, unread

pytestmark = pytest.mark.parity

DECODERS = {
    "srau": {"fusion": "srau"},
    "srau_normalized": {"fusion": "srau", "normalize_srau": True},
    "plain": {"fusion": "residual"},
    "meshed": {"fusion": "meshed"},
    "aoa_cross": {"fusion": "residual", "attention_on_attention": True},
}
# The baselines of the paper's tables: the same code base with another decoder.
BASELINES = {"transformer": "gpt_block", "m2_transformer": "gpt2_meshed", "aoa_transformer": "gpt2_aoa"}
FOLDERS = variants("visualgpt")
for family, start in BASELINES.items():
    FOLDERS += variants(family, start=start)

QUICK = ("main", "masked", "tau03", "normalized_srau")
# Moving one of these cannot change any figure.
CANNOT_MATTER = {
    r".*\.k_proj\.bias": "a constant added to all scores of a query leaves the softmax as it is",
}


def build(figures: Figures):
    """Build the captioner of a folder with the authors' weights."""
    sizes = figures.config
    options = dict(DECODERS[sizes["decoder"]])
    if sizes.get("tau") is not None:
        options["srau_threshold"] = sizes["tau"]
    model = AutoModelForImageTextToText.from_config(convert_config(sizes, **options), attn_implementation="eager")
    assert type(model) is VisualGPTForConditionalGeneration
    loaded = model.load_state_dict(convert_state_dict(figures.weights), strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= {"lm_head.weight"}, loaded.missing_keys
    model.tie_weights()
    return model.eval()


CODE = CodeBase(build, convert_state_dict, KEY_MAP, self_resurrecting_gates, CANNOT_MATTER)


@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_released_code(folder, report_compared):
    figures = load_figures(folder)
    comparison = compare_all(CODE, figures)
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    missing = unread(figures, comparison)
    assert not missing, f"expected tensors that nothing was compared with: {missing}"


@pytest.mark.parametrize("folder", slow_unless(lambda folder: folder.endswith(QUICK), FOLDERS))
def test_every_weight_matters(folder):
    unnoticed, tried = unnoticed_weights(CODE, load_figures(folder))
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 20, f"only {tried} weights were tried"


@pytest.mark.parametrize("folder", [name for name in FOLDERS if (FIGURES / name / "gpt2.safetensors").is_file()])
def test_decoder_from_gpt2(folder, report_compared):
    """Started from the same GPT-2, the decoder has the weights that the released loader gives it."""
    figures = load_figures(folder)
    sizes = figures.config
    gpt2 = GPT2Model(
        GPT2Config(
            vocab_size=sizes["vocab_size"],
            n_positions=sizes["n_positions"],
            n_embd=sizes["d_model"],
            n_layer=sizes["gpt2_layers"],
            n_head=sizes["n_head"],
            bos_token_id=sizes["bos_token_id"],
            eos_token_id=sizes["eos_token_id"],
        )
    )
    gpt2.load_state_dict(load_file(FIGURES / folder / "gpt2.safetensors"))
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        gpt2, decoder_layers=sizes["decoder_layers"], region_feature_size=sizes["d_in"]
    )
    ours = model.state_dict()
    for key in sizes["parameters_taken_from_gpt2"]:
        assert torch.equal(ours[KEY_MAP(key)], figures.weights[key]), key
    report_compared(sum(figures.weights[key].numel() for key in sizes["parameters_taken_from_gpt2"]))
