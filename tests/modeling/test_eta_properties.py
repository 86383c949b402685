"""Properties of the Entangled Transformer that follow from its equations, in float64."""

import copy
import math

import pytest
import torch

from hf_captioners.modeling.layers_attributes import attribute_nll, noisy_or
from hf_captioners.modeling.modeling_eta import (
    ACTIVATIONS,
    BilateralController,
    ETAEncoder,
    ETAEncoderOutput,
)

from .common_case import IMAGES, TOKENS, row
from .eta_case import ETACase

CASE = ETACase()
ATTRIBUTES = {
    "attribute_ids": torch.tensor([[4, 6, 9, 5], [7, 8, 0, 0], [5, 0, 0, 0]]),
    "attribute_mask": torch.tensor([[True] * 4, [True, True, False, False], [True, False, False, False]]),
}
EXACT = 1e-12


def make(**fields):
    """Return a captioner in float64."""
    return CASE.make_model(**fields).double()


def inputs(**changes):
    """Return regions and attributes."""
    given = CASE.inputs("regions")
    return {"region_features": given["region_features"].double(), "region_mask": given["region_mask"]} | (
        ATTRIBUTES | changes
    )


@torch.no_grad()
def logprobs(model, images=None, captions=None):
    """Return log-probabilities `[B, T, V]`."""
    captions = CASE.captions(model) if captions is None else captions
    return model(**(inputs() if images is None else images), decoder_input_ids=captions).logits.log_softmax(-1)


def difference(one, other) -> float:
    return (one - other).abs().max().item()


def layers(model):
    return model.model.decoder.decoder_layers


def like(model, **fields):
    """Return a captioner of other fields with the weights that both have."""
    other = make(**fields)
    state = model.state_dict()
    other.load_state_dict({name: state[name] for name in other.state_dict()})
    return other


def inside(model, images=None) -> dict[str, torch.Tensor]:
    """Return a, the attended vectors, the gate and e of the last block."""
    found, layer = {}, layers(model)[-1]
    hooks = [layer.self_attn_residual.norm.register_forward_hook(lambda _, args, out: found.update(a=out))]
    hooks.append(layer.feed_forward.register_forward_pre_hook(lambda _, args: found.update(e=args[0])))
    for name, attention in layer.attentions.items():
        hooks.append(attention.register_forward_hook(lambda _, args, out, name=name: found.update({name: out[0]})))
    with torch.no_grad():
        out = model(
            **(inputs() if images is None else images), decoder_input_ids=CASE.captions(model), output_gates=True
        )
    for hook in hooks:
        hook.remove()
    return found | ({} if out.gates is None else {"gate": out.gates[-1]})


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.mark.parametrize(("bias", "fusion"), [(60.0, "stacked_v"), (-60.0, "stacked_s")])
def test_closed_gate_is_a_stack(model, bias, fusion):
    """Property 1, Eq. 11 and 12."""
    closed = copy.deepcopy(model)
    with torch.no_grad():
        for layer in layers(closed):
            layer.controller.gate.weight.zero_()
            layer.controller.gate.bias.fill_(bias)
    assert difference(logprobs(closed), logprobs(like(model, fusion=fusion))) < EXACT
    assert difference(logprobs(closed), logprobs(model)) > 1e-2


def test_order_of_a_set_does_not_matter(model):
    """Property 2: regions and attributes have no positions; with `encoder_positions` they have."""
    generator = torch.Generator().manual_seed(0)
    regions, words = torch.randperm(5, generator=generator), torch.randperm(4, generator=generator)
    given = inputs()
    mixed = {name: value[:, words if "attribute" in name else regions] for name, value in given.items()}
    assert difference(logprobs(model, mixed), logprobs(model)) < EXACT
    ordered = like(model, encoder_positions=True)
    assert difference(logprobs(ordered, mixed), logprobs(ordered)) > 1e-3


def test_masked_entries_change_nothing(model):
    """Property 3."""
    given = inputs()
    more = {
        "region_features": torch.cat((given["region_features"], 1e3 * torch.ones(IMAGES, 2, 24).double()), dim=1),
        "region_mask": torch.cat((given["region_mask"], torch.zeros(IMAGES, 2, dtype=torch.bool)), dim=1),
        "attribute_ids": torch.cat((given["attribute_ids"], torch.full((IMAGES, 3), 11)), dim=1),
        "attribute_mask": torch.cat((given["attribute_mask"], torch.zeros(IMAGES, 3, dtype=torch.bool)), dim=1),
    }
    assert difference(logprobs(model, more), logprobs(model)) < EXACT


def test_words_read_earlier_words_only(model):
    """Property 4, Eq. 7."""
    captions = CASE.captions(model)
    changed = captions.clone()
    changed[:, 3:] = CASE.captions(model, seed=1)[:, 3:]
    moved = (logprobs(model, captions=changed) - logprobs(model)).abs().amax((0, 2))
    assert moved[:3].max() == 0 and moved[3:].min() > 1e-4


def test_repeated_sets_change_nothing(model):
    """Property 5: attention is a mean; one attribute that is repeated weighs more."""
    given = inputs()
    often = {name: value.repeat_interleave(3 if "attribute" in name else 2, dim=1) for name, value in given.items()}
    assert difference(logprobs(model, often), logprobs(model)) < EXACT
    twice = {name: torch.cat((given[name], given[name][:, :1]), dim=1) for name in ATTRIBUTES}
    assert difference(logprobs(model, given | twice), logprobs(model)) > 1e-3


def test_modalities_are_symmetric(model):
    """Property 6: exchange the memories, the attentions and the gate."""
    with torch.no_grad():
        encoded = model.get_encoder()(**inputs())
    (regions, region_mask), (words, word_mask) = encoded.memory(), encoded.memory("attribute")
    swapped = ETAEncoderOutput(
        last_hidden_state=words, region_mask=word_mask, attribute_states=regions, attribute_mask=region_mask
    )
    other, width = copy.deepcopy(model), model.config.hidden_size
    with torch.no_grad():
        for layer in layers(other):
            attentions, gate = layer.attentions, layer.controller.gate
            for one, two in (("semantic_guidance", "visual_guidance"), ("visual_target", "semantic_target")):
                first, second = attentions[one].state_dict(), copy.deepcopy(attentions[two].state_dict())
                attentions[two].load_state_dict(first)
                attentions[one].load_state_dict(second)
            blocks = gate.weight.split(width, dim=1)
            gate.weight.copy_(-torch.cat((blocks[1], blocks[0], blocks[2]), dim=1))
            gate.bias.neg_()
    captions = CASE.captions(model)
    with torch.no_grad():
        expected = model(encoder_outputs=encoded, decoder_input_ids=captions).logits
        found = other(encoder_outputs=swapped, decoder_input_ids=captions).logits
        unchanged = other(encoder_outputs=encoded, decoder_input_ids=captions).logits
    assert difference(found, expected) < EXACT and difference(unchanged, expected) > 1e-2


@pytest.mark.parametrize("fusion", ["entangled", "parallel", "stacked_s", "semantic_only"])
def test_steps_equal_teacher_forcing(model, fusion):
    """Property 7: with keys and values of every attention in the cache."""
    one = like(model, fusion=fusion)
    captions, cache, found = CASE.captions(model), None, []
    with torch.no_grad():
        encoded = one.get_encoder()(**inputs())
        for step in range(TOKENS):
            out = one(
                encoder_outputs=encoded,
                decoder_input_ids=captions[:, step : step + 1],
                cache=cache,
                use_cache=True,
            )
            cache = out.cache
            found.append(out.logits)
    assert difference(torch.cat(found, dim=1).log_softmax(-1), logprobs(one)) < EXACT
    assert len(cache.cross_attention_cache.layers) == len(layers(one)) * len(layers(one)[0].attentions)


def test_the_controller_mixes(model):
    """Property 8: without an activation, e lies between v and s."""
    found = inside(model)
    low = torch.minimum(found["visual_target"], found["semantic_target"])
    high = torch.maximum(found["visual_target"], found["semantic_target"])
    assert ((found["e"] >= low - EXACT) & (found["e"] <= high + EXACT)).all()
    assert ((found["gate"] > 0) & (found["gate"] < 1)).all()
    assert difference(low, high) > 1e-1


def test_targets_without_output_are_guidance(model):
    """Property 9, Eq. 9 and 10: each attention adds to its query."""
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for layer in layers(plain):
            for name, attention in layer.attentions.items():
                attention.residual.norm.weight.fill_(1.0)
                attention.residual.norm.bias.zero_()
                if name.endswith("target"):
                    attention.o_proj.weight.zero_()
                    attention.o_proj.bias.zero_()
    found = inside(plain)
    assert difference(found["visual_target"], found["semantic_guidance"]) < 1e-4  # epsilon of the norms
    assert difference(found["semantic_target"], found["visual_guidance"]) < 1e-4
    assert difference(found["visual_target"], found["visual_guidance"]) > 1e-2


def test_words_and_attributes_share_their_table(model):
    """Property 10: a shift of an attribute's row is noticed; the gradient is the sum of both uses."""
    moved = copy.deepcopy(model)
    captions = CASE.captions(model)
    present = next(iter({4, 6, 9, 5} - set(captions.flatten().tolist())))
    with torch.no_grad():
        moved.get_input_embeddings().weight[present] += 0.5
    assert difference(logprobs(moved), logprobs(model)) > 1e-3
    labels = CASE.labels(model)
    together, apart = copy.deepcopy(model), copy.deepcopy(model)
    words = copy.deepcopy(apart.model.decoder)
    apart.model.encoder.embed_words = lambda ids: words.token_embedding(ids) * words.embedding_scale
    for one in (together, apart):
        one(**inputs(), labels=labels).loss.backward()
    of_attributes = words.token_embedding.weight.grad
    total = apart.get_input_embeddings().weight.grad + of_attributes
    assert of_attributes.abs().sum() > 0
    assert difference(together.get_input_embeddings().weight.grad, total) < EXACT


def test_the_encoder_runs_alone():
    """Without a decoder it embeds attributes by a table of its own, which its weights hold."""
    encoder = ETAEncoder(CASE.make_config(region_feature_size=24)).eval()
    ids = torch.tensor([[4, 5], [6, 9]])
    regions = torch.randn(2, 3, 24)
    out = encoder(region_features=regions, attribute_ids=ids)
    assert out.attribute_states.shape[:2] == (2, 2) and out.last_hidden_state.shape[:2] == (2, 3)
    with torch.no_grad():
        encoder.token_embedding.weight[4] += 1.0
    assert (
        difference(encoder(region_features=regions, attribute_ids=ids).attribute_states, out.attribute_states) > 1e-3
    )


def test_one_region_is_a_constant():
    """Property 11: all weights are 1, and every token gets the same vector."""
    model = make(attn_implementation="eager")
    given = inputs()
    one = {**given, "region_features": given["region_features"][:, :1], "region_mask": given["region_mask"][:, :1]}
    attended = []
    for layer in layers(model):
        layer.attentions["visual_target"].o_proj.register_forward_hook(lambda _, args, out: attended.append(args[0]))
    with torch.no_grad():
        out = model(**one, decoder_input_ids=CASE.captions(model), output_attentions=True)
    assert all(difference(weights, torch.ones_like(weights)) == 0 for weights in out.cross_attentions)
    assert len(attended) == 2
    for vectors in attended:  # [B, T, 1, H * d_v]
        assert difference(vectors, vectors[:, :1]) < EXACT


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_activations_far_from_zero(model, activation):
    """Property 12: relu is the identity where its input is positive; tanh and sigmoid are 1."""
    shifted, one = copy.deepcopy(model), like(model, gbc_activation=activation)
    for other in (shifted, one):
        with torch.no_grad():
            for layer in layers(other):
                for name in ("visual_target", "semantic_target"):
                    layer.attentions[name].residual.norm.bias += 50
    if activation == "relu":
        assert difference(logprobs(one), logprobs(shifted)) == 0
    else:
        assert difference(inside(one)["e"], torch.ones(())) < EXACT
    assert difference(logprobs(like(model, gbc_activation=activation)), logprobs(model)) > 1e-3


def test_equal_memories_leave_the_gate_without_effect(model):
    """Property 13: in parallel fusion with V = S and equal attentions, e = v."""
    one = like(model, fusion="parallel")
    with torch.no_grad():
        for layer in layers(one):
            layer.attentions["visual_guidance"].load_state_dict(layer.attentions["semantic_guidance"].state_dict())
        encoded = one.get_encoder()(**inputs())
        states, mask = encoded.memory("attribute")
        same = ETAEncoderOutput(
            last_hidden_state=states, region_mask=mask, attribute_states=states, attribute_mask=mask
        )
        captions = CASE.captions(one)
        expected = one(encoder_outputs=same, decoder_input_ids=captions).logits
        for layer in layers(one):
            layer.controller.gate.bias += 3
        assert difference(one(encoder_outputs=same, decoder_input_ids=captions).logits, expected) < EXACT
        moved = one(encoder_outputs=encoded, decoder_input_ids=captions).logits
        for layer in layers(one):
            layer.controller.gate.bias -= 3
        assert difference(one(encoder_outputs=encoded, decoder_input_ids=captions).logits, moved) > 1e-3


def test_images_of_a_batch_are_independent(model):
    """Property 14: alone and without padding."""
    captions, together = CASE.captions(model), logprobs(model)
    for index in range(IMAGES):
        alone = row({name: value for name, value in inputs().items() if "region" in name}, index) | {
            name: value[index : index + 1, : 4 if index == 0 else 2] for name, value in ATTRIBUTES.items()
        }
        found = logprobs(model, alone, captions[index : index + 1])
        assert difference(found[0], together[index]) < EXACT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_noisy_or(dtype):
    """Property 15: what a detector does with regions."""
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(2, 5, 7, generator=generator)).to(dtype)
    plain = noisy_or(logits)
    unseen = torch.cat((logits, torch.full((2, 1, 7), -math.inf, dtype=dtype)), dim=1)
    for other in (noisy_or(unseen), noisy_or(logits.flip(1)), noisy_or(torch.cat((logits, logits), 1), MASK)):
        for ours, theirs in zip(other, plain, strict=True):
            torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(noisy_or(logits[:, :1]).probabilities, logits[:, 0].sigmoid())
    torch.testing.assert_close(plain.probabilities, 1 - (1 - logits.sigmoid()).prod(1), atol=1e-6, rtol=1e-5)
    raised = logits.clone()
    raised[:, 2] += 0.5
    assert (noisy_or(raised).log_absent < plain.log_absent).all()
    extreme = torch.linspace(-90, 90, 19, dtype=dtype).expand(1, 3, 19).clone().requires_grad_()
    for label in (0.0, 1.0):
        nll = attribute_nll(noisy_or(extreme), torch.full((1, 19), label))
        (gradient,) = torch.autograd.grad(nll.sum(), extreme)
        assert torch.isfinite(nll).all() and torch.isfinite(gradient).all()
        u = torch.nn.functional.softplus(extreme.detach().double()).sum(1)
        expected = extreme.detach().double().sigmoid() * (1 if label == 0 else -1 / torch.expm1(u))
        torch.testing.assert_close(gradient.double(), expected, atol=1e-6, rtol=1e-4)


MASK = (torch.arange(10) < 5).expand(2, 10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_differential_of_the_controller(activation):
    """Eq. 13 has one of three terms: the path of the gate counts too."""
    torch.manual_seed(0)
    config = CASE.make_config(gbc_activation=activation)
    controller, function = BilateralController(config).double(), ACTIVATIONS[activation]
    semantic_guidance, visual_guidance, text, visual, semantic = torch.randn(5, 1, 1, 16).double()
    visual.requires_grad_()
    fused, gate = controller(semantic_guidance, visual_guidance, text, visual, semantic)
    (found,) = torch.autograd.grad(fused.sum(), visual)
    slope = torch.autograd.functional.jvp(function, visual, torch.ones_like(visual))[1]
    assert difference(found, slope * gate) < EXACT
    preactivation = controller.gate.bias
    (of_gate,) = torch.autograd.grad(
        controller(semantic_guidance, visual_guidance, text, visual, semantic)[0].sum(), preactivation
    )
    assert difference(of_gate, ((function(visual) - function(semantic)) * gate * (1 - gate)).flatten()) < EXACT


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_no_attribute_attends_to_nothing(implementation):
    """An image without attributes: the attended vector is 0, weights are 0, and nothing is NaN."""
    model = make(attn_implementation=implementation)
    empty = inputs(attribute_mask=ATTRIBUTES["attribute_mask"] & torch.tensor([[True], [False], [True]]))
    attended = []
    for layer in layers(model):
        for name in ("semantic_guidance", "semantic_target"):
            layer.attentions[name].o_proj.register_forward_hook(lambda _, args, out: attended.append(args[0]))
    captions = CASE.captions(model)
    out = model(**empty, decoder_input_ids=captions, output_attentions=True)
    assert torch.isfinite(out.logits).all() and len(attended) == 4
    assert all(vectors[1].abs().max() == 0 and vectors[0].abs().max() > 0 for vectors in attended)
    if implementation == "eager":
        assert all(weights[1].abs().max() == 0 for weights in out.attribute_attentions)
    out.logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    other = empty | {"attribute_ids": empty["attribute_ids"].roll(1, 1)}
    assert difference(logprobs(model, other, captions)[1], out.logits.detach().log_softmax(-1)[1]) < EXACT
    assert model.generate(**empty, num_beams=2, max_new_tokens=3).shape[0] == IMAGES
