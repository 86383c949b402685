"""Numerical comparisons of models that hold on every CPU, and a fixture with unaligned weights.

Weights are compared bit by bit. Logits, states and losses are compared within rounding: the order of a float32 sum
depends on the alignment of its operands, the number of threads and the instruction set.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

ROUNDING = 1e-6  # share of max(1, the largest magnitude) by which two computations of one value may differ
OFFSET = 8  # bytes; safetensors aligns the data of a file to 8 bytes, vector instructions want 64
# A constant added to all scores of a query leaves the softmax as it is. The gradient of these biases is rounding
# noise, which Adam scales to the learning rate.
KEY_BIASES = ("k_proj.bias", "key.bias", "c_attn.bias")


def assert_same_weights(actual: nn.Module, expected: nn.Module) -> None:
    """Assert that all parameters and buffers, saved or not, are bitwise equal."""
    for kind in ("named_parameters", "named_buffers"):
        ours, theirs = dict(getattr(actual, kind)()), dict(getattr(expected, kind)())
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert torch.equal(ours[name], tensor), f"{name} differs"


def assert_computed_alike(actual: Tensor, expected: Tensor, tolerance: float = ROUNDING) -> None:
    """Assert `|actual - expected| <= tolerance * max(1, max |expected|)` everywhere, same shape and type."""
    magnitude = expected.detach().abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, atol=tolerance * max(1.0, magnitude), rtol=0.0)


def assert_trained_alike(actual: nn.Module, expected: nn.Module, tolerance: float = 1e-5) -> None:
    """Assert that two runs over the same batches end with equal weights, up to rounding."""
    ours, theirs = actual.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        if not name.endswith(KEY_BIASES):
            torch.testing.assert_close(ours[name], weight, atol=tolerance, rtol=tolerance, msg=name)


def place_weights(model: nn.Module, offset: int = OFFSET) -> None:
    """Copy parameters and buffers to storage that starts `offset` bytes after an aligned address."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "meta":  # offloaded
            continue
        storage = torch.empty(tensor.nbytes + offset, dtype=torch.uint8)
        placed = storage[offset:].view(tensor.dtype).view(tensor.shape)
        tensor.data = placed.copy_(tensor.detach())
        assert tensor.data_ptr() % 64 == offset


@pytest.fixture(params=[0, OFFSET], ids=["aligned", "offset"])
def place(request, monkeypatch) -> Iterator[Callable[[nn.Module], None]]:
    """Run a test with the loaded weights aligned, and again at 8 bytes after an aligned address.

    The value places the weights of a model that does not come from `from_pretrained`.
    """
    original = PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = original(cls, *args, **kwargs)
        place_weights(loaded[0] if isinstance(loaded, tuple) else loaded, request.param)
        return loaded

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))
    yield lambda model: place_weights(model, request.param)
