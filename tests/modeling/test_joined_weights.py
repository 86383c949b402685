"""Attention weights that are joined after they are used: their gradient is that of the parts."""

import pickle

import torch

from hf_captioners.modeling.layers_attention import JoinedWeights, gradient_of_weights

STEPS, ROWS, REGIONS = 4, 3, 5


def recurrence(delta):
    """Steps whose attention depends on that of the step before; `delta` is added to the weights that a step uses."""
    generator = torch.Generator().manual_seed(0)
    regions = torch.randn(REGIONS, 6, generator=generator, requires_grad=True)
    state, parts = torch.randn(ROWS, 6, generator=generator), []
    for step in range(STEPS):
        weights = (state @ regions.T).softmax(-1) + delta[:, step]  # [ROWS, REGIONS]
        state = (weights @ regions + state).tanh()
        parts.append(weights)
    return state.square().sum(), JoinedWeights.of(parts, lambda values: torch.stack(tuple(values), 1))


def test_gradient_is_the_effect_of_the_weights_that_a_step_uses():
    delta = torch.zeros(ROWS, STEPS, REGIONS, requires_grad=True)
    value, weights = recurrence(delta)
    assert torch.equal(gradient_of_weights(value, weights), torch.autograd.grad(value, delta, retain_graph=True)[0])
    assert delta.grad is None, "nothing is accumulated"
    assert weights.grad is None and not weights.retains_grad
    weights.retain_grad()
    value.backward()
    assert weights.retains_grad and torch.equal(weights.grad, delta.grad) and weights.grad.abs().min() > 0


def test_operations_on_joined_weights_are_in_the_graph_of_the_parts():
    """As in a loss that reads the weights: its gradient is added to that of the recurrence."""
    delta = torch.zeros(ROWS, STEPS, REGIONS, requires_grad=True)
    value, weights = recurrence(delta)
    squares = weights.square()
    assert type(squares) is torch.Tensor
    weights.retain_grad()
    (value + squares.sum()).backward()
    value, plain = recurrence(delta.detach().requires_grad_())
    expected = torch.autograd.grad(value + plain.square().sum(), plain.parts)
    torch.testing.assert_close(weights.grad, torch.stack(expected, 1))


def test_without_gradients_weights_are_a_plain_tensor():
    with torch.no_grad():
        _, weights = recurrence(torch.zeros(ROWS, STEPS, REGIONS))
    assert type(weights) is torch.Tensor and weights.shape == (ROWS, STEPS, REGIONS)


def test_unused_weights_have_no_gradient():
    _, weights = recurrence(torch.zeros(ROWS, STEPS, REGIONS))
    other = torch.ones((), requires_grad=True) * 2
    assert torch.equal(gradient_of_weights(other, weights), torch.zeros(ROWS, STEPS, REGIONS))
    weights.retain_grad()
    other.backward()
    assert weights.grad is None


def test_pickled_weights_are_values():
    _, weights = recurrence(torch.zeros(ROWS, STEPS, REGIONS))
    again = pickle.loads(pickle.dumps(weights))
    assert type(again) is torch.Tensor and torch.equal(again, weights)
