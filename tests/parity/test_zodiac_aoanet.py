"""ZoDIAC in AoANet equals its released code, with and without a mask of regions."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText

from hf_captioners.hub.convert import zodiac_aoanet as converter
from hf_captioners.modeling.layers_intensity import GATES
from hf_captioners.modeling.modeling_zodiac_aoanet import ZodiacAoANetForConditionalGeneration
from hf_captioners.training.scst.loss import chosen_logprobs, token_entropy

from .figures import FIGURES, Comparison, Figures, variants
from .zodiac_code import (
    GRADIENT,
    captions_and_labels,
    compare_greedy_ids,
    compare_searches,
    image_inputs,
    new_self_critical,
    up_to_end,
)

pytestmark = pytest.mark.parity

FOLDERS = variants("zodiac_aoa")
TOLERANCE = 1e-5
NOT_COMPARED = "loss.struct."


class Differentiable:
    """A captioner whose weights are functions of the released ones, so that these get gradients."""

    def __init__(self, model, weights: dict[str, Tensor]) -> None:
        self.model, self.config = model, model.config
        self.released = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        self.weights = converter.convert_state_dict(self.released)

    def __call__(self, **inputs):
        return torch.func.functional_call(self.model, self.weights, (), inputs, strict=True)

    def norms(self, loss: Tensor, names: list[str]) -> Tensor:
        """Return the norms of the gradients of released weights, 0 where the loss does not reach them."""
        found = torch.autograd.grad(
            loss, [self.released[name] for name in names], allow_unused=True, retain_graph=True
        )
        return torch.stack([torch.zeros(()) if grad is None else grad.norm() for grad in found])


def build(figures: Figures) -> ZodiacAoANetForConditionalGeneration:
    options, attention = dict(figures.config), figures.config["attention"]
    names = {"gate": "intensity_gate"}
    config = converter.convert_config(
        options, figures.weights, {names.get(name, name): value for name, value in attention.items()}
    )
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    model.load_state_dict(converter.convert_state_dict(figures.weights))
    return model.eval()


def steps_run(figures: Figures) -> int:
    """The released loop stops before the first step that no caption has a word for."""
    captions, _ = captions_and_labels(figures)
    spoken = [index for index in range(captions.shape[1]) if index == 0 or captions[:, index].any()]
    return len(spoken)


def compare_forward(comparison: Comparison, figures: Figures, model) -> None:
    captions, labels = captions_and_labels(figures)
    inputs, steps = image_inputs(figures), steps_run(figures)
    gate = GATES[model.config.intensity_gate]
    with torch.no_grad():
        encoded = model.get_encoder()(**inputs, output_attentions=True, output_gates=True)
        out = model(
            encoder_outputs=encoded, decoder_input_ids=captions[:, :steps], output_attentions=True, output_gates=True
        )
    comparison.close("refined", encoded.last_hidden_state, where=visible(inputs, encoded.last_hidden_state))
    comparison.close("mean_feats", encoded.global_state, atol=TOLERANCE)
    prepared = encoded.level_states.flip(1).transpose(1, 2).flatten(2)  # values, keys
    comparison.close("p_att", prepared, where=visible(inputs, prepared))
    if encoded.gates:
        pooled = torch.stack([gates[0, 0] for gates in encoded.gates])
        comparison.close("rap.refiner", pooled, atol=TOLERANCE)
        comparison.close("gate.refiner", gate(pooled), atol=TOLERANCE)
        for layer in (0, len(encoded.attentions) - 1):
            comparison.close(f"map.refiner.{layer}", encoded.attentions[layer])
    pooled = out.gates[0].attention[0, :, 0]
    comparison.close("rap.steps", pooled, atol=TOLERANCE)
    comparison.close("gate.steps", gate(pooled), atol=TOLERANCE)
    comparison.close("map.steps", out.cross_attentions[0])
    logprobs = torch.zeros_like(figures.expected["logprobs"])
    logprobs[:, :steps] = out.logits.log_softmax(-1)
    comparison.close("logprobs", logprobs, atol=TOLERANCE)


def visible(inputs: dict[str, Tensor], states: Tensor) -> Tensor | slice:
    return inputs["region_mask"][:, : states.shape[1]] if "region_mask" in inputs else slice(None)


def compare_alone(comparison: Comparison, figures: Figures, model) -> None:
    """Every caption as a batch of one; the released loop then stops at its own end."""
    captions, _ = captions_and_labels(figures)
    inputs = image_inputs(figures)
    per_image, found = len(captions) // len(inputs["region_features"]), []
    for index, caption in enumerate(captions):
        image = {name: value[index // per_image : index // per_image + 1] for name, value in inputs.items()}
        steps = int((caption != 0).nonzero().max()) + 1
        with torch.no_grad():
            logprobs = model(**image, decoder_input_ids=caption[None, :steps]).logits.log_softmax(-1)
        found.append(torch.nn.functional.pad(logprobs, (0, 0, 0, len(caption) - steps)))
    comparison.close("alone.logprobs", torch.cat(found), atol=TOLERANCE)


def compare_greedy_states(comparison: Comparison, figures: Figures, model) -> None:
    """Pooled intensities and states of the decoding of the expected ids."""
    if "greedy.rap.steps" not in figures.expected:
        return
    found = figures.expected["greedy.seq"].long()
    tokens, inputs = torch.cat((torch.zeros_like(found[:, :1]), found), dim=1), image_inputs(figures)
    pooled, states, cache = [], [], None
    with torch.no_grad():
        encoded = model.get_encoder()(**inputs)
        for step in range(len(figures.expected["greedy.rap.steps"])):
            out = model(
                encoder_outputs=encoded,
                decoder_input_ids=tokens[:, step : step + 1],
                cache=cache,
                use_cache=True,
                output_gates=True,
            )
            cache = out.cache
            pooled.append(out.gates[0].attention[0, 0, 0])
            states.append(dict(cache.state(0)))
    comparison.close("greedy.rap.steps", torch.stack(pooled), atol=TOLERANCE)
    if "greedy.state_h" not in figures.expected:
        return
    steps = len(figures.expected["greedy.state_h"])
    hidden = torch.stack([torch.stack((state["hidden"], state["context"])) for state in states[:steps]])
    comparison.close("greedy.state_h", hidden, atol=TOLERANCE)
    expected = figures.expected["greedy.state_c"]
    memory = [state.get("context_memory", torch.zeros_like(state["memory"])) for state in states[:steps]]
    found = torch.stack([torch.stack((s["memory"], m)) for s, m in zip(states, memory, strict=False)])
    where = torch.ones_like(expected, dtype=torch.bool)
    where[:, 1] = model.config.decoder_type == "lstm"  # other contexts have no memory
    comparison.close("greedy.state_c", found, atol=TOLERANCE, where=where)


def compare_losses(comparison: Comparison, figures: Figures, model) -> None:
    """Losses and the norms of their gradients under the released names."""
    captioner, (captions, labels) = Differentiable(model, figures.weights), captions_and_labels(figures)
    steps, names = steps_run(figures), figures.config["parameter_order"]
    inputs = image_inputs(figures) | {"decoder_input_ids": captions[:, :steps], "labels": labels[:, :steps]}
    for name, smoothing in {"xe": 0.0, "ls0.2": 0.2}.items():
        model.config.label_smoothing = smoothing
        loss = captioner(**inputs).loss
        comparison.close(f"loss.{name}", loss, atol=TOLERANCE)
        if f"gradnorm.{name}" in figures.expected:
            comparison.close(f"gradnorm.{name}", captioner.norms(loss, names), **GRADIENT)
    model.config.label_smoothing = 0.0
    if "sc.token_logprob" in figures.expected:
        compare_rewards(comparison, figures, captioner, names)


def compare_rewards(comparison: Comparison, figures: Figures, captioner: Differentiable, names: list[str]) -> None:
    tokens, scores = figures.inputs["sc.seq"].long(), figures.inputs["sc.scores"]
    begun = torch.cat((torch.zeros_like(tokens[:, :1]), tokens[:, :-1]), dim=1)
    logits = captioner(**image_inputs(figures), decoder_input_ids=begun).logits
    running = torch.cat((torch.ones(1), tokens.any(0)[:-1].float()))  # zeros after all have ended
    logprobs = chosen_logprobs(logits.flatten(0, 1), tokens.flatten()).view(tokens.shape) * running
    entropies = token_entropy(logits.flatten(0, 1)).view(tokens.shape) * running
    comparison.close("sc.token_logprob", logprobs, atol=TOLERANCE)
    comparison.close("sc.entropy", entropies, atol=2 * TOLERANCE)
    real = up_to_end(tokens)
    plain = -(logprobs * figures.inputs["sc.reward"] * real).sum() / real.sum()
    comparison.close("loss.reward", plain, atol=TOLERANCE)
    loss = new_self_critical(logprobs, tokens, scores)
    comparison.close("loss.struct.new_self_critical", loss, atol=TOLERANCE)
    comparison.close("gradnorm.nsc", captioner.norms(loss, names), **GRADIENT)


def with_masks_of_ones(folder: str) -> list[Figures]:
    """Return the figures of a folder, and those of a mask of ones where it has them."""
    figures = Figures.load(folder)
    path = FIGURES / folder / "expected_onesmask.safetensors"
    if not path.is_file():
        return [figures]
    ones = {"att_masks": torch.ones(figures.inputs["att_feats"].shape[:2])}
    return [figures, replace(figures, inputs=figures.inputs | ones, expected=load_file(path))]


# Moving these cannot change any figure.
CANNOT_MATTER = ("num_batches_tracked",)


@pytest.mark.parametrize("folder", FOLDERS)
@torch.no_grad()
def test_every_weight_matters(folder):
    """Moving the entries of a weight by 0.01 is noticed."""
    figures = Figures.load(folder)
    generator, captions = torch.Generator().manual_seed(0), captions_and_labels(figures)[0]
    inputs, steps = image_inputs(figures), steps_run(figures)
    inputs |= {"decoder_input_ids": captions[:, :steps], "output_gates": True}
    expected = figures.expected["logprobs"][:, :steps]
    model, unnoticed, tried = build(figures), [], 0
    for key, weight in figures.weights.items():
        if key.endswith(CANNOT_MATTER):
            continue
        moved, tried = weight + 1e-2 * torch.randn(weight.shape, generator=generator).sign(), tried + 1
        model.load_state_dict(converter.convert_state_dict(figures.weights | {key: moved}))
        out = model(**inputs)
        pooled = {"rap.steps": out.gates[0].attention[0, :, 0]}
        if out.encoder_gates:
            pooled["rap.refiner"] = torch.stack([gates[0, 0] for gates in out.encoder_gates])
        # Gates may be saturated: their intensities, which hardly round, tell more.
        noticed = [
            (found - figures.expected[name]).abs().max() > 1e-6 * figures.expected[name].abs().max().clamp(min=1)
            for name, found in pooled.items()
        ]
        if not any(noticed) and (out.logits.log_softmax(-1) - expected).abs().max() <= TOLERANCE:
            unnoticed.append(key)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 15, f"only {tried} weights were tried"


@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_released_code(folder, report_compared):
    for figures in with_masks_of_ones(folder):
        comparison, model = Comparison(figures.expected), build(figures)
        compare_losses(comparison, figures, model)
        compare_forward(comparison, figures, model)
        compare_alone(comparison, figures, model)
        compare_greedy_states(comparison, figures, model)
        compare_greedy_ids(comparison, figures, model)
        compare_searches(comparison, figures, model)
        report_compared(comparison.compared)
        assert not comparison.differences, "\n".join(comparison.differences)
        missing = sorted(n for n in set(figures.expected) - comparison.names if not n.startswith(NOT_COMPARED))
        assert not missing, f"expected tensors that nothing was compared with: {missing}"
