"""AoANet equals the authors' code, in float64 and float32: forward, three losses and their gradients, cached steps and
every search."""

import re

import pytest
import torch

from hf_captioners.hub.convert import aoanet as converter
from hf_captioners.modeling.modeling_aoanet import AoANetForConditionalGeneration

from .attention_lstm import (
    Case,
    compare_encoder,
    compare_forward,
    compare_losses,
    compare_search,
    compare_steps,
    finish,
    moved,
    precisions,
    time_first,
)
from .figures import variants

pytestmark = pytest.mark.parity

FOLDERS = variants("aoanet")
# Moving these cannot change any figure.
CANNOT_MATTER = {
    r"core\.attention\.alpha_net\.bias": "a constant added to all scores of a step leaves the softmax as it is",
    r"refiner\.layers\.\d+\.self_attn\.linears\.1\.bias": "the same, for all keys of a query",
    r".*\.num_batches_tracked": "counts steps of training",
}


def compare_keys(case: Case) -> None:
    """Encoder outputs; keys and values in the order of the released matrix."""
    encoded = compare_encoder(case)
    prepared = encoded.level_states.flip(1).transpose(1, 2).flatten(2)  # values, keys
    if case.model.config.attention_type == "additive":
        query_bias = case.weights["core.attention.h2att.bias"].detach()
        prepared = prepared - query_bias  # it belongs to the keys here
    visible = slice(None) if encoded.region_mask is None else encoded.region_mask
    case.close("prep.p_att_feats", prepared, where=visible)


def compare_maps(case: Case) -> None:
    """Attention maps of the decoder; additive ones also before padding is masked."""
    out = compare_forward(case)
    steps = case.figures.config["decoder_steps_run"]
    weights, real = time_first(out.cross_attentions[0].movedim(-2, 1), steps), time_first(case.real, steps)
    compare_steps(case)
    if case.model.config.attention_type == "dot":
        case.close("dec_attn", weights, where=real[..., None].expand(weights.shape[:3]))
        return
    case.close("dec_attn_masked", weights, where=real)
    # Before padding is masked, its share depends on what the encoder computes at padding: only ratios can be compared.
    visible = case.images["region_mask"].float()
    unmasked = case.figures.expected["dec_attn"] * visible
    case.comparison.expected |= {"dec_attn": unmasked / unmasked.sum(-1, keepdim=True)}
    case.close("dec_attn", weights, where=real)


@precisions
@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_released_code(folder, precision, report_compared):
    case = Case(folder, precision, converter)
    assert type(case.model) is AoANetForConditionalGeneration
    for compare in (compare_losses, compare_keys, compare_maps, compare_search):
        compare(case)
    finish(case, report_compared)


def cannot_matter(name: str, case: Case) -> str | None:
    """Why moving this weight cannot change any figure; None if it must."""
    for pattern, reason in CANNOT_MATTER.items():
        if re.fullmatch(pattern, name):
            return reason
    return None


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_weight_matters(folder):
    original = Case(folder, "float64", converter)
    compare_losses(original)
    unnoticed, tried = [], 0
    for name in original.weights:
        if cannot_matter(name, original):
            continue
        case = Case(folder, "float64", converter)
        case.gradients = original.gradients
        if case.weights[name].requires_grad:
            moved(case, name, tried)
        else:
            with torch.no_grad():
                case.weights[name].view(-1)[0] += 1e-2
            case.model = case.build()
        for compare in (compare_keys, compare_maps):
            if not case.comparison.differences:
                compare(case)
        tried += 1
        if not case.comparison.differences:
            unnoticed.append(name)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 15, f"only {tried} weights were tried"
