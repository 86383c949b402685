"""VisualGPT equals the authors' code: every folder of figures, forward, backward, cached, and in beam search."""

import re
import zlib

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, GPT2Config, GPT2Model

from hf_captioners.hub.convert.visualgpt import convert_config, convert_state_dict, map_key
from hf_captioners.modeling.layers_attention import AttentionOnAttention
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration, self_resurrecting_gates
from hf_captioners.training.scst_loss import chosen_logprobs, sample_baseline, self_critical_loss

from .figures import FIGURES, Comparison, Figures, variants

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

# Moving one of these cannot change any figure.
CANNOT_MATTER = {
    r".*\.k_proj\.bias": "a constant added to all scores of a query leaves the softmax as it is",
}


def build(figures: Figures, weights: dict | None = None):
    """Build the captioner of a folder with the authors' weights."""
    sizes = figures.config
    options = dict(DECODERS[sizes["decoder"]])
    if sizes.get("tau") is not None:
        options["srau_threshold"] = sizes["tau"]
    model = AutoModelForImageTextToText.from_config(convert_config(sizes, **options), attn_implementation="eager")
    assert type(model) is VisualGPTForConditionalGeneration
    loaded = model.load_state_dict(convert_state_dict(weights or figures.weights), strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= {"lm_head.weight"}, loaded.missing_keys
    model.tie_weights()
    return model.eval()


def compare_forward(comparison: Comparison, figures: Figures, model) -> None:
    ids, levels = figures.inputs["input_ids"], figures.config["cross_levels"]
    real = ids != figures.config["pad_token_id"]
    encoded = model.model.encoder(
        region_features=figures.inputs["features"], output_attentions=True, output_hidden_states=True
    )
    comparison.close("enc.input_proj", encoded.hidden_states[0])
    comparison.close("enc.outputs", encoded.level_states)
    comparison.equal("enc.mask", ~encoded.region_mask, figures.expected["enc.mask"][:, 0, 0])
    for layer, weights in enumerate(encoded.attentions):
        comparison.close(f"attn.enc.layer{layer}", weights)
    gated_inputs = keep_gated_inputs(model)
    out = model(
        encoder_outputs=encoded,
        decoder_input_ids=ids,
        output_attentions=True,
        output_hidden_states=True,
        output_gates=True,
    )
    for layer, values in enumerate(gated_inputs):
        comparison.close(f"aoa.dec.layer{layer}.pre_glu", values, where=real)
    comparison.close("dec.hidden", out.decoder_hidden_states[-1], where=real)
    for layer, weights in enumerate(out.decoder_attentions):
        compare_queries(comparison, f"attn.dec.self.layer{layer}", weights, real)
        for index, level in enumerate(levels):
            compare_queries(
                comparison, f"attn.dec.cross.layer{layer}.level{level}", out.cross_attentions[layer][:, index], real
            )
            if figures.config["gated"]:
                compare_gates(
                    comparison, f"gate.layer{layer}.level{level}", out.gates[layer], figures.config["tau"], index, real
                )
        if layer + 1 < len(out.decoder_attentions):  # the last one is recorded after the final norm
            comparison.close(f"dec.layer{layer}.out", out.decoder_hidden_states[layer + 1], where=real)
    comparison.close("logits", out.logits, atol=1e-4, where=real)
    comparison.close("logprobs", out.logits.log_softmax(-1), atol=1e-4, where=real)


def keep_gated_inputs(model) -> list:
    """Return a list that the next forward pass fills with the inputs of the gates of attention on attention."""
    kept: list = []
    for module in model.modules():
        if isinstance(module, AttentionOnAttention):
            module.projection.register_forward_hook(lambda _, __, output: kept.append(output))
    return kept


def compare_queries(comparison: Comparison, name: str, weights, real) -> None:
    """Attention weights `[B, H, T, keys]` at the queries that are real tokens."""
    comparison.close(name, weights, where=real[:, None].expand(weights.shape[:3]))


def compare_gates(comparison: Comparison, name: str, gates, threshold, index: int, real) -> None:
    activation = getattr(gates, "activation", gates)  # meshed gates are a tensor by themselves
    comparison.close(f"{name}.alpha", activation[:, :, index], atol=1e-5, where=real)
    if f"{name}.lan" in comparison.expected:  # held before any normalisation
        language, visual = self_resurrecting_gates(activation[:, :, index], threshold)
        comparison.close(f"{name}.lan", language, atol=1e-5, where=real)
        comparison.close(f"{name}.vis", visual, atol=1e-5, where=real)


def compare_loss(comparison: Comparison, figures: Figures, model) -> None:
    ids = figures.inputs["input_ids"]
    labels = ids[:, 1:].masked_fill(ids[:, 1:] == figures.config["pad_token_id"], -100)
    model.zero_grad()
    loss = model(region_features=figures.inputs["features"], decoder_input_ids=ids[:, :-1], labels=labels).loss
    loss.backward()
    comparison.close("loss.xe", loss, atol=1e-5)
    comparison.close("loss.xe_token_count", (labels != -100).sum(), atol=0)
    compare_gradients(comparison, "gradnorm", model)


def compare_gradients(comparison: Comparison, prefix: str, model) -> None:
    """L2 norms of gradients; the tied matrix is one parameter."""
    parameters = dict(model.named_parameters())
    for name in [key for key in comparison.expected if key.startswith(f"{prefix}.")]:
        gradient = parameters[map_key(name.removeprefix(f"{prefix}."))].grad
        norm = torch.zeros(()) if gradient is None else gradient.norm()
        comparison.close(name, norm, atol=1e-6, rtol=1e-3)
    total = torch.stack([p.grad.norm() for p in parameters.values() if p.grad is not None]).norm()
    comparison.close(f"{prefix}_total", total, atol=1e-6, rtol=1e-3)


@torch.no_grad()
def compare_cached(comparison: Comparison, figures: Figures, model) -> None:
    """One token at a time, with the cache."""
    ids, cache, steps = figures.inputs["input_ids"], None, []
    real = ids != figures.config["pad_token_id"]
    encoded = model.model.encoder(region_features=figures.inputs["features"])
    for position in range(ids.shape[1]):
        out = model(
            encoder_outputs=encoded,
            decoder_input_ids=ids[:, position : position + 1],
            decoder_attention_mask=real[:, : position + 1].long(),
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        steps.append(out.logits[:, 0].log_softmax(-1))
    comparison.close("step.logprobs", torch.stack(steps, 1), atol=1e-4, where=real)


def search(figures: Figures, model, beams: int):
    """All beams of the released search."""
    return model.generate(
        region_features=figures.inputs["features"],
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=figures.config["search_max_len"],
        bookkeeping="live",
        return_dict_in_generate=True,
        output_scores=True,
    )


def up_to_end(ids, eos_token_id: int):
    """Replace tokens after the first end token of every row by -1."""
    ended = (ids == eos_token_id).cumsum(-1) - (ids == eos_token_id).long()
    return ids.masked_fill(ended > 0, -1)


def compare_search(comparison: Comparison, figures: Figures, model) -> None:
    length, eos = figures.config["search_max_len"], figures.config["eos_token_id"]
    for name, beams in (("greedy", 1), ("beam3", 3), ("beam5", 5)):
        out = search(figures, model, beams)
        expected = figures.expected[f"{name}.ids"].view(-1, length)
        ids = torch.full_like(expected, eos)
        ids[:, : out.sequences.shape[1] - 1] = out.sequences[:, 1:]  # without the begin token
        comparison.equal(f"{name}.ids", up_to_end(ids, eos), up_to_end(expected, eos))
        if beams > 1:
            found, total = out.token_logprobs, out.sequences_scores
        else:
            found = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
            found = found.where(up_to_end(out.sequences[:, 1:], eos) >= 0, 0.0)
            total = found.sum(-1)
        logprobs = torch.zeros(expected.shape)
        logprobs[:, : found.shape[1]] = found
        comparison.close(f"{name}.logprobs", logprobs, atol=1e-4)
        comparison.close(f"{name}.scores", total, atol=1e-4)


def compare_self_critical(comparison: Comparison, figures: Figures, model) -> None:
    """Beams as samples, their mean reward as baseline, log-probabilities divided by a fixed length."""
    beams, length = figures.config["scst_beam_size"], figures.config["search_max_len"]
    eos, features = figures.config["eos_token_id"], figures.inputs["features"]
    sequences = search(figures, model, beams).sequences
    targets = up_to_end(sequences[:, 1:], eos)
    model.zero_grad()
    logits = model(region_features=features, decoder_input_ids=sequences[:, :-1]).logits
    chosen = chosen_logprobs(logits.flatten(0, 1), targets.clamp(min=0).flatten()).view(-1, beams, targets.shape[1])
    rewards = figures.inputs["rewards"]
    baseline = sample_baseline("beam_mean", rewards)
    loss = self_critical_loss(chosen, (targets >= 0).view(chosen.shape), rewards - baseline, length)
    loss.backward()
    comparison.close("scst.baseline", baseline[:, :1], atol=1e-5)
    comparison.close("scst.loss", loss, atol=1e-5)
    compare_gradients(comparison, "scst.gradnorm", model)


PARTS = (compare_forward, compare_loss, compare_cached, compare_search, compare_self_critical)


def compare_all(figures: Figures, weights: dict | None = None) -> Comparison:
    comparison = Comparison(figures.expected)
    model = build(figures, weights)
    for part in PARTS:
        part(comparison, figures, model)
    return comparison


@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_released_code(folder, report_compared):
    figures = Figures.load(folder)
    comparison = compare_all(figures)
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    unread = set(figures.expected) - comparison.names - {f"dec.layer{figures.config['decoder_layers'] - 1}.out"}
    assert not unread, f"expected tensors that nothing was compared with: {sorted(unread)}"


def cannot_matter(name: str, figures: Figures) -> str | None:
    """Why moving this weight cannot change any figure; None if it must."""
    for pattern, reason in CANNOT_MATTER.items():
        if re.fullmatch(pattern, name):
            return reason
    if figures.inputs["features"].shape[1] == 1 and re.fullmatch(r".*(self_attn|crossattention)\.[qk]_proj\..*", name):
        return "with one region the softmax over regions is 1, whatever the scores"
    layer = re.match(r"model\.encoder\.layers\.(\d+)\.", name)
    if layer and int(layer[1]) > max(figures.config["cross_levels"]):
        return "the decoder reads no level this high"
    return None


def readable_entries(figures: Figures, model, key: str):
    """Entries of a weight that the loss depends on: not positions beyond the inputs, nor units that a rectifier holds
    at zero for every region, nor the key part of a joint bias."""
    name = map_key(key)
    gradient = dict(model.named_parameters())[name].grad
    gradient = gradient.T if name.endswith("crossattention.o_proj.weight") else gradient
    readable = gradient.abs() > 1e-6 * gradient.abs().max()
    if key.endswith(".attn.c_attn.bias"):
        width = readable.numel() // 3
        readable[width : 2 * width] = False
    return readable.flatten().nonzero().flatten()


def moved(figures: Figures, model, key: str) -> dict:
    """The weights with one random entry of one tensor moved by 1e-2, among those that can be read."""
    entries = readable_entries(figures, model, key)
    assert len(entries), f"the loss does not depend on {key}"
    tensor = figures.weights[key].clone()
    generator = torch.Generator().manual_seed(zlib.crc32(f"{figures.name}/{key}".encode()))
    tensor.view(-1)[entries[torch.randint(len(entries), (1,), generator=generator)]] += 1e-2
    weights = figures.weights | {key: tensor}
    tied = figures.config.get("tied", {})
    return weights | {copy: tensor for copy, source in tied.items() if source == key and copy in weights}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_weight_matters(folder):
    figures = Figures.load(folder)
    tied = figures.config.get("tied", {})
    unnoticed, tried = [], 0
    original = build(figures)
    compare_loss(Comparison(figures.expected), figures, original)  # leaves the gradients
    for key in figures.weights:
        name = map_key(key)
        if name is None or key in tied or cannot_matter(name, figures):
            continue
        comparison = Comparison(figures.expected)
        model = build(figures, moved(figures, original, key))
        compare_forward(comparison, figures, model)
        compare_loss(comparison, figures, model)
        tried += 1
        if not comparison.differences:
            unnoticed.append(key)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 20, f"only {tried} weights were tried"


@pytest.mark.parametrize("folder", [name for name in FOLDERS if (FIGURES / name / "gpt2.safetensors").is_file()])
def test_decoder_from_gpt2(folder, report_compared):
    """Started from the same GPT-2, the decoder has the weights that the released loader gives it."""
    figures = Figures.load(folder)
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
        assert torch.equal(ours[map_key(key)], figures.weights[key]), key
    report_compared(sum(figures.weights[key].numel() for key in sizes["parameters_taken_from_gpt2"]))
