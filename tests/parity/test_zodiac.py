"""ZoDIAC's Transformer equals its released code, and the causal form its derivation."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from hf_captioners import CaptionerEnsemble
from hf_captioners.hub.convert import zodiac as converter
from hf_captioners.modeling.configuration_zodiac import ZodiacConfig
from hf_captioners.modeling.layers_intensity import RegionIntensityAttention
from hf_captioners.modeling.modeling_zodiac import ZodiacForConditionalGeneration

from .figures import FIGURES, FLOAT32_TOLERANCE, Comparison, Figures, variants
from .zodiac_code import (
    LOGPROB_TOLERANCE,
    captions_and_labels,
    compare_alone,
    compare_beam_rewards,
    compare_forward,
    compare_gradients,
    compare_greedy,
    compare_greedy_words,
    compare_searches,
    compare_self_critical,
    image_inputs,
    padded,
    pooled_numbers,
)

pytestmark = pytest.mark.parity

FAMILY = "zodiac_transformer"
OTHER = ("baseline_transformer", "unit_attention", "ensemble", "causal_design")
CAPTIONERS = [name for name in variants(FAMILY) if name.split("/")[1] not in OTHER]
# Losses that are not part of this library.
NOT_COMPARED = "loss.struct."


def build(figures: Figures, weights: dict | None = None, **fields) -> ZodiacForConditionalGeneration:
    config = converter.convert_config(figures.config)
    for name, value in fields.items():
        setattr(config, name, value)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    state = converter.convert_state_dict(weights or figures.weights, figures.config["use_bn"])
    loaded = model.load_state_dict(state, strict=False)
    assert not loaded.unexpected_keys and set(loaded.missing_keys) <= {"model.decoder.position_embedding.weight"}
    return model.eval()


@pytest.mark.parametrize("folder", CAPTIONERS)
def test_equals_released_code(folder, report_compared):
    figures = Figures.load(folder)
    comparison, model = Comparison(figures.expected), build(figures)
    with torch.no_grad():
        for part in (compare_forward, compare_alone, compare_greedy, compare_searches):
            part(comparison, figures, model)
    for with_graph in (compare_gradients, compare_self_critical, compare_beam_rewards):
        with_graph(comparison, figures, model, converter.key_map(figures.config["use_bn"]))
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    missing = sorted(name for name in set(figures.expected) - comparison.names if not name.startswith(NOT_COMPARED))
    assert not missing, f"expected tensors that nothing was compared with: {missing}"


@pytest.mark.parametrize("folder", CAPTIONERS)
@torch.no_grad()
def test_every_weight_matters(folder):
    """Moving the entries of a weight by 0.01 is noticed."""
    figures = Figures.load(folder)
    generator, model = torch.Generator().manual_seed(0), build(figures)
    captions, _ = captions_and_labels(figures)
    read = torch.cat([captions.flatten(), torch.tensor([0])]).unique()
    inputs = image_inputs(figures) | {"decoder_input_ids": captions, "output_gates": True}
    parameters = dict(model.named_parameters()) | dict(model.named_buffers())
    unnoticed, tried = [], 0
    for key in figures.weights:
        name = converter.key_map(figures.config["use_bn"])(key)
        if name is None or not parameters[name].is_floating_point():
            continue
        if name.endswith("k_proj.bias") and not model.config.gelu:
            continue  # a constant added to all scores of a query leaves the softmax as it is
        weight, tried = parameters[name], tried + 1
        before = weight.clone()
        # Up or down at random: the norms after the residuals hide a common shift. Only words that are read.
        rows = read if name.endswith("token_embedding.weight") else slice(None)
        weight[rows] += 1e-2 * torch.randn(weight[rows].shape, generator=generator).sign()
        out = model(**inputs)
        found = {"logprobs": out.logits.log_softmax(-1), "rap.tf": pooled_numbers(out)}
        if all((value - figures.expected[name]).abs().max() <= LOGPROB_TOLERANCE for name, value in found.items()):
            unnoticed.append(key)
        weight.copy_(before)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 20, f"only {tried} weights were tried"


@pytest.mark.parametrize("folder", variants(FAMILY, start="ensemble"))
@torch.no_grad()
def test_ensemble_equals_released_code(folder, report_compared):
    """The mean of the members' probabilities at every step, with the pool of the whole batch in each member."""
    config = json.loads((FIGURES / folder / "config.json").read_text())
    expected = load_file(FIGURES / folder / "expected.safetensors")
    figures = [Figures.load(f"{FAMILY}/{member.removeprefix('../')}") for member in config["members"]]
    comparison, members = Comparison(expected), [build(one) for one in figures]
    assert f"../{figures[0].name.split('/')[1]}/inputs.safetensors" == config["inputs"]
    for name, weights in config["weights"].items():
        own = {key.removeprefix(f"{name}."): value for key, value in expected.items() if key.startswith(f"{name}.")}
        part = Comparison(own)
        ensemble_figures = Figures(folder, figures[0].config, {}, figures[0].inputs, own)
        compare_greedy_words(part, ensemble_figures, CaptionerEnsemble(members, weights))
        compare_searches(part, ensemble_figures, CaptionerEnsemble(members, weights))
        comparison.compared += part.compared
        comparison.names |= {f"{name}.{key}" for key in part.names}
        comparison.differences += [f"{name}.{difference}" for difference in part.differences]
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    assert set(expected) == comparison.names


DESIGN = variants(FAMILY, start="causal_design")


@pytest.mark.parametrize("folder", DESIGN)
@torch.no_grad()
def test_equals_causal_design(folder, report_compared):
    """Pools of one caption and one image, with the weights and inputs of other folders."""
    expected = load_file(FIGURES / folder / "expected.safetensors")
    comparison = Comparison(expected)
    prefixes = sorted({name.rsplit(".", 2 if ".rap." in name or ".greedy." in name else 1)[0] for name in expected})
    for prefix in prefixes:
        variant, pool = prefix.split(".")
        figures = Figures.load(f"{FAMILY}/{variant}")
        model = build(figures, intensity_pool=pool.removeprefix("sequence_"))
        inputs, (captions, labels) = image_inputs(figures), captions_and_labels(figures)
        out = model(**inputs, decoder_input_ids=captions, output_gates=True)
        real = (
            inputs["region_mask"] if "region_mask" in inputs else torch.ones(out.encoder_last_hidden_state.shape[:2])
        )
        comparison.close(f"{prefix}.memory", out.encoder_last_hidden_state, where=real.bool())
        comparison.close(f"{prefix}.logprobs", out.logits.log_softmax(-1), atol=2e-5, where=labels != -100)
        calls = [gates[..., None] for gates in out.encoder_gates] + [
            part for gates in out.gates for part in gates.unbind(1)
        ]
        for call, pooled in enumerate(calls):
            spoken = (labels != -100)[:, None].expand(pooled.shape) if pooled.shape[-1] > 1 else None
            comparison.close(f"{prefix}.rap.{call}", pooled, atol=2e-5, where=spoken)
        ids = model.generate(**inputs, num_beams=1, max_new_tokens=figures.config["max_length"])
        comparison.equal(
            f"{prefix}.greedy.seq", padded(ids, figures.config["max_length"]), expected[f"{prefix}.greedy.seq"]
        )
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    assert set(expected) == comparison.names


SWITCHES = {
    "sigmoid": {},
    "tanh": {"intensity_gate": "tanh"},
    "none_z0": {"intensity_gate": "none", "zoneout_factor": 0.0},
    "none_z1": {"intensity_gate": "none"},
    "sigmoid_z2": {"zoneout_factor": 2.0},
    "none_z1_nogelu": {"intensity_gate": "none", "gelu": False, "pre_gelu": False},
}


@pytest.mark.parametrize("folder", variants(FAMILY, start="unit_attention"))
@torch.no_grad()
def test_equals_single_calls(folder, report_compared):
    """Single calls of the released attention, with every kind of mask and all switches of Table 4."""
    cases = json.loads((FIGURES / folder / "config.json").read_text())["cases"]
    inputs, expected = (load_file(FIGURES / folder / f"{part}.safetensors") for part in ("inputs", "expected"))
    comparison = Comparison(expected)
    for case in cases:
        name = case["name"]
        config = ZodiacConfig(intensity_pool="released", **SWITCHES[case["gate"]])
        if name.startswith("mha."):
            compare_module(comparison, name, config, case, inputs)
            continue
        width = case["H"] * case["d_k"]
        attention = RegionIntensityAttention(config, width, case["H"]).eval()
        query, past, key, value = (attention.activate(inputs[f"{name}.{part}"]) for part in ("q", "q2", "k", "v"))
        mask = inputs.get(f"{name}.mask")
        visible = torch.ones(case["B"], 1, 1, case["K"]) if mask is None else mask.float()
        attended, weights = attention.attended(query, key, value, visible)
        if case["dropout"] is not None:
            attended = attended * inputs[f"{name}.keep"].transpose(1, 2) / (1 - case["dropout"])
        sums = attention.intensities(past, value, visible)
        count = visible.sum() if mask is not None else torch.tensor(float(sums.numel() * case["K"]))
        pooled = attention.pooled_over_batch(sums, count)
        comparison.close(f"{name}.weights", weights)
        comparison.close(f"{name}.rap", pooled)
        comparison.close(f"{name}.gate", attention.gate(pooled))
        comparison.close(f"{name}.out", attention.scaled(attended, pooled).transpose(1, 2))
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    assert set(expected) == comparison.names


def compare_module(comparison: Comparison, name: str, config, case: dict, inputs: dict) -> None:
    """The module with its five projections."""
    attention = RegionIntensityAttention(config, case["d_model"], case["heads"]).eval()
    parts = (attention.q_proj, attention.p_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    for index, part in enumerate(parts):
        part.weight.copy_(inputs[f"{name}.linears.{index}.weight"])
        part.bias.copy_(inputs[f"{name}.linears.{index}.bias"])
    mask = torch.where(inputs[f"{name}.mask"].bool(), 0.0, torch.finfo(torch.float32).min)[:, None]
    out, weights, pooled = attention(inputs[f"{name}.query"], inputs[f"{name}.memory"], mask)
    comparison.close(f"{name}.out", out)
    comparison.close(f"{name}.weights", weights)
    comparison.close(f"{name}.rap", pooled.flatten()[0], atol=FLOAT32_TOLERANCE)
