"""Show, Attend and Tell equals the authors' program and the common re-implementation, in float64 and float32."""

import json

import pytest
import torch
from torch.func import functional_call
from transformers import AutoModelForImageTextToText

from hf_captioners.hub.convert import show_attend_tell as converter
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.modeling.modeling_show_attend_tell import ShowAttendTellForConditionalGeneration

from .figures import FIGURES, Comparison, Figures, variants

pytestmark = pytest.mark.parity

PROGRAM = [name for name in variants("show_attend_tell_arctic") if not name.endswith("/optimizers")]
REJECTED = [name for name in PROGRAM if name.endswith("_lstmenc")]
PROGRAM = [name for name in PROGRAM if name not in REJECTED]
REIMPLEMENTATION = variants("show_attend_tell")
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
# |a - b| <= tolerance * (1 + |b|), for values and for gradients.
TOLERANCES = {torch.float64: (1e-6, 1e-6), torch.float32: (2e-5, 1e-4)}

precisions = pytest.mark.parametrize("precision", PRECISIONS)


class Case:
    """Folder at one precision: captioner, the authors' weights as leaves, and comparison."""

    def __init__(self, folder: str, precision: str) -> None:
        self.figures = Figures.load(folder)
        self.dtype = PRECISIONS[precision]
        self.options = self.figures.config["options"]
        self.is_program = self.figures.config["set"] == "show_attend_tell_arctic"
        self.comparison = Comparison(self.figures.expected)
        self.weights = {name: tensor.to(self.dtype).requires_grad_() for name, tensor in self.figures.weights.items()}
        self.model = self.build()

    def build(self):
        """Build the model from its configuration, with the converted weights."""
        if self.is_program:
            config = converter.convert_program_config(self.options)
        else:
            config = converter.convert_config(self.options, self.figures.config["ids"])
        model = AutoModelForImageTextToText.from_config(config).to(self.dtype).eval()
        assert type(model) is ShowAttendTellForConditionalGeneration
        state = {name: tensor.detach() for name, tensor in self.convert().items()}
        report = model.load_state_dict(state, strict=False)
        assert not report.unexpected_keys
        assert set(report.missing_keys) <= {"location_baseline"}, report.missing_keys
        return model

    def convert(self) -> dict:
        if self.is_program:
            return converter.convert_program_weights(self.weights, self.options)
        return converter.convert_state_dict(self.weights)

    def close(self, name: str, actual, *, where=None, gradient: bool = False) -> None:
        tolerance = TOLERANCES[self.dtype][gradient]
        self.comparison.close(name, actual, atol=tolerance, rtol=tolerance, where=where)

    def differentiable(self, **inputs):
        """Run the forward pass with the authors' tensors as leaves, so that gradients have their names."""
        return functional_call(self.model, self.convert(), kwargs=inputs)

    def generate(self, beams: int, **options):
        return self.model.generate(
            region_features=self.annotations,
            num_beams=beams,
            bookkeeping="shrinking" if self.is_program else "shrinking_finished",
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )

    @property
    def annotations(self):
        name = "ctx" if self.is_program else "encoder_out"
        features = self.figures.inputs[name].to(self.dtype)
        return features if self.is_program else features.flatten(1, 2)

    def compare_gradients(self, prefix: str, total_of: str | None = None) -> None:
        for name, weight in self.weights.items():
            self.close(f"{prefix}.{name}", weight.grad, gradient=True)
        norms = json.loads((FIGURES / self.figures.name / self.figures.config["gradient_norms_file"]).read_text())
        for name, weight in self.weights.items():
            expected = norms[name] if total_of is None else norms[name][total_of]
            norm, tolerance = weight.grad.norm().item(), TOLERANCES[self.dtype][True]
            self.comparison._note(
                f"norm.{name}", 1, abs(norm - expected) > tolerance * (1 + expected), f"{norm} != {expected}"
            )


def decode_cases(case: Case) -> dict:
    return json.loads((FIGURES / case.figures.name / "decode.json").read_text())


def finish(case: Case, report_compared, unread_allowed: set[str] = frozenset()) -> None:
    report_compared(case.comparison.compared)
    assert not case.comparison.differences, "\n".join(case.comparison.differences)
    unread = set(case.figures.expected) - case.comparison.names - unread_allowed
    assert not unread, f"expected tensors that nothing was compared with: {sorted(unread)}"


# The authors' program ------------------------------------------------------------------------------------------------


def program_inputs(case: Case) -> dict:
    """Shifted words with the begin token first; the mask keeps the state after the end, as the program does."""
    words, mask = case.figures.inputs["x"].T, case.figures.inputs["mask"].T.bool()
    begin = torch.full_like(words[:, :1], case.model.config.bos_token_id)
    inputs = {
        "region_features": case.annotations,
        "decoder_input_ids": torch.cat((begin, words[:, :-1]), dim=1),
        "decoder_attention_mask": mask.long(),
        "labels": words.masked_fill(~mask, -100),
    }
    if "alpha_sample" in case.figures.inputs:
        drawn = case.figures.inputs["alpha_sample"].transpose(0, 1)
        is_drawn = (drawn.max(-1).values == 1).all()
        inputs["locations"] = (torch.where(is_drawn, drawn.argmax(-1), -1),)
    return inputs


def compare_program_forward(case: Case) -> None:
    """Values in the authors' order: time first."""
    inputs, model = program_inputs(case), case.model
    real = inputs["decoder_attention_mask"].T.bool()
    out = model(**inputs, output_attentions=True, output_gates=True, output_hidden_states=True)
    logprobs = out.logits.log_softmax(-1)[..., : case.options["n_words"]].transpose(0, 1)
    weights, gates = out.cross_attentions[-1], out.gates[-1]
    case.close("logprobs", logprobs, where=real)
    case.close("alphas", weights.transpose(0, 1))
    scores = case.figures.expected["alpha_pre"].to(case.dtype) * model.config.attention_score_scale
    case.comparison.expected |= {"alpha_pre": weights.detach().transpose(0, 1)}
    case.close("alpha_pre", scores.softmax(-1))  # scores are equal up to a constant that the softmax removes
    case.close("h", out.decoder_hidden_states[-2].transpose(0, 1))
    for name in ("input", "forget", "output"):
        case.close(f"gate_{name[0]}", getattr(gates, name).transpose(0, 1))
    if gates.visual is not None:
        case.close("beta", gates.visual[..., 0].T)
    compare_program_nll(case, inputs, out)


def compare_program_nll(case: Case, inputs: dict, out) -> None:
    model, labels = case.model, inputs["labels"]
    nll = model.token_nll(out.decoder_hidden_states[-1], labels, out.logits)
    case.close("masked_cost", nll.T)
    case.close("cost_per_sample", nll.sum(1))
    case.close("loss.nll", nll.sum(1).mean())
    penalty = model.doubly_stochastic_penalty(out.cross_attentions[-1], labels)
    decay = case.options["decay_c"] * sum(weight.detach().square().sum() for weight in case.weights.values())
    case.close("loss.alpha_reg", penalty)
    case.close("loss.weight_decay", torch.as_tensor(decay))
    case.close("loss.total", nll.sum(1).mean() + penalty + decay)


def compare_program_gradients(case: Case) -> None:
    """Of the loss that the captioner returns; weight decay is the optimizer's (`weight_decay=2 * decay_c`)."""
    if "baseline_before" in case.figures.inputs:
        case.model.location_baseline = case.figures.inputs["baseline_before"].to(case.dtype)
    inputs = program_inputs(case)
    loss = case.differentiable(**inputs).loss
    decay = case.options["decay_c"] * sum(weight.square().sum() for weight in case.weights.values())
    (loss + decay).backward()
    case.compare_gradients("grad")
    if "baseline_after" in case.figures.expected:
        nll = case.model.token_nll(
            case.model(**inputs, output_hidden_states=True).decoder_hidden_states[-1], inputs["labels"], None
        )
        case.close("baseline_after", case.model.next_location_baseline(nll, torch.ones_like(nll)))


@torch.no_grad()
def compare_program_steps(case: Case) -> None:
    """Compare states, memories and contexts word by word, with the cache."""
    inputs, model, cache = program_inputs(case), case.model, RecurrentCache()
    encoded = model.model.encoder(region_features=inputs["region_features"])
    states = model.model.decoder.first_states(encoded, len(inputs["labels"]), None)
    case.close("init_state", states[-1].hidden)
    case.close("init_memory", states[-1].memory)
    contexts: list = []
    layer = model.model.decoder.layers[-1]
    layer.register_forward_hook(lambda module, args, output: contexts.append(output[2][:, 0]))
    memories, logprobs = [], []
    for step in range(inputs["labels"].shape[1]):
        out = model(
            encoder_outputs=encoded,
            decoder_input_ids=inputs["decoder_input_ids"][:, step : step + 1],
            decoder_attention_mask=inputs["decoder_attention_mask"][:, : step + 1],
            cache=cache,
            locations=tuple(one[:, step : step + 1] for one in inputs["locations"]) if "locations" in inputs else None,
            use_cache=True,
        )
        memories.append(cache.state(len(model.model.decoder.layers) - 1)["memory"])
        logprobs.append(out.logits[:, 0].log_softmax(-1)[:, : case.options["n_words"]])
    case.close("ctx", torch.stack(contexts))
    case.close("c", torch.stack(memories))
    case.close("logprobs", torch.stack(logprobs), where=inputs["decoder_attention_mask"].T.bool())


@torch.no_grad()
def compare_program_search(case: Case) -> None:
    """The best caption by sum and by mean, of every beam width, and all candidates' scores."""
    for name, runs in decode_cases(case).items():
        beams = int(name.removeprefix("beam")) if name.startswith("beam") else 1
        for penalty, key in ((0.0, "best"), (1.0, "best_length_normalised")):
            out = case.generate(
                beams,
                num_return_sequences=beams,
                max_new_tokens=case.figures.config["decode_maxlen"],
                length_penalty=penalty,
            )
            for image, run in enumerate(runs):
                row = image * beams
                expected = torch.tensor(run[key])
                case.comparison.equal(f"{name}.{key}", out.sequences[row, 1 : 1 + len(expected)], expected)
                assert (out.sequences[row, 1 + len(expected) :] == case.model.config.pad_token_id).all()
                if beams > 1 and not penalty:
                    compare_candidates(case, name, out.sequences_scores[row : row + beams], run["candidates"])


def compare_candidates(case: Case, name: str, scores, candidates) -> None:
    """Sums of log-probabilities, best first."""
    expected = torch.tensor(sorted((-one["nll"] for one in candidates), reverse=True))
    wrong = not torch.allclose(scores.float(), expected, atol=1e-4, rtol=0)
    case.comparison._note(f"{name}.candidates", len(expected), wrong, f"{scores.tolist()} != {expected.tolist()}")


@precisions
@pytest.mark.parametrize("folder", PROGRAM)
def test_equals_program(folder, precision, report_compared):
    case = Case(folder, precision)
    for part in (
        compare_program_gradients,
        compare_program_forward,
        compare_program_steps,
        compare_program_search,
    ):
        part(case)
    finish(case, report_compared)


@pytest.mark.parametrize("folder", REJECTED)
def test_bidirectional_encoder_is_refused(folder):
    options = Figures.load(folder).config["options"]
    with pytest.raises(ValueError, match="`lstm_encoder` is set"):
        converter.convert_program_config(options)


# The re-implementation -----------------------------------------------------------------------------------------------


def sorted_inputs(case: Case) -> dict:
    """Captions in the order of the figures, longest first."""
    order = case.figures.expected["sort_ind"]
    captions = case.figures.expected["sorted_captions"]
    case.comparison.equal("sorted_captions", case.figures.inputs["captions"][order], captions)
    case.comparison.equal("sort_ind", order, order)
    lengths = case.figures.inputs["caption_lengths"][order, 0] - 1
    case.comparison.equal("decode_lengths", lengths, case.figures.expected["decode_lengths"])
    longest = int(lengths.max())
    real = torch.arange(longest) < lengths[:, None]
    return {
        "region_features": case.annotations[order],
        "decoder_input_ids": captions[:, :longest],
        "labels": captions[:, 1 : longest + 1].masked_fill(~real, -100),
    }


def compare_forward(case: Case) -> None:
    inputs, model = sorted_inputs(case), case.model
    real = inputs["labels"] != -100
    out = model(**inputs, output_attentions=True, output_gates=True, output_hidden_states=True)
    case.close("scores", out.logits, where=real)
    case.close("logprobs", out.logits.log_softmax(-1), where=real)
    case.close("alphas", out.cross_attentions[0], where=real)
    case.close("gate", out.gates[0].visual.transpose(0, 1), where=real.T)
    case.close("h", out.decoder_hidden_states[1].transpose(0, 1), where=real.T)
    nll = model.token_nll(out.decoder_hidden_states[-1], inputs["labels"], out.logits)
    penalty = model.doubly_stochastic_penalty(out.cross_attentions[0], inputs["labels"])
    case.close("loss.xe", nll.sum() / real.sum())
    case.close("loss.alpha_reg", penalty)
    case.close("loss.total", out.loss)
    hits = (out.logits[real].topk(5, dim=-1).indices == inputs["labels"][real][:, None]).any(-1)
    case.close("top5_accuracy", 100 * hits.to(case.dtype).mean())


def compare_gradients(case: Case) -> None:
    case.differentiable(**sorted_inputs(case)).loss.backward()
    case.compare_gradients("grad_total", total_of="total")


@torch.no_grad()
def compare_steps(case: Case) -> None:
    """Compare memories, contexts before the gate and log-probabilities word by word, with the cache."""
    inputs, model, cache = sorted_inputs(case), case.model, RecurrentCache()
    real = inputs["labels"] != -100
    encoded = model.model.encoder(region_features=inputs["region_features"])
    states = model.model.decoder.first_states(encoded, len(real), None)
    case.close("h0", states[0].hidden)
    case.close("c0", states[0].memory)
    memories, contexts, logprobs = [], [], []
    for step in range(real.shape[1]):
        out = model(
            encoder_outputs=encoded,
            decoder_input_ids=inputs["decoder_input_ids"][:, step : step + 1],
            cache=cache,
            use_cache=True,
            output_attentions=True,
        )
        memories.append(cache.state(0)["memory"])
        contexts.append((out.cross_attentions[0] @ inputs["region_features"])[:, 0])
        logprobs.append(out.logits[:, 0].log_softmax(-1))
    case.close("c", torch.stack(memories), where=real.T)
    case.close("awe_before_gate", torch.stack(contexts), where=real.T)
    case.close("logprobs", torch.stack(logprobs, 1), where=real)


@torch.no_grad()
def compare_search(case: Case) -> None:
    """Best captions, their scores and attention maps, and all finished captions' scores."""
    end = case.figures.config["ids"]["end"]
    for name, runs in decode_cases(case).items():
        beams = int(name.removeprefix("beam")) if name.startswith("beam") else 1
        out = case.generate(beams, num_return_sequences=beams, max_new_tokens=51, length_penalty=0.0)
        for image, run in enumerate(runs):
            if run["best"] is None:
                continue
            row = image * beams
            sequence = out.sequences[row].tolist()
            expected = run["best"]
            case.comparison.equal(
                f"{name}.best", torch.tensor(sequence[: sequence.index(end) + 1]), torch.tensor(expected)
            )
            compare_maps(case, name, image, run)
            if beams > 1:
                finished = sorted((one["score"] for one in run["finished"]), reverse=True)
                found = out.sequences_scores[row : row + len(finished)].float()
                wrong = not torch.allclose(found, torch.tensor(finished), atol=1e-4, rtol=0)
                case.comparison._note(f"{name}.finished", len(finished), wrong, f"{found} != {finished}")


def compare_maps(case: Case, name: str, image: int, run: dict) -> None:
    """Attention of the steps that wrote the caption; the figures begin with ones for the begin token."""
    tokens = torch.tensor(run["best"])[None, :-1]
    weights = case.model(
        region_features=case.annotations[image : image + 1], decoder_input_ids=tokens, output_attentions=True
    ).cross_attentions[0][0]
    expected = torch.tensor(run["best_alphas"])[1:]
    wrong = not torch.allclose(weights.float(), expected, atol=2e-5, rtol=0)
    case.comparison._note(f"{name}.best_alphas", expected.numel(), wrong, "attention maps differ")


@precisions
@pytest.mark.parametrize("folder", REIMPLEMENTATION)
def test_equals_reimplementation(folder, precision, report_compared):
    case = Case(folder, precision)
    for part in (compare_gradients, compare_forward, compare_steps, compare_search):
        part(case)
    finish(case, report_compared)


# Every weight matters ------------------------------------------------------------------------------------------------

# Moving these cannot change any figure: a constant added to all scores of a step leaves the softmax as it is.
CANNOT_MATTER = ("attention.full_att.bias", "decoder_c_tt", "decoder_1_c_tt")


@pytest.mark.parametrize("folder", PROGRAM + REIMPLEMENTATION)
def test_every_weight_matters(folder):
    original = Case(folder, "float64")
    if original.is_program:
        gradients, comparisons = compare_program_gradients, (compare_program_forward, compare_program_steps)
    else:
        gradients, comparisons = compare_gradients, (compare_forward, compare_steps)
    gradients(original)
    unnoticed, tried = [], 0
    for name in original.weights:
        if name in CANNOT_MATTER:
            continue
        case = Case(folder, "float64")
        weight = original.weights[name].detach()
        decay = 2 * original.options.get("decay_c", 0.0) * weight  # units that a rectifier holds at zero have it too
        readable = (original.weights[name].grad - decay).abs().flatten()
        entries = (readable > 1e-6 * readable.max()).nonzero().flatten()
        generator = torch.Generator().manual_seed(tried)
        moved = entries[torch.randint(len(entries), (1,), generator=generator)]
        with torch.no_grad():
            case.weights[name].view(-1)[moved] += 1e-2
        case.model = case.build()
        for compare in comparisons:
            if not case.comparison.differences:
                compare(case)
        tried += 1
        if not case.comparison.differences:
            unnoticed.append(name)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 15, f"only {tried} weights were tried"
