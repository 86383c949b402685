"""The Entangled Transformer equals figures that were derived from its equations: there is no released code."""

import re

import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_captioners.modeling.configuration_eta import ETAConfig
from hf_captioners.modeling.layers_attributes import attribute_nll, noisy_or
from hf_captioners.modeling.modeling_eta import ATTENTIONS

from .figures import Comparison, Figures, variants

pytestmark = pytest.mark.parity

FOLDERS = [name for name in variants("eta") if not name.endswith("/detector")]
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
TOLERANCES = {torch.float64: 2e-6, torch.float32: 1e-5}
NAMES = {
    "inj_s": "semantic_guidance",
    "tgt_v": "visual_target",
    "inj_v": "visual_guidance",
    "tgt_s": "semantic_target",
}
RULES = [
    (r"^visual_proj\.", "model.encoder.region_projection."),
    (r"^embed\.", "model.decoder.token_embedding."),
    (r"^out\.", "lm_head."),
    (r"^vis_enc\.(\d+)\.", r"model.encoder.region_layers.\1."),
    (r"^sem_enc\.(\d+)\.", r"model.encoder.attribute_layers.\1."),
    (r"^dec\.(\d+)\.", r"model.decoder.decoder_layers.\1."),
    (r"\.self\.([qkvo])\.", r".self_attn.\1_proj."),
    (r"\.ln_self\.", ".self_attn_residual.norm."),
    (r"\.ffn\.0\.", ".feed_forward.fc1."),
    (r"\.ffn\.1\.", ".feed_forward.fc2."),
    (r"\.ln_ffn\.", ".feed_forward_residual.norm."),
    (r"\.ln_gbc\.", ".controller_norm."),
    (r"\.gate\.", ".controller.gate."),
    (r"\.ln_(inj|tgt)_([sv])\.", lambda found: f".attentions.{NAMES[f'{found[1]}_{found[2]}']}.residual.norm."),
    (
        r"\.(inj|tgt)_([sv])\.([qkvo])\.",
        lambda found: f".attentions.{NAMES[f'{found[1]}_{found[2]}']}.{found[3]}_proj.",
    ),
]
# Moving these cannot change any figure.
CANNOT_MATTER = {
    r"\.k_proj\.bias$": "a constant added to all scores of a query leaves the softmax as it is",
}


def own_name(name: str) -> str:
    """Return the name of a weight here."""
    for pattern, replacement in RULES:
        name = re.sub(pattern, replacement, name)
    return name


class Case:
    """Folder at one precision."""

    def __init__(self, folder: str, precision: str) -> None:
        self.figures = Figures.load(folder)
        self.dtype = PRECISIONS[precision]
        self.comparison = Comparison(self.figures.expected)
        self.model = self.build()
        self.own = {name: own_name(name) for name in self.order()}
        mask, ids = self.figures.inputs["attribute_mask"].bool(), self.figures.inputs["attributes"].long()
        self.images = {
            "region_features": self.figures.inputs["regions"].to(self.dtype),
            "region_mask": self.figures.inputs["region_mask"].bool(),
            "attribute_ids": ids,
            "attribute_mask": mask,
        }
        tokens = self.figures.inputs["tokens"].long()
        self.words, targets = tokens[:, :-1], tokens[:, 1:]
        self.real = targets != self.figures.config["pad_id"]
        self.labels = targets.masked_fill(~self.real, -100)

    def order(self) -> list[str]:
        """Return the names of weights in the order of gradient norms."""
        order = self.figures.config["parameter_order"]
        return order if isinstance(order, list) else Figures.load("eta/main").config["parameter_order"]

    def build(self):
        """Build the captioner of the folder with its weights; a variant leaves some unread."""
        sizes = self.figures.config
        config = ETAConfig(
            vocab_size=sizes["vocab_size"],
            hidden_size=sizes["d_model"],
            ffn_dim=sizes["d_ff"],
            num_attention_heads=sizes["heads"],
            encoder_layers=sizes["encoder_layers"],
            decoder_layers=sizes["decoder_layers"],
            region_feature_size=sizes["region_dim"],
            fusion=sizes["fusion"],
            gbc_activation=sizes["gbc_activation"],
            gbc_residual=sizes["gbc_residual"],
            use_encoder=sizes["use_encoder"],
            scale_embedding=sizes["embed_scale"],
            bos_token_id=sizes["bos_id"],
            eos_token_id=sizes["eos_id"],
            pad_token_id=sizes["pad_id"],
            label_smoothing=0.0,
        )
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").to(self.dtype).eval()
        state = {own_name(name): tensor.to(self.dtype) for name, tensor in self.figures.weights.items()}
        own = model.state_dict()
        missing = {name for name in own if name not in state and "position_embedding" not in name}
        assert not missing, missing
        model.load_state_dict({name: tensor for name, tensor in state.items() if name in own}, strict=False)
        return model

    def close(self, name: str, actual, *, where=None) -> None:
        """Compare; the names of figures that a variant lacks are passed over where the figure is optional."""
        self.comparison.close(name, actual, atol=TOLERANCES[self.dtype], where=where)

    def close_if_given(self, name: str, actual, *, where=None) -> None:
        if name in self.figures.expected:
            self.close(name, actual, where=where)


def compare_forward(case: Case) -> None:
    """Log-probabilities, memories, attention maps and what happens inside of each block."""
    model, inside = case.model, {}
    hooks = []

    def keep(module, name, before=False) -> None:
        def hook(_, args, output=None) -> None:
            inside[name] = (args[0] if before else output[0] if isinstance(output, tuple) else output).detach()

        hooks.append(module.register_forward_pre_hook(hook) if before else module.register_forward_hook(hook))

    for index, layer in enumerate(model.model.decoder.decoder_layers):
        keep(layer.self_attn_residual.norm, f"a.{index}")
        keep(layer.feed_forward, f"e.{index}", before=True)
        keep(layer.feed_forward_residual.norm, f"h.{index}")
        for name, own in (("g_s", "semantic_guidance"), ("g_v", "visual_guidance")):
            if own in layer.attentions:
                keep(layer.attentions[own], f"{name}.{index}")
        for name, own in (("v", "visual_target"), ("s", "semantic_target")):
            if own in layer.attentions:
                keep(layer.attentions[own], f"{name}.{index}")
    encoded = model.get_encoder()(**case.images, output_attentions=True)
    out = model(encoder_outputs=encoded, decoder_input_ids=case.words, output_attentions=True, output_gates=True)
    for hook in hooks:
        hook.remove()
    case.close("logprobs", out.logits.log_softmax(-1), where=case.real)
    for name, value in inside.items():
        case.close_if_given(name, value, where=case.real)
    for index, gate in enumerate(out.gates or ()):
        case.close_if_given(f"c.{index}", gate, where=case.real)
    attended = case.images["attribute_mask"]
    if model.config.reads_regions:
        case.close_if_given("V", encoded.last_hidden_state, where=case.images["region_mask"])
    if model.config.reads_attributes:
        case.close_if_given("S", encoded.attribute_states, where=attended)
    compare_maps(case, encoded, out)


def compare_maps(case: Case, encoded, out) -> None:
    """Attention maps of queries that are no padding."""
    config = case.model.config
    of_real = case.real[:, None, :, None]
    for index, weights in enumerate(out.decoder_attentions):
        close_map(case, f"map.dec.{index}.self", weights, of_real)
    for modality, recorded in (("s", out.attribute_attentions), ("v", out.cross_attentions)):
        names = [short for role in ATTENTIONS[config.fusion] for short, own in NAMES.items() if own == role.name]
        names = [name for name in names if name.endswith(modality)]
        for index, weights in enumerate(recorded or ()):
            for number, name in enumerate(names):
                close_map(case, f"map.dec.{index}.{name}", weights[:, number], of_real)
    for name, recorded, mask in (
        ("vis_enc", encoded.attentions if config.reads_regions else (), case.images["region_mask"]),
        ("sem_enc", encoded.attribute_attentions, case.images["attribute_mask"]),
    ):
        for index, weights in enumerate(recorded or ()):
            close_map(case, f"map.{name}.{index}.self", weights, mask[:, None, :, None])


def close_map(case: Case, name: str, weights, where) -> None:
    case.close_if_given(name, weights, where=where.expand_as(weights))


def compare_losses(case: Case) -> None:
    """Both losses, and the norm of the gradient of every weight."""
    model = case.model
    model.zero_grad()
    inputs = {**case.images, "decoder_input_ids": case.words, "labels": case.labels}
    loss = model(**inputs).loss
    loss.backward()
    case.close("loss.xe", loss)
    parameters = dict(model.named_parameters())
    gradients = [parameters[own].grad if own in parameters else None for own in case.own.values()]
    norms = torch.stack([torch.zeros((), dtype=case.dtype) if one is None else one.norm() for one in gradients])
    case.comparison.close("gradnorm.xe", norms, atol=TOLERANCES[case.dtype], rtol=1e-5)
    model.config.label_smoothing = 0.1
    with torch.no_grad():
        smoothed = model(**inputs).loss
    model.config.label_smoothing = 0.0
    words = model.config.vocab_size
    target, other = 0.9 + 0.1 / words, 0.1 / words  # the figure is a cross-entropy, ours a divergence
    entropy = -target * torch.tensor(target).log() - (words - 1) * other * torch.tensor(other).log()
    case.close("loss.label_smoothing_0.1", smoothed + entropy)


@torch.no_grad()
def compare_greedy(case: Case) -> None:
    """Greedy captions and the log-probability of each token."""
    expected, scores = case.figures.expected["greedy.seq"].long(), case.figures.expected["greedy.token_logprob"]
    out = case.model.generate(
        **case.images,
        max_new_tokens=expected.shape[1],
        return_dict_in_generate=True,
        output_scores=True,
        do_sample=False,
    )
    length = out.sequences.shape[1] - 1
    case.comparison.equal("greedy.seq", out.sequences[:, 1:], expected[:, :length])
    assert not expected[:, length:].any()
    found = torch.stack([score.log_softmax(-1) for score in out.scores], dim=1)
    found = found.gather(-1, out.sequences[:, 1:, None])[..., 0]
    real = expected[:, :length] != case.figures.config["pad_id"]
    padded = torch.zeros_like(scores, dtype=case.dtype)
    padded[:, :length] = found.masked_fill(~real, 0.0)
    case.close("greedy.token_logprob", padded)


COMPARISONS = (compare_forward, compare_losses, compare_greedy)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_derivation(folder, precision, report_compared):
    case = Case(folder, precision)
    for compare in COMPARISONS:
        compare(case)
    report_compared(case.comparison.compared)
    assert not case.comparison.differences, "\n".join(case.comparison.differences)
    unread = set(case.figures.expected) - case.comparison.names
    if not case.model.config.reads_attributes:  # figures of the encoder that nothing reads, which is absent here
        unread = {name for name in unread if not name.startswith("map.sem_enc.")}
    assert not unread, f"expected tensors that nothing was compared with: {sorted(unread)}"


# The weights of the other variants are among these; they take longer than all other tests together.
QUICK = ("main", "other_size", "gbc_residual", "transformer_v")
WEIGHED = [folder if folder.endswith(QUICK) else pytest.param(folder, marks=pytest.mark.slow) for folder in FOLDERS]


@pytest.mark.parametrize("folder", WEIGHED)
def test_every_weight_matters(folder):
    """Moving one entry of each weight by 1e-2 changes a figure. A variant has the weights of its fusion only."""
    case = Case(folder, "float64")
    own = dict(case.model.named_parameters())
    compare_losses(case)
    moved, unnoticed = 0, []
    for number, name in enumerate(case.own.values()):
        if name not in own or any(re.search(pattern, name) for pattern in CANNOT_MATTER):
            continue
        weight = own[name]
        readable = (weight.grad.abs() > 1e-6 * weight.grad.abs().max()).flatten().nonzero().flatten()
        generator = torch.Generator().manual_seed(number)
        entry = readable[torch.randint(len(readable), (1,), generator=generator)]
        original = weight.detach().clone()
        with torch.no_grad():
            weight.view(-1)[entry] += 1e-2
        case.comparison.differences.clear()
        compare_forward(case)
        if not case.comparison.differences:
            unnoticed.append(name)
        with torch.no_grad():
            weight.copy_(original)
        moved += 1
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert moved > 30, f"only {moved} weights were moved"


@pytest.mark.parametrize("name", ["eta/detector"])
def test_equals_derivation_of_the_detector(name, report_compared):
    """Noisy-OR with extreme logits: probabilities, losses, gradients and the most probable words."""
    figures = Figures.load(name)
    expected = figures.expected
    logits = figures.inputs["cell_logits"].double().requires_grad_()
    labels = figures.inputs["labels"].double()
    presence = noisy_or(logits)
    nll = attribute_nll(presence, labels)
    (gradient,) = torch.autograd.grad(nll.sum(), logits)
    found = {
        "p": presence.probabilities,
        "log_p": presence.log_present,
        "log_one_minus_p": presence.log_absent,
        "loss_per_word": nll,
        "loss_sum_over_words_mean_over_images": nll.sum(1).mean(),
        "grad_logits_of_sum": gradient,
    }
    for key, value in found.items():
        torch.testing.assert_close(value.detach(), expected[key], atol=1e-10, rtol=0.0, msg=key)
    top = presence.probabilities.topk(expected["top4"].shape[1]).indices
    assert torch.equal(top, expected["top4"].long())
    assert {*found, "top4"} == set(expected)
    report_compared(sum(value.numel() for value in expected.values()))
    single = noisy_or(logits.float())
    assert torch.isfinite(torch.stack(single)).all()
    torch.testing.assert_close(single.log_present.double(), expected["log_p"], atol=1e-5, rtol=1e-5)
