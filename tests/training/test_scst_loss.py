"""The gradient of self-critical training is that of the expected reward, enumerated over every caption."""

import itertools

import pytest
import torch

from hf_captioners.training.scst.loss import (
    chosen_logprobs,
    sample_baseline,
    self_critical_loss,
    token_divergence,
    token_entropy,
)

VOCABULARY, LENGTH, END = 3, 3, 0
SAMPLES, IMAGES = 4, 60_000


def all_captions():
    """Every caption of at most three tokens over {end, 1, 2}: up to its end token, or cut off."""
    rows = itertools.product(range(VOCABULARY), repeat=LENGTH)
    return sorted({row[: row.index(END) + 1] if END in row else row for row in rows})


CAPTIONS = all_captions()


def padded(values, dtype):
    rows = [torch.tensor(row, dtype=dtype) for row in values]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


TOKENS = padded(CAPTIONS, torch.long)  # [captions, T]
REAL = padded([[True] * len(caption) for caption in CAPTIONS], torch.bool)


@pytest.fixture
def policy():
    """Logits as parameters, one row for each beginning of a caption: `[contexts, V]`; and the rewards of captions."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1 + 3 + 9, VOCABULARY, generator=generator, dtype=torch.float64)
    rewards = 2 * torch.rand(len(CAPTIONS), generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), rewards


def token_logprobs(logits):
    """`[captions, T]`, 0 after the end."""
    first = torch.zeros(len(CAPTIONS), dtype=torch.long)
    contexts = torch.stack((first, 1 + TOKENS[:, 0], 4 + 3 * TOKENS[:, 0] + TOKENS[:, 1]), 1)
    logprobs = logits.log_softmax(-1)[contexts].gather(-1, TOKENS[..., None])[..., 0]
    return logprobs.masked_fill(~REAL, 0.0)


def expected_gradient(logits, rewards):
    """The gradient of minus the expected reward, summed over all captions."""
    probabilities = token_logprobs(logits).sum(-1).exp()
    assert probabilities.sum().item() == pytest.approx(1)
    return torch.autograd.grad(-(probabilities * rewards).sum(), logits)[0].flatten()


def sampled_gradients(logits, rewards, baseline):
    """Gradients `[IMAGES, components]` of the loss of one image each, drawn with a fixed seed.

    A caption's gradient is that of its log-probability, so each of the 13 or so captions is differentiated once.
    """
    logprobs = token_logprobs(logits)
    per_caption = torch.stack(
        [torch.autograd.grad(row.sum(), logits, retain_graph=True)[0].flatten() for row in logprobs]
    )
    probabilities = logprobs.sum(-1).exp().detach()
    generator = torch.Generator().manual_seed(11)
    drawn = torch.multinomial(probabilities, IMAGES * SAMPLES, replacement=True, generator=generator)
    drawn = drawn.view(IMAGES, SAMPLES)
    sampled = rewards[drawn]
    advantages = sampled - baseline(sampled, drawn)
    return -(advantages[..., None] * per_caption[drawn]).mean(1), drawn, advantages


def baselines(logits, rewards):
    greedy = rewards[token_logprobs(logits).sum(-1).argmax()]
    return {
        "greedy": lambda sampled, drawn: greedy.expand_as(sampled),
        "moving_average": lambda sampled, drawn: torch.full_like(sampled, 0.7),
        "leave_one_out": lambda sampled, drawn: sample_baseline("leave_one_out", sampled),
        "beam_mean": lambda sampled, drawn: sample_baseline("beam_mean", sampled),
    }


@pytest.mark.parametrize(
    ("name", "share"),
    [("greedy", 1), ("moving_average", 1), ("leave_one_out", 1), ("beam_mean", (SAMPLES - 1) / SAMPLES)],
)
def test_the_gradient_is_that_of_the_expected_reward(policy, name, share):
    logits, rewards = policy
    expected = share * expected_gradient(logits, rewards)
    gradients, drawn, advantages = sampled_gradients(logits, rewards, baselines(logits, rewards)[name])
    error = gradients.std(0) / IMAGES**0.5
    assert error.norm() < 0.05 * expected.norm()
    assert ((gradients.mean(0) - expected).abs() <= 4 * error + 1e-12).all()
    # The loss function gives the same gradient as the captions' own, for the first images.
    few = drawn[:50]
    loss = self_critical_loss(token_logprobs(logits)[few], REAL[few], advantages[:50], length=1)
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0].flatten(), gradients[:50].mean(0))


def test_the_share_of_the_mean_baseline_shows(policy):
    """The test above can distinguish them: the whole gradient is many standard errors away from (K - 1) / K of it."""
    logits, rewards = policy
    gradients, *_ = sampled_gradients(logits, rewards, baselines(logits, rewards)["beam_mean"])
    error = gradients.std(0) / IMAGES**0.5
    assert ((gradients.mean(0) - expected_gradient(logits, rewards)).abs() > 4 * error).any()


def test_the_loss_of_beams_by_hand():
    """An image, two beams of 2 and 3 tokens, longest caption 4 tokens, rewards 1 and 3."""
    logprobs = torch.tensor([[[-1.0, -2.0, -9.0], [-0.5, -0.5, -1.0]]])
    real = torch.tensor([[[True, True, False], [True, True, True]]])
    rewards = torch.tensor([[1.0, 3.0]])
    advantages = rewards - sample_baseline("beam_mean", rewards)  # -1 and 1
    # mean of -(-1) * -3 / 4 and -(1) * -2 / 4
    assert self_critical_loss(logprobs, real, advantages, length=4).item() == pytest.approx((-0.75 + 0.5) / 2)
    # over the five real tokens: -((-1) * -3 + 1 * -2) / 5
    assert self_critical_loss(logprobs, real, advantages, length=None).item() == pytest.approx(-1 / 5)


def test_leave_one_out_by_hand():
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    assert sample_baseline("leave_one_out", rewards).tolist() == [[4.0, 3.5, 1.5], [1.5, 1.5, 0.0]]
    assert sample_baseline("beam_mean", rewards).tolist() == [[3.0] * 3, [1.0] * 3]


@pytest.mark.parametrize(("name", "number"), [("leave_one_out", 1), ("beam_mean", 1), ("greedy", 3)])
def test_a_baseline_that_samples_cannot_give(name, number):
    with pytest.raises(ValueError, match="at least 2"):
        sample_baseline(name, torch.ones(2, number))


def test_logprobs_entropy_and_divergence():
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 5, 7, generator=generator).unbind(0)
    tokens = torch.tensor([0, 3, 6, 2, 2])
    mine, theirs = torch.distributions.Categorical(logits=logits), torch.distributions.Categorical(logits=other)
    torch.testing.assert_close(chosen_logprobs(logits, tokens), mine.log_prob(tokens))
    torch.testing.assert_close(token_entropy(logits), mine.entropy())
    torch.testing.assert_close(token_divergence(logits, other), torch.distributions.kl_divergence(mine, theirs))
    half = chosen_logprobs(logits.to(torch.bfloat16), tokens)
    assert half.dtype == torch.float32
