"""Comparisons with figures of ZoDIAC's code, whose folders have one layout."""

import inspect

import torch
from torch import Tensor
from transformers import GenerationMixin

from hf_captioners.modeling.search_captioning import TRIGRAM_PENALTY
from hf_captioners.training.scst.loss import chosen_logprobs, sample_baseline, self_critical_loss, token_entropy

from .figures import Comparison, Figures

LOGPROB_TOLERANCE, SCORE_TOLERANCE = 2e-5, 1e-4
GRADIENT = {"rtol": 1e-3, "atol": 1e-6}


def image_inputs(figures: Figures) -> dict[str, Tensor]:
    """Return regions, their mask unless the folder has none, and the vector of the image where a model reads one."""
    found = {"region_features": figures.inputs["att_feats"]}
    if not figures.config.get("mean_feats", 1):
        found["global_features"] = figures.inputs["fc_feats"]
    if "att_masks" in figures.inputs:
        found["region_mask"] = figures.inputs["att_masks"].bool()
    return found


def one_image(inputs: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """Return the inputs of one image; the model leaves out its padded regions."""
    return {name: value[index : index + 1] for name, value in inputs.items()}


def captions_and_labels(figures: Figures) -> tuple[Tensor, Tensor]:
    """Return decoder inputs `[N, L + 1]` and targets, -100 after the end token."""
    captions = figures.inputs["labels"].flatten(0, 1).long()
    mask = figures.inputs["masks"].flatten(0, 1).bool()
    return captions[:, :-1], captions[:, 1:].masked_fill(~mask[:, 1:], -100)


def pooled_numbers(out) -> Tensor:
    """Return the pooled intensity of every call, in the order of the calls; the released pool has one number each."""
    encoder = [gates.flatten()[0] for gates in out.encoder_gates]
    return torch.stack(encoder + [part.flatten()[0] for gates in out.gates for part in gates[0]])


def losses_of(model, inputs: dict, labels: Tensor) -> dict[str, Tensor]:
    """Return the losses without and with label smoothing."""
    found = {}
    for name, smoothing in {"xe": 0.0, "ls0.1": 0.1, "ls0.2": 0.2}.items():
        model.config.label_smoothing = smoothing
        found[name] = model(**inputs, labels=labels).loss
    model.config.label_smoothing = 0.0
    return found


def compare_forward(comparison: Comparison, figures: Figures, model) -> None:
    captions, labels = captions_and_labels(figures)
    inputs, gate = image_inputs(figures), model.model.decoder.decoder_layers[0].self_attn.gate
    out = model(**inputs, decoder_input_ids=captions, output_attentions=True, output_gates=True)
    per_image = len(captions) // len(inputs["region_features"])
    comparison.close("memory", out.encoder_last_hidden_state.repeat_interleave(_copies(figures, per_image), dim=0))
    comparison.close("rap.tf", pooled_numbers(out), atol=LOGPROB_TOLERANCE)
    comparison.close("gate.tf", gate(pooled_numbers(out)), atol=LOGPROB_TOLERANCE)
    for layer, weights in enumerate(out.encoder_attentions):
        comparison.close(f"map.enc.{layer}", weights.repeat_interleave(per_image, dim=0))
    for layer, weights in enumerate(out.decoder_attentions):
        comparison.close(f"map.dec_self.{layer}", weights)
    for layer, weights in enumerate(out.cross_attentions):
        comparison.close(f"map.dec_cross.{layer}", weights)
    comparison.close("logprobs", out.logits.log_softmax(-1), atol=LOGPROB_TOLERANCE)
    for name, loss in losses_of(model, inputs, labels).items():
        comparison.close(f"loss.{name}", loss, atol=LOGPROB_TOLERANCE)


def _copies(figures: Figures, per_image: int) -> int:
    """The figures have one row an image or one a caption."""
    return figures.expected["memory"].shape[0] // figures.inputs["att_feats"].shape[0]


def compare_alone(comparison: Comparison, figures: Figures, model) -> None:
    """Every caption as a batch of one."""
    if "alone.logprobs" not in figures.expected:
        return
    captions, _ = captions_and_labels(figures)
    inputs = image_inputs(figures)
    per_image = len(captions) // len(inputs["region_features"])
    logprobs, pooled = [], []
    for index, caption in enumerate(captions):
        out = model(**one_image(inputs, index // per_image), decoder_input_ids=caption[None], output_gates=True)
        logprobs.append(out.logits.log_softmax(-1))
        pooled.append(pooled_numbers(out))
    comparison.close("alone.logprobs", torch.cat(logprobs), atol=LOGPROB_TOLERANCE)
    comparison.close("alone.rap", torch.stack(pooled), atol=LOGPROB_TOLERANCE)


def padded(ids: Tensor, length: int) -> Tensor:
    """Return generated ids `[rows, L]` without the begin token, 0 after the end."""
    found = torch.zeros(len(ids), length, dtype=torch.int32)
    found[:, : ids.shape[1] - 1] = ids[:, 1:]
    return found


def greedy(model, images: dict, length: int, **options):
    out = model.generate(
        **images, num_beams=1, max_new_tokens=length, return_dict_in_generate=True, output_scores=True, **options
    )
    return padded(out.sequences, length), out.scores


def constraints(figures: Figures) -> dict:
    """Decoding options that the released evaluation switches on."""
    return {"no_immediate_repetition": True, "bad_ending_ids": figures.config["bad_endings_ids"]}


def compare_greedy_words(comparison: Comparison, figures: Figures, model) -> None:
    length, inputs = figures.config["max_length"], image_inputs(figures)
    found, scores = greedy(model, inputs, length)
    comparison.equal("greedy.seq", found, figures.expected["greedy.seq"])
    steps = torch.zeros_like(figures.expected["greedy.step_logprobs"])
    steps[:, : len(scores)] = torch.stack(scores, 1).log_softmax(-1)
    running = (found == 0).cumsum(1) - (found == 0).int() == 0  # generate() forces padding after the end
    comparison.close("greedy.step_logprobs", steps, atol=LOGPROB_TOLERANCE, where=running)


def compare_greedy_ids(comparison: Comparison, figures: Figures, model) -> None:
    compare_greedy_words(comparison, figures, model)
    length, inputs = figures.config["max_length"], image_inputs(figures)
    found, _ = greedy(model, inputs, length, **constraints(figures), trigram_penalty=TRIGRAM_PENALTY)
    comparison.equal("greedy_constrained.seq", found, figures.expected["greedy_constrained.seq"])


def compare_greedy(comparison: Comparison, figures: Figures, model) -> None:
    compare_greedy_ids(comparison, figures, model)
    length, inputs = figures.config["max_length"], image_inputs(figures)
    if "greedy_alone.seq" in figures.expected:
        alone = [greedy(model, one_image(inputs, i), length)[0] for i in range(len(inputs["region_features"]))]
        comparison.equal("greedy_alone.seq", torch.cat(alone), figures.expected["greedy_alone.seq"])
    found = figures.expected["greedy.seq"].long()
    begun = torch.cat((torch.zeros_like(found[:, :1]), found), dim=1)
    if "greedy.teacher_forced_logprobs" in figures.expected:
        out = model(**inputs, decoder_input_ids=begun)
        comparison.close("greedy.teacher_forced_logprobs", out.logits.log_softmax(-1), atol=LOGPROB_TOLERANCE)
    expected = figures.expected["greedy.rap.dec"]  # [steps, layers, 2]
    pooled = []
    for step in range(len(expected)):
        out = decoding_step(model, inputs, begun[:, : step + 1], output_gates=True)
        pooled.append(torch.stack([gates[0].flatten(1)[:, 0] for gates in out.gates]))
    comparison.close("greedy.rap.dec", torch.stack(pooled), atol=LOGPROB_TOLERANCE)
    encoder = [gates.flatten()[0] for gates in out.encoder_gates]
    comparison.close("greedy.rap.enc", torch.stack(encoder), atol=LOGPROB_TOLERANCE)


def decoding_step(model, inputs: dict, tokens: Tensor, **options):
    """Run the whole prefix `[rows, t]` as the released decoding does: no token is hidden."""
    return model(
        **inputs, decoder_input_ids=tokens, decoder_attention_mask=tokens.new_ones(1, tokens.shape[1]), **options
    )


def search(model, images: dict, beams: int, length: int, **options):
    return model.generate(
        **images,
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=length,
        bookkeeping="pool",
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def compare_searches(comparison: Comparison, figures: Figures, model) -> None:
    length, unknown, inputs = figures.config["max_length"], figures.config["unk_id"], image_inputs(figures)
    for name, options in {
        "beam2": {},
        "beam3": {},
        "beam5": {},
        "beam3_avg": {"pool_length_penalty": "avg"},
        "beam3_wu": {"pool_length_penalty": "wu", "pool_length_alpha": 0.9},
        "beam3_constrained": constraints(figures) | {"suppress_tokens": [unknown]},
    }.items():
        if f"{name}.seq" not in figures.expected:
            continue
        beams = int(name[4])
        out = search(model, inputs, beams, length, **options)
        expected = figures.expected[f"{name}.seq"]
        comparison.equal(f"{name}.seq", padded(out.sequences, length).view_as(expected), expected)
        comparison.close(f"{name}.score", out.sequences_scores, atol=SCORE_TOLERANCE)
        logprobs = torch.zeros(len(out.sequences), length)
        logprobs[:, : out.token_logprobs.shape[1]] = out.token_logprobs
        comparison.close(f"{name}.token_logprob", logprobs, atol=SCORE_TOLERANCE)
        lengths = (out.beam_indices >= 0).sum(-1).int().view_as(figures.expected[f"{name}.length"])
        comparison.equal(f"{name}.length", lengths, figures.expected[f"{name}.length"])
    if "beam3_alone.seq" in figures.expected:
        found = [search(model, one_image(inputs, i), 3, length) for i in range(len(inputs["region_features"]))]
        ids = torch.stack([padded(out.sequences, length) for out in found])
        comparison.equal("beam3_alone.seq", ids, figures.expected["beam3_alone.seq"])
        scores = torch.stack([out.sequences_scores for out in found])
        comparison.close("beam3_alone.score", scores, atol=SCORE_TOLERANCE)


def gradient_norms(model, loss: Tensor, figures: Figures, map_key) -> Tensor:
    """Return the norm of the gradient of each released parameter, 0 where the loss does not reach it."""
    model.zero_grad()
    loss.backward()
    parameters = dict(model.named_parameters())
    names = [map_key(key) for key in figures.config["parameter_order"]]
    found = [parameters[name].grad if name in parameters else None for name in names]
    return torch.stack([torch.zeros(()) if grad is None else grad.norm() for grad in found])


def sampled(figures: Figures, model) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the given captions, decoded step by step, and the entropy of the steps, `[N, L]`."""
    inputs, chosen = image_inputs(figures), figures.inputs["sc.seq"].long()
    tokens = torch.cat((torch.zeros_like(chosen[:, :1]), chosen), dim=1)
    logprobs, entropies = [], []
    for step in range(chosen.shape[1]):
        if step and not chosen[:, step - 1].any():
            break
        logits = decoding_step(model, inputs, tokens[:, : step + 1]).logits[:, -1]
        logprobs.append(chosen_logprobs(logits, chosen[:, step]))
        entropies.append(token_entropy(logits))
    missing = [torch.zeros(len(chosen))] * (chosen.shape[1] - len(logprobs))
    return torch.stack(logprobs + missing, dim=1), torch.stack(entropies + missing, dim=1)


def up_to_end(tokens: Tensor) -> Tensor:
    """Return which of the tokens `[N, L]` are real, the end token included."""
    return torch.cat((torch.ones_like(tokens[:, :1]), tokens[:, :-1]), dim=1) > 0


def new_self_critical(logprobs: Tensor, tokens: Tensor, scores: Tensor) -> Tensor:
    """Return the loss whose baseline is the mean score of the other captions of an image."""
    advantages = scores - sample_baseline("leave_one_out", scores)  # [B, n]
    shape = (*scores.shape, -1)
    return self_critical_loss(logprobs.view(shape), up_to_end(tokens).view(shape), advantages, None)


def compare_self_critical(comparison: Comparison, figures: Figures, model, map_key) -> None:
    if "sc.token_logprob" not in figures.expected:
        return
    logprobs, entropies = sampled(figures, model)
    tokens, scores = figures.inputs["sc.seq"], figures.inputs["sc.scores"]
    comparison.close("sc.token_logprob", logprobs, atol=LOGPROB_TOLERANCE)
    comparison.close("sc.entropy", entropies, atol=LOGPROB_TOLERANCE)
    real = up_to_end(tokens)
    plain = -(logprobs * figures.inputs["sc.reward"] * real).sum() / real.sum()
    comparison.close("loss.reward", plain, atol=LOGPROB_TOLERANCE)
    loss = new_self_critical(logprobs, tokens, scores)
    comparison.close("loss.struct.new_self_critical", loss, atol=LOGPROB_TOLERANCE)
    entropy = ((entropies * real).sum(1) / real.sum(1)).view_as(scores).detach()
    name = "loss.struct.new_self_critical_entropy0.5"
    comparison.close(name, new_self_critical(logprobs, tokens, scores + 0.5 * entropy), atol=LOGPROB_TOLERANCE)
    comparison.close("gradnorm.nsc", gradient_norms(model, loss, figures, map_key), **GRADIENT)


def compare_beam_rewards(comparison: Comparison, figures: Figures, model, map_key) -> None:
    """The captions of a beam search with a graph are the samples."""
    if "scbeam.seq" not in figures.expected:
        return
    length, scores = figures.config["max_length"], figures.inputs["sc.scores"]
    with_graph = inspect.unwrap(GenerationMixin.generate)  # without its decorators; one switches gradients off
    out = with_graph(
        model,
        **image_inputs(figures),
        num_beams=3,
        num_return_sequences=3,
        max_new_tokens=length,
        bookkeeping="pool",
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens = padded(out.sequences, length)
    comparison.equal("scbeam.seq", tokens, figures.expected["scbeam.seq"])
    logprobs = torch.nn.functional.pad(out.token_logprobs, (0, length - out.token_logprobs.shape[1]))
    comparison.close("scbeam.token_logprob", logprobs, atol=SCORE_TOLERANCE)
    loss = new_self_critical(logprobs, tokens, scores)
    comparison.close("scbeam.loss.new_self_critical", loss, atol=LOGPROB_TOLERANCE)
    comparison.close("gradnorm.scbeam_nsc", gradient_norms(model, loss, figures, map_key), **GRADIENT)


def compare_gradients(comparison: Comparison, figures: Figures, model, map_key) -> None:
    inputs, (_, labels) = image_inputs(figures), captions_and_labels(figures)
    for name in ("xe", "ls0.1"):
        if f"gradnorm.{name}" in figures.expected:
            norms = gradient_norms(model, losses_of(model, inputs, labels)[name], figures, map_key)
            comparison.close(f"gradnorm.{name}", norms, **GRADIENT)
