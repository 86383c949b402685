"""Comparisons with figures of the M2 code and of the code bases built on it, whose folders have one layout.

A test gives its `CodeBase`, then calls `compare_all` and `unnoticed_weights` for each of its folders.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from hf_captioners.modeling.layers_attention import AttentionOnAttention
from hf_captioners.training.scst.loss import chosen_logprobs, sample_baseline, self_critical_loss

from .figures import Comparison, Figures


def thresholded(activation: Any, threshold: float) -> tuple[Any, Any]:
    """Return the two gates of a sigmoid; only VisualGPT has them."""
    raise NotImplementedError


def slow_but_first(folders: list[str]) -> list[Any]:
    """Return parameters of a test that is slow for all folders but the first."""
    return [folders[0], *(pytest.param(folder, marks=pytest.mark.slow) for folder in folders[1:])]


def load_figures(folder: str) -> Figures:
    """Load the figures of a folder but for those of encoder layers above the levels that the decoder reads: the
    released code builds these layers, the captioner does not."""
    figures = Figures.load(folder)
    read = max(figures.config["cross_levels"]) + 1
    for tensors in (figures.weights, figures.expected):
        for name in list(tensors):
            layer = re.search(r"(?:\bencoder\.layers\.|attn\.enc\.layer|aoa\.enc\.layer)(\d+)", name)
            if layer and int(layer[1]) >= read:
                del tensors[name]
    figures.expected["enc.outputs"] = figures.expected["enc.outputs"][:, :read]
    return figures


@dataclass(frozen=True)
class CodeBase:
    """How released weights become a captioner.

    Args:
        build: called with figures, returns the captioner with their weights.
        convert: from released weights to those of the captioner.
        map_key: from the released name of a weight to that in the captioner; None for weights that are not read.
        gates: from the activation of a gate and the threshold to the two gates of VisualGPT.
        cannot_matter: patterns of names of weights that no figure can depend on, with the reason.
    """

    build: Callable[[Figures], Any]
    convert: Callable[[Mapping[str, Any]], dict[str, Any]]
    map_key: Callable[[str], str | None]
    gates: Callable[[Any, float], tuple[Any, Any]] = thresholded
    cannot_matter: Mapping[str, str] = field(default_factory=dict)


def compare_forward(code: CodeBase, comparison: Comparison, figures: Figures, model) -> None:
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
    with gated_inputs(model) as inputs_of_gates:
        out = model(
            encoder_outputs=encoded,
            decoder_input_ids=ids,
            output_attentions=True,
            output_hidden_states=True,
            output_gates=True,
        )
    for layer, values in enumerate(inputs_of_gates):
        comparison.close(f"aoa.dec.layer{layer}.pre_glu", values, where=real)
    if "dec.hidden" in comparison.expected:  # a code base without a final norm has none
        comparison.close("dec.hidden", out.decoder_hidden_states[-1], where=real)
    for layer, weights in enumerate(out.decoder_attentions):
        compare_queries(comparison, f"attn.dec.self.layer{layer}", weights, real)
        for index, level in enumerate(levels):
            compare_queries(
                comparison, f"attn.dec.cross.layer{layer}.level{level}", out.cross_attentions[layer][:, index], real
            )
            if figures.config["gated"]:
                gates, threshold = out.gates[layer], figures.config.get("tau")
                compare_gates(code, comparison, f"gate.layer{layer}.level{level}", gates, threshold, index, real)
        is_last = layer + 1 == len(out.decoder_attentions)
        if not (is_last and "dec.hidden" in comparison.expected):  # then it is recorded after the final norm
            comparison.close(f"dec.layer{layer}.out", out.decoder_hidden_states[layer + 1], where=real)
    comparison.close("logits", out.logits, atol=1e-4, where=real)
    comparison.close("logprobs", out.logits.log_softmax(-1), atol=1e-4, where=real)


@contextmanager
def gated_inputs(model) -> Iterator[list]:
    """Collect the inputs of the gates of attention on attention, in the order of the layers."""
    kept: list = []
    modules = [module for module in model.modules() if isinstance(module, AttentionOnAttention)]
    hooks = [one.projection.register_forward_hook(lambda _, __, output: kept.append(output)) for one in modules]
    yield kept
    for hook in hooks:
        hook.remove()


def compare_queries(comparison: Comparison, name: str, weights, real) -> None:
    """Attention weights `[B, H, T, keys]` at the queries that are real tokens."""
    comparison.close(name, weights, where=real[:, None].expand(weights.shape[:3]))


def compare_gates(code: CodeBase, comparison: Comparison, name: str, gates, threshold, index: int, real) -> None:
    activation = getattr(gates, "activation", gates)  # meshed gates are a tensor by themselves
    comparison.close(f"{name}.alpha", activation[:, :, index], atol=1e-5, where=real)
    if f"{name}.lan" in comparison.expected:  # held before any normalisation
        language, visual = code.gates(activation[:, :, index], threshold)
        comparison.close(f"{name}.lan", language, atol=1e-5, where=real)
        comparison.close(f"{name}.vis", visual, atol=1e-5, where=real)


def compare_loss(code: CodeBase, comparison: Comparison, figures: Figures, model) -> None:
    ids = figures.inputs["input_ids"]
    labels = ids[:, 1:].masked_fill(ids[:, 1:] == figures.config["pad_token_id"], -100)
    model.zero_grad()
    loss = model(region_features=figures.inputs["features"], decoder_input_ids=ids[:, :-1], labels=labels).loss
    loss.backward()
    comparison.close("loss.xe", loss, atol=1e-5)
    comparison.close("loss.xe_token_count", (labels != -100).sum(), atol=0)
    compare_gradients(code, comparison, "gradnorm", model)


def compare_gradients(code: CodeBase, comparison: Comparison, prefix: str, model) -> None:
    """L2 norms of gradients; the tied matrix is one parameter."""
    parameters = dict(model.named_parameters())
    for name in [key for key in comparison.expected if key.startswith(f"{prefix}.")]:
        gradient = parameters[code.map_key(name.removeprefix(f"{prefix}."))].grad
        norm = torch.zeros(()) if gradient is None else gradient.norm()
        comparison.close(name, norm, atol=1e-6, rtol=1e-3)
    total = torch.stack([p.grad.norm() for p in parameters.values() if p.grad is not None]).norm()
    comparison.close(f"{prefix}_total", total, atol=1e-6, rtol=1e-3)


@torch.no_grad()
def compare_cached(code: CodeBase, comparison: Comparison, figures: Figures, model) -> None:
    """Compare token by token, with the cache."""
    ids, cache, steps = figures.inputs["input_ids"], None, []
    real = ids != figures.config["pad_token_id"]
    encoded = model.model.encoder(region_features=figures.inputs["features"])
    for position in range(ids.shape[1]):
        out = model(
            encoder_outputs=encoded,
            decoder_input_ids=ids[:, position : position + 1],
            decoder_attention_mask=real[:, : position + 1].long(),
            cache=cache,
            use_cache=True,
        )
        cache = out.cache
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


def compare_search(code: CodeBase, comparison: Comparison, figures: Figures, model) -> None:
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


def compare_self_critical(code: CodeBase, comparison: Comparison, figures: Figures, model) -> None:
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
    compare_gradients(code, comparison, "scst.gradnorm", model)


PARTS = (compare_forward, compare_loss, compare_cached, compare_search, compare_self_critical)


def compare_all(code: CodeBase, figures: Figures) -> Comparison:
    """Compare everything with the expected tensors."""
    comparison = Comparison(figures.expected)
    model = code.build(figures)
    for part in PARTS:
        part(code, comparison, figures, model)
    return comparison


def unread(figures: Figures, comparison: Comparison) -> list[str]:
    """Return the expected tensors that nothing was compared with.

    Left out are the last block before a final norm, and M2's own greedy method, which goes on after the end token.
    """
    left_out = {"test_method.ids", "test_method.logprobs_of_chosen"}
    if "dec.hidden" in figures.expected:
        left_out.add(f"dec.layer{figures.config['decoder_layers'] - 1}.out")
    return sorted(set(figures.expected) - comparison.names - left_out)


def cannot_matter(code: CodeBase, name: str, figures: Figures) -> str | None:
    """Why moving this weight cannot change any figure; None if it must."""
    for pattern, reason in code.cannot_matter.items():
        if re.fullmatch(pattern, name):
            return reason
    if figures.inputs["features"].shape[1] == 1 and re.fullmatch(r".*(self_attn|crossattention)\.[qk]_proj\..*", name):
        return "with one region the softmax over regions is 1, whatever the scores"
    return None


def readable_entries(code: CodeBase, model, key: str):
    """Entries of a weight that the loss depends on: not positions beyond the inputs, nor units that a rectifier holds
    at zero for every region, nor the key part of a joint bias."""
    name = code.map_key(key)
    gradient = (dict(model.named_parameters()) | dict(model.named_buffers()))[name].grad
    gradient = gradient.T if name.endswith("crossattention.o_proj.weight") else gradient
    readable = gradient.abs() > 1e-6 * gradient.abs().max()
    if key.endswith(".attn.c_attn.bias"):
        width = readable.numel() // 3
        readable[width : 2 * width] = False
    return readable.flatten().nonzero().flatten()


def moved(code: CodeBase, figures: Figures, model, key: str) -> dict:
    """The weights with one random entry of one tensor moved by 1e-2, among those that can be read."""
    entries = readable_entries(code, model, key)
    assert len(entries), f"the loss does not depend on {key}"
    tensor = figures.weights[key].clone()
    generator = torch.Generator().manual_seed(zlib.crc32(f"{figures.name}/{key}".encode()))
    tensor.view(-1)[entries[torch.randint(len(entries), (1,), generator=generator)]] += 1e-2
    weights = figures.weights | {key: tensor}
    tied = figures.config.get("tied", {})
    return weights | {copy: tensor for copy, source in tied.items() if source == key and copy in weights}


def unnoticed_weights(code: CodeBase, figures: Figures) -> tuple[list[str], int]:
    """Move every weight by 1e-2; return those whose move no figure shows, and how many were tried."""
    tied = figures.config.get("tied", {})
    unnoticed, tried = [], 0
    original, changed = code.build(figures), code.build(figures)
    for table in original.buffers():
        if table.is_floating_point():  # a table that is not trained has entries that matter, too
            table.requires_grad_()
    compare_loss(code, Comparison(figures.expected), figures, original)  # leaves the gradients
    for key in figures.weights:
        name = code.map_key(key)
        if name is None or key in tied or cannot_matter(code, name, figures):
            continue
        comparison = Comparison(figures.expected)
        changed.load_state_dict(code.convert(moved(code, figures, original, key)), strict=False)
        for part in (compare_forward, compare_loss):
            if not comparison.differences:
                part(code, comparison, figures, changed)
        tried += 1
        if not comparison.differences:
            unnoticed.append(key)
    return unnoticed, tried
