"""Packed weights: equal captions, never stale, and left out of everything but generation."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

from hf_captioners.modeling import layers_packed
from hf_captioners.modeling.layers_packed import PACKING, PackedConv1D, PackedLinear, can_pack, packed_layers
from tests.comparisons import assert_computed_alike
from tests.hub.captioner_cases import case_of

CASE = case_of("visualgpt")
OPTIONS = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 6}
OPERATORS = {"int8": "onednn::qlinear_pointwise", "float16": "quantized::linear_dynamic_fp16"}
kinds = pytest.mark.parametrize("weights", PACKING)


@pytest.fixture(autouse=True)
def packs(request):
    if not can_pack("float32"):
        pytest.skip("this machine has no oneDNN")
    weights = getattr(request.node, "callspec", None) and request.node.callspec.params.get("weights")
    if weights == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products of bfloat16")


class Operators(TorchDispatchMode):
    """Counts the operators that run inside, by name."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition(".")[0]
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def generate(model, **options):
    return model.generate(**CASE.inputs("regions"), **OPTIONS | options)


def assert_fresh(model):
    """Packed and plain weights give the same captions."""
    plain = copy.deepcopy(model)
    plain.restore_weights()
    assert torch.equal(generate(model), generate(plain))


@kinds
def test_the_private_operators_of_torch_are_there(weights):
    """Otherwise everything here computes as before and no other test notices: see `layers_packed`."""
    assert can_pack(weights)


@kinds
@pytest.mark.parametrize("plain_class", [nn.Linear, Conv1D])
def test_products(weights, plain_class):
    torch.manual_seed(0)
    plain = plain_class(*((48, 33) if plain_class is nn.Linear else (33, 48)))
    nn.init.normal_(plain.bias)
    packed, states = copy.deepcopy(plain), torch.randn(2, 5, 48) * torch.logspace(-3, 3, 5)[:, None]
    states[0, 0] = 0
    layers_packed.pack(packed, weights, drop_plain=False)
    with torch.no_grad(), layers_packed.generating(packed):
        found, expected = packed.eval()(states), plain(states)
    assert type(packed) is {nn.Linear: PackedLinear, Conv1D: PackedConv1D}[plain_class]
    error = ((found - expected).abs() / states.norm(dim=-1, keepdim=True).clamp(min=1)).amax()
    assert error < {"float32": 1e-5, "float16": 5e-4, "bfloat16": 2e-2, "int8": 2e-2}[weights]
    assert torch.equal(found[0, 0], plain.bias), "a row of zeros has no scale"


def test_weights_that_float16_does_not_have_are_packed_as_they_are():
    layer, states = nn.Linear(16, 16, bias=False), torch.rand(3, 16)
    with torch.no_grad():
        layer.weight[0, 0] = 1e5
        expected = layer(states)
        layers_packed.pack(layer, "float16", drop_plain=False)
        with layers_packed.generating(layer):
            torch.testing.assert_close(layer.eval()(states), expected)


@kinds
def test_only_generation_computes_with_packed_weights(weights):
    model = CASE.make_model()
    model.optimize_for_generation(weights)
    assert model.packed_weights == weights
    operator = OPERATORS.get(weights, "mkldnn::_linear_pointwise")
    inputs = {**CASE.inputs("regions"), "labels": CASE.labels(model)}
    with Operators() as generating:
        generate(model)
    with Operators() as others:
        model(**inputs).loss.backward()
        with torch.no_grad():
            model(**inputs)
        generate(model.train())
    assert generating.counts[operator] > 100 and operator not in others.counts
    model.eval().restore_weights()
    assert model.packed_weights is None and not list(packed_layers(model))
    with Operators() as restored:
        generate(model)
    assert operator not in restored.counts


def fused_steps(model):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        model(**CASE.inputs("regions"), labels=CASE.labels(model)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def written_data(model):
    for parameter, other in zip(model.parameters(), CASE.make_model(seed=1).parameters(), strict=True):
        parameter.data.copy_(other.data)


def swapped_storage(model):
    for parameter, other in zip(model.parameters(), CASE.make_model(seed=1).parameters(), strict=True):
        parameter.data = other.data.clone()


def permuted_rows(model):
    for layer in packed_layers(model):
        layer.weight.data.copy_(layer.weight.data.flip(0))


def negated(model):
    for layer in packed_layers(model):
        layer.weight.data.neg_()


def loaded(model):
    model.load_state_dict(CASE.make_model(seed=1).state_dict())


def loaded_by_assignment(model):
    model.load_state_dict(CASE.make_model(seed=1).state_dict(), assign=True)
    model.tie_weights()


def averaged(model):
    mean = torch.optim.swa_utils.AveragedModel(model)
    mean.module.load_state_dict(CASE.make_model(seed=1).state_dict())
    mean.n_averaged += 1
    mean.update_parameters(model)
    for parameter, other in zip(model.parameters(), mean.module.parameters(), strict=True):
        parameter.data.copy_(other.data)


@pytest.mark.parametrize(
    "change",
    [
        fused_steps,
        written_data,
        swapped_storage,
        permuted_rows,
        negated,
        loaded,
        loaded_by_assignment,
        averaged,
    ],
)
def test_changed_weights_are_packed_again(change):
    model = CASE.make_model()
    model.optimize_for_generation()
    before = generate(model, output_scores=True, return_dict_in_generate=True)
    change(model)
    assert_fresh(model)
    after = generate(model, output_scores=True, return_dict_in_generate=True)
    assert not torch.equal(before.scores[0], after.scores[0])


def test_inference_mode():
    with torch.inference_mode():
        model = CASE.make_model()
        model.optimize_for_generation()
        generate(model)
        for parameter, other in zip(model.parameters(), CASE.make_model(seed=1).parameters(), strict=True):
            parameter.copy_(other)
        assert_fresh(model)


def test_unchanged_weights_are_packed_once():
    model = CASE.make_model()
    model.optimize_for_generation()
    generate(model)
    products = [layer.product for layer in packed_layers(model)]
    generate(model)
    assert products and all(layer.product is one for layer, one in zip(packed_layers(model), products, strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_pack_their_own_weights(copied):
    model = CASE.make_model()
    model.optimize_for_generation("int8")
    expected, other = generate(model), copied(model)
    assert all(layer.product is None for layer in packed_layers(other)) and other.packed_weights == "int8"
    assert torch.equal(generate(other), expected)
    assert all(layer.product is not None for layer in packed_layers(model))


def test_saved_files_are_those_of_plain_weights(tmp_path):
    model = CASE.make_model()
    model.save_pretrained(tmp_path / "plain")
    model.optimize_for_generation()
    model.save_pretrained(tmp_path / "packed")
    torch.save(model, tmp_path / "whole.pt")
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("plain", "packed")]
    assert files[0] == files[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "packed")]
    assert weights[0] == weights[1]
    assert torch.equal(generate(torch.load(tmp_path / "whole.pt", weights_only=False)), generate(model))


@kinds
def test_without_plain_weights(weights):
    model = CASE.make_model()
    model.optimize_for_generation(weights)
    expected, size = generate(model), sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    model.optimize_for_generation(weights, drop_plain=True)
    assert sum(parameter.untyped_storage().nbytes() for parameter in model.parameters()) < size / 2
    assert torch.equal(generate(model), expected)
    with torch.no_grad():
        assert_computed_alike(generate(model, return_dict_in_generate=True).sequences, expected)
        assert torch.isfinite(model(**CASE.inputs("regions"), decoder_input_ids=CASE.captions(model)).logits).all()
    assert model.dtype == torch.float32 and model.device.type == "cpu"
    for refused in (
        model.state_dict,
        model.train,
        model.restore_weights,
        lambda: copy.deepcopy(model),
        lambda: pickle.dumps(model),
        lambda: model.to("meta"),
        lambda: model(**CASE.inputs("regions"), labels=CASE.labels(model)),
    ):
        with pytest.raises(RuntimeError, match="load it again with `from_pretrained`"):
            refused()


def test_wrong_requests():
    model = CASE.make_model()
    with pytest.raises(ValueError, match="'int4', expected one of 'float32', 'float16', 'bfloat16', 'int8'"):
        model.optimize_for_generation("int4")
    with pytest.raises(ValueError, match="has bfloat16: load it with `dtype=torch.float32`"):
        model.to(torch.bfloat16).optimize_for_generation("int8")


def test_other_number_formats_after_packing():
    """The plain path computes what packed weights are not made for."""
    model = CASE.make_model()
    model.optimize_for_generation()
    expected = generate(clone_plain(model).double())
    assert torch.equal(generate(model.double()), expected)
    model = model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16), Operators() as operators:
        generate(model)
    assert "mkldnn::_linear_pointwise" not in operators.counts


def clone_plain(model):
    plain = copy.deepcopy(model)
    plain.restore_weights()
    return plain


def test_a_machine_without_the_operators(monkeypatch, caplog):
    def missing(weight):
        raise AttributeError("no operator")

    monkeypatch.setitem(PACKING, "float32", missing)
    model = CASE.make_model()
    expected = generate(model)
    model.optimize_for_generation()
    assert model.packed_weights is None and torch.equal(generate(model), expected)


def test_an_ensemble_packs_its_members():
    from hf_captioners import CaptionerEnsemble

    ensemble = CaptionerEnsemble([CASE.make_model(), CASE.make_model(seed=1)])
    expected = generate(ensemble)
    ensemble.optimize_for_generation()
    assert torch.equal(generate(ensemble), expected)
    written_data(ensemble.members[0])
    assert_fresh(ensemble)
