"""Losses and baselines of self-critical training.

B images, K captions each, T tokens. Sources: Rennie et al., CVPR 2017 (Eq. 8); Cornia et al., CVPR 2020 (Eq. 11);
Luo, "A Better Variant of Self-Critical Sequence Training", 2020.
"""

import torch
from torch import Tensor

SAMPLE_BASELINES = ("beam_mean", "leave_one_out")
"""Baselines that are computed from the rewards of the samples."""


def sample_baseline(name: str, rewards: Tensor) -> Tensor:
    """Compute the baseline of sampled captions: mean reward of all, or of the other, captions of an image.

    Args:
        name: `"beam_mean"`, the mean over the K captions (M2, VisualGPT; with independent samples the gradient is
            (K - 1) / K of the true one), or `"leave_one_out"`, the mean over the K - 1 others (Luo; unbiased).
        rewards: `[B, K]`.

    Returns:
        `[B, K]`.

    Raises:
        ValueError: the name is unknown, or there is one caption per image.
    """
    number = rewards.shape[1]
    if name not in SAMPLE_BASELINES or number < 2:
        raise ValueError(
            f"The baseline is {name!r} with {number} caption(s) per image, expected one of "
            f"{', '.join(SAMPLE_BASELINES)} with at least 2."
        )
    if name == "beam_mean":
        return rewards.mean(1, keepdim=True).expand_as(rewards)
    return (rewards.sum(1, keepdim=True) - rewards) / (number - 1)


def self_critical_loss(token_logprobs: Tensor, real: Tensor, advantages: Tensor, length: int | None) -> Tensor:
    """Compute the mean over captions of minus the advantage times the caption's log-probability.

    Args:
        token_logprobs: `[B, K, T]`, log-probability of every token of the captions, with a graph.
        real: `[B, K, T]`, True up to and including the end token.
        advantages: `[B, K]`, reward minus baseline.
        length: divisor of the sum over tokens, independent of the caption's length (M2, VisualGPT: 20, the maximum
            length); 1 gives the plain gradient of the expected reward. None divides by the number of real tokens of
            the whole batch instead (ImageCaptioning.pytorch, AoANet, ZoDIAC), which is not exactly the gradient of
            the expected reward, because the divisor depends on the samples.

    Returns:
        The loss, a scalar.
    """
    weighted = token_logprobs.masked_fill(~real, 0.0) * advantages[..., None]
    if length is None:
        return -weighted.sum() / real.sum()
    return -weighted.sum(-1).mean() / length


def chosen_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities `[N]` of `tokens` `[N]` under `logits` `[N, V]`, in float32."""
    logits = logits.float()
    return logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)


def token_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy `[N]` in nats of the distributions `logits` `[N, V]`."""
    logprobs = logits.float().log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def token_divergence(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence `[N]` in nats from a reference model, over the whole vocabulary."""
    logprobs = logits.float().log_softmax(-1)
    reference = reference_logits.float().log_softmax(-1)
    return torch.nn.functional.kl_div(reference, logprobs, reduction="none", log_target=True).sum(-1)
