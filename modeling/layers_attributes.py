"""Attributes (words) of images: a score of each word in each region, joined by noisy-OR multiple-instance learning.

The method is that of Fang et al., CVPR 2015, "From Captions to Visual Concepts and Back", section 3. The Entangled
Transformer takes its attributes from such a detector.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .layers_attention import at_least_float32

# Below, softplus(z) equals its series e^z - e^2z / 2 up to rounding, and its logarithm has a series too.
SMALL_LOGIT = -15.0
# Below, 1 - e^-u equals u (1 - u / 2 + u^2 / 6) up to rounding.
SMALL_HAZARD = 1e-4
LOG_2 = 0.6931471805599453


class Presence(NamedTuple):
    """Log-probabilities that each word is, and is not, in an image; logarithms keep the digits of small products.

    Args:
        log_present: log p, `[B, W]`.
        log_absent: log (1 - p), `[B, W]`.
    """

    log_present: Tensor
    log_absent: Tensor

    @property
    def probabilities(self) -> Tensor:
        """Return the probability of each word, `[B, W]`."""
        return -torch.expm1(self.log_absent)


def log_softplus(logits: Tensor) -> Tensor:
    """Return log(log(1 + e^z)) without underflow for very negative logits z."""
    small = logits - logits.clamp(max=SMALL_LOGIT).exp() / 2
    usual = (-nn.functional.logsigmoid(-logits.clamp(min=SMALL_LOGIT))).log()
    return torch.where(logits < SMALL_LOGIT, small, usual)


def noisy_or(logits: Tensor, mask: Tensor | None = None) -> Presence:
    """Join word scores of regions: a word is absent if no region shows it, `p = 1 - prod_j (1 - sigmoid(z_j))`.

    With u = -log(1 - p) = sum_j softplus(z_j), values and gradients stay finite also where p itself would round to 0
    or 1: log p is computed from log u where u is small.

    Args:
        logits: `[B, R, W]`, scores z of W words in R regions.
        mask: `[B, R]`, True = a real region; None: all are.

    Returns:
        log p and log (1 - p), `[B, W]`, in float32 or float64.
    """
    logits = at_least_float32(logits)
    if mask is not None:
        logits = logits.masked_fill(~mask[..., None], -torch.inf)
    hazard = -nn.functional.logsigmoid(-logits).sum(1)  # u, [B, W]
    log_hazard = torch.logsumexp(log_softplus(logits), dim=1)  # log u, [B, W]
    small = log_hazard - hazard / 2 + hazard.square() / 24
    usual = hazard.clamp(min=SMALL_HAZARD)
    # Each form is exact on its side of log 2 (Maechler, 2012, "Accurately Computing log(1 - exp(-|a|))").
    usual = torch.where(usual < LOG_2, (-torch.expm1(-usual.clamp(max=1.0))).log(), torch.log1p(-torch.exp(-usual)))
    return Presence(torch.where(hazard < SMALL_HAZARD, small, usual), -hazard)


def attribute_nll(presence: Presence, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of the presence or absence of each word, `[B, W]`.

    Args:
        presence: see `noisy_or`.
        labels: `[B, W]`, 1 where a caption of the image has the word, 0 elsewhere.
    """
    return -torch.where(labels.bool(), presence.log_present, presence.log_absent)


class WordScores(nn.Linear):
    """Linear layer from region features to one logit per word.

    Args:
        size: width of the regions.
        words: W.
        initial_bias: first bias of every word.
    """

    def __init__(self, size: int, words: int, initial_bias: float) -> None:
        super().__init__(size, words)
        self.initial_bias = initial_bias

    def reset_parameters(self) -> None:
        """Initialise weights by Xavier, and biases with `initial_bias`, at which words are improbable."""
        init.xavier_uniform_(self.weight)
        init.constant_(self.bias, getattr(self, "initial_bias", 0.0))  # nn.Linear calls this before it is set


class AttributeNetwork(nn.Module):
    """Feed-forward network from the features of each region to one logit per word.

    On a grid of a CNN this is what fully connected layers compute when they are run as convolutions.

    Args:
        config: read are `region_feature_size`, `words`, `hidden_sizes`, `dropout` and `initial_bias`.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        sizes = [config.region_feature_size, *config.hidden_sizes]
        self.hidden = nn.ModuleList([nn.Linear(*pair) for pair in zip(sizes, sizes[1:], strict=False)])
        self.dropout = nn.Dropout(config.dropout)
        self.score = WordScores(sizes[-1], len(config.words), config.initial_bias)

    def forward(self, regions: Tensor) -> Tensor:
        """Return the logits `[B, R, W]` of all words in regions `[B, R, D]`.

        Raises:
            ValueError: the regions have another width than those that the network was made for.
        """
        expected = (self.hidden[0] if self.hidden else self.score).in_features
        if regions.shape[-1] != expected:
            raise ValueError(
                f"The regions have {regions.shape[-1]} features, the attribute detector was trained on {expected} "
                "(`detector_config.region_feature_size`). Use a detector that was trained on the features of the "
                "captioner: `hf-captioners attributes train`."
            )
        for layer in self.hidden:
            regions = self.dropout(layer(regions).relu())
        return self.score(regions)


class Attributes(NamedTuple):
    """Attributes (most probable words) of B images, the most probable first.

    Args:
        ids: `[B, N]` int64, numbers of words.
        mask: `[B, N]`, True = an attribute.
        probabilities: `[B, N]`.
    """

    ids: Tensor
    mask: Tensor
    probabilities: Tensor


def top_attributes(probabilities: Tensor, number: int, threshold: float) -> Attributes:
    """Select the most probable words of each image.

    Args:
        probabilities: `[B, W]`; a negative number excludes a word.
        number: at most this many, N = min(number, W).
        threshold: least probability.
    """
    chosen, ids = probabilities.topk(min(number, probabilities.shape[-1]), dim=-1)
    return Attributes(ids, chosen >= max(threshold, 0.0), chosen)
