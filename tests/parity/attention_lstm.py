"""Comparison of captioners of the ImageCaptioning.pytorch family with figures of the authors' code: AoANet and others
with an attention LSTM."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call
from transformers import AutoModelForImageTextToText

from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.training.scst.loss import self_critical_loss

from .figures import FIGURES, Comparison, Figures

PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
# |a - b| <= tolerance * (1 + |b|), for values and for gradients.
TOLERANCES = {torch.float64: (1e-6, 1e-6), torch.float32: (2e-5, 1e-4)}
LOSSES = ("xe", "label_smoothing", "scst")
precisions = pytest.mark.parametrize("precision", PRECISIONS)


class Case:
    """Folder at one precision: captioner, the authors' weights as leaves, and comparison.

    Args:
        folder: name of the folder, `family/variant`.
        precision: a name of `PRECISIONS`.
        converter: module with `convert_config(options, weights)` and `convert_state_dict(weights)`.
    """

    def __init__(self, folder: str, precision: str, converter: Any) -> None:
        self.figures, self.converter = Figures.load(folder), converter
        self.dtype = PRECISIONS[precision]
        self.options = self.figures.config["options"]
        self.comparison = Comparison(self.figures.expected)
        self.weights = {
            name: tensor.to(self.dtype).requires_grad_("running_" not in name)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in self.figures.weights.items()
        }
        self.model = self.build()

    def build(self) -> Any:
        """Build the model from its configuration, with the converted weights."""
        config = self.converter.convert_config(self.options, self.figures.weights)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
        state = {name: tensor.detach() for name, tensor in self.convert().items()}
        report = model.to(self.dtype).load_state_dict(state, strict=False)
        assert not report.unexpected_keys and not report.missing_keys, report
        return model.eval()

    def convert(self) -> dict:
        return self.converter.convert_state_dict(self.weights)

    def close(self, name: str, actual, *, where=None, gradient: bool = False) -> None:
        tolerance = TOLERANCES[self.dtype][gradient]
        self.comparison.close(name, actual, atol=tolerance, rtol=tolerance, where=where)

    @property
    def images(self) -> dict:
        """The regions, with their mask if the figures have one, and the vector of each image where it is read."""
        inputs = self.figures.inputs
        found = {"region_features": inputs["att_feats"].to(self.dtype)}
        if "att_masks" in inputs:
            found["region_mask"] = inputs["att_masks"].bool()
        if self.model.config.global_vector == "given":
            found["global_features"] = inputs["fc_feats"].to(self.dtype)
        return found

    @property
    def real(self):
        """Positions `[B, T]` that predict a word or the end."""
        return self.figures.inputs["masks"][:, 1:].bool()

    @property
    def words(self) -> dict:
        """Decoder inputs and labels of the steps that the program runs."""
        labels = self.figures.inputs["labels"]
        return {"decoder_input_ids": labels[:, :-1], "labels": labels[:, 1:].masked_fill(~self.real, -100)}


def compare_losses(case: Case) -> None:
    """The three losses and the norms of all their gradients, under the released names."""
    norms = json.loads((FIGURES / case.figures.name / case.figures.config["gradient_norms_file"]).read_text())
    for name, loss in zip(LOSSES, (likelihood(case, 0.0), likelihood(case, 0.2), self_critical(case)), strict=True):
        stored = "label_smoothing_0.2" if name == "label_smoothing" else name
        case.close(f"loss.{stored}", loss)
        leaves = {key: weight for key, weight in case.weights.items() if weight.requires_grad}
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        gradients = dict(zip(leaves, found, strict=True))
        for key, expected in norms.items():
            norm = 0.0 if gradients[key] is None else gradients[key].norm().item()
            wrong = abs(norm - expected[name]) > TOLERANCES[case.dtype][True] * (1 + expected[name])
            case.comparison._note(f"norm.{name}.{key}", 1, wrong, f"{norm} != {expected[name]}")
        if name == "label_smoothing":
            case.gradients = gradients
            for key in gradients:
                if f"grad_ls.{key}" in case.figures.expected:
                    case.close(f"grad_ls.{key}", gradients[key], gradient=True)


def likelihood(case: Case, smoothing: float):
    """The negative log-likelihood with label smoothing, a function of the released weights."""
    case.model.config.label_smoothing = smoothing
    return functional_call(case.model, case.convert(), kwargs={**case.images, **case.words}).loss


def self_critical(case: Case):
    """The self-critical loss of the given captions and rewards, a function of the released weights."""
    sampled, reward = case.figures.inputs["sampled_seq"], case.figures.inputs["reward"].to(case.dtype)
    inputs = torch.cat((torch.zeros_like(sampled[:, :1]), sampled[:, :-1]), dim=1)
    real = torch.cat((torch.ones_like(sampled[:, :1]), sampled[:, :-1]), dim=1) > 0
    logits = functional_call(case.model, case.convert(), kwargs={**case.images, "decoder_input_ids": inputs}).logits
    chosen = logits.log_softmax(-1).gather(-1, sampled[..., None])[..., 0]
    case.close("scst.sample_logprobs", chosen, where=real)
    return self_critical_loss(chosen[:, None], real[:, None], reward[:, None], None)


@torch.no_grad()
def compare_forward(case: Case) -> Any:
    """Log-probabilities, outputs and gates of the decoder; returns the outputs."""
    out = case.model(**case.images, **case.words, output_attentions=True, output_hidden_states=True, output_gates=True)
    real, steps = case.real, case.figures.config["decoder_steps_run"]
    case.close("logprobs", out.logits.log_softmax(-1), where=real)
    case.close("core_output", time_first(out.decoder_hidden_states[-2], steps), where=time_first(real, steps))
    if out.gates[0].context is not None:
        gates = time_first(out.gates[0].context, steps)
        case.close("glu.core.att2ctx.1.gate", gates, where=time_first(real, steps))
    return out


def time_first(values, steps: int):
    """Return the first steps of `[B, T, ...]` as `[T, B, ...]`."""
    return values[:, :steps].transpose(0, 1)


def gate_name(layer: int) -> str:
    """Return the name of the gate of an encoder layer."""
    return f"glu.refiner.layers.{layer}.self_attn.aoa_layer.1.gate"


@torch.no_grad()
def compare_encoder(case: Case, gate_name: Callable[[int], str] = gate_name) -> Any:
    """Refined regions, global vector, gates and plain attention maps of the encoder; returns its outputs."""
    encoded = case.model.model.encoder(**case.images, output_attentions=True, output_gates=True)
    visible = torch.ones(encoded.last_hidden_state.shape[:2], dtype=torch.bool)
    visible = visible if encoded.region_mask is None else encoded.region_mask
    case.close("prep.att_feats", encoded.last_hidden_state, where=visible)
    case.close("prep.fc_feats", encoded.global_state)
    for layer, weights in enumerate(encoded.attentions):
        if f"enc_attn.{layer}" in case.figures.expected:
            case.close(f"enc_attn.{layer}", weights, where=of_visible_queries(weights, visible))
    for layer, gate in enumerate(encoded.gates):
        if gate is not None:
            case.close(gate_name(layer), gate, where=visible)
    return encoded


def of_visible_queries(weights, visible):
    """Where rows of maps `[B, H, R, R]` belong to visible regions `[B, R]`."""
    return visible[:, None].expand(weights.shape[:3])


@torch.no_grad()
def compare_steps(case: Case) -> None:
    """Compare states and log-probabilities word by word, with the cache."""
    encoded, cache, logprobs, states = case.model.model.encoder(**case.images), RecurrentCache(), [], []
    steps = case.figures.config["decoder_steps_run"]
    for step in range(steps):
        out = case.model(
            encoder_outputs=encoded,
            decoder_input_ids=case.words["decoder_input_ids"][:, step : step + 1],
            cache=cache,
            use_cache=True,
        )
        logprobs.append(out.logits[:, 0].log_softmax(-1))
        states.append(dict(cache.state(0)))
    real = time_first(case.real, steps)
    cells = {"h": ("hidden", "context"), "c": ("memory", "context_memory")}
    for name, (first, second) in cells.items():
        zeros = torch.zeros_like(states[0]["hidden"])  # a context without a memory
        found = torch.stack([torch.stack((state[first], state.get(second, zeros))) for state in states])
        case.close(f"state.{name}", found, where=real[:, None].expand(found.shape[:3]))
    logprobs = torch.nn.functional.pad(torch.stack(logprobs, 1), (0, 0, 0, case.real.shape[1] - steps))
    case.close("logprobs", logprobs, where=case.real)


def search_options(options: dict, figures: Figures) -> dict:
    """Return the options of `generate()` for those of a released search."""
    found: dict[str, Any] = {"num_beams": options["beam_size"], "num_return_sequences": options["beam_size"]}
    if options["beam_size"] > 1:
        found["bookkeeping"] = "pool"
        found["suppress_tokens"] = [figures.config["ids"]["unk"]]  # the released search lowers it by 1000
    if penalty := options.get("length_penalty"):
        kind, value = penalty.split("_")
        found |= {"pool_length_penalty": kind} | ({"pool_length_alpha": float(value)} if kind == "wu" else {})
    if groups := options.get("group_size"):
        found |= {"pool_groups": groups, "pool_diversity": options["diversity_lambda"]}
    if options.get("remove_bad_endings"):
        found["bad_ending_ids"] = figures.config["bad_endings_ix"]
    if options.get("decoding_constraint"):
        found["no_immediate_repetition"] = True
    if options.get("block_trigrams"):
        found["trigram_penalty"] = 2 * 0.693
    if temperature := options.get("temperature"):
        found["pool_temperature"] = temperature
    return found


@torch.no_grad()
def compare_search(case: Case) -> None:
    """Every run: the best captions with the log-probability of each word, and all finished beams with their scores."""
    length = case.figures.config["max_decode_length"]
    for name, run in json.loads((FIGURES / case.figures.name / "decode.json").read_text()).items():
        options = search_options(run["options"], case.figures)
        out = case.model.generate(
            **case.images,
            max_new_tokens=length,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **options,
        )
        beams = options["num_beams"]
        ids = torch.zeros(len(out.sequences), length, dtype=torch.long)
        ids[:, : out.sequences.shape[1] - 1] = out.sequences[:, 1:]
        logprobs = torch.zeros(ids.shape)
        found = out.token_logprobs if beams > 1 else greedy_logprobs(out)
        logprobs[:, : found.shape[1]] = found
        for image, expected in enumerate(run["best_seq"]):
            first = image * beams
            case.comparison.equal(f"{name}.best", ids[first], torch.tensor(expected))
            compare_scores(case, f"{name}.best", logprobs[first], run["best_logps"][image], up_to_end(ids[first]))
            for index, beam in enumerate(run["beams"][image] if beams > 1 else ()):
                case.comparison.equal(f"{name}.beams", ids[first + index], torch.tensor(beam["seq"]))
                row = logprobs[first + index]
                compare_scores(case, f"{name}.beams", row, beam["logps"], up_to_end(ids[first + index]))
                compare_scores(case, f"{name}.p", out.sequences_scores[first + index], beam["p"])


def up_to_end(ids):
    """Where the words of one caption and its end are."""
    ended = (ids == 0).cumsum(-1) - (ids == 0).long()
    return ended == 0


def compare_scores(case: Case, name: str, found, expected, where=None) -> None:
    """Log-probabilities and scores, which the figures give to six decimals."""
    found, expected = found.float(), torch.tensor(expected)
    if where is not None:
        found, expected = found[where], expected[where]
    error = (found - expected).abs().max().item()
    case.comparison._note(name, expected.numel(), not error <= 1e-4, f"log-probabilities are off by {error:.3g}")


def greedy_logprobs(out):
    """Log-probability of each chosen word `[B, L]`, lowered as the word was before it was chosen."""
    steps = [
        (scores - logits.logsumexp(-1, keepdim=True)).gather(-1, words[:, None])[:, 0]
        for scores, logits, words in zip(out.scores, out.logits, out.sequences[:, 1:].T, strict=True)
    ]
    return torch.stack(steps, 1)


def finish(case: Case, report_compared, unread_allowed: set[str] = frozenset()) -> None:
    report_compared(case.comparison.compared)
    assert not case.comparison.differences, "\n".join(case.comparison.differences)
    unread = set(case.figures.expected) - case.comparison.names - unread_allowed
    assert not unread, f"expected tensors that nothing was compared with: {sorted(unread)}"


def moved(case: Case, name: str, seed: int) -> tuple:
    """Move one random entry that the loss depends on by 1e-2 and build the model again; returns where."""
    readable = case.gradients[name].abs().flatten() if name in case.gradients else None
    assert readable is not None and readable.max() > 0, f"the loss does not depend on {name}"
    entries = (readable > 1e-6 * readable.max()).nonzero().flatten()
    where = entries[torch.randint(len(entries), (1,), generator=torch.Generator().manual_seed(seed))]
    with torch.no_grad():
        case.weights[name].view(-1)[where] += 1e-2
    case.model = case.build()
    return where
