"""Losses of captioners: negative log-likelihood of captions, without the logits of a whole batch in memory."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear_cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

from .layers_attention import at_least_float32
from .layers_packed import is_plain_linear

IGNORED_LABEL = -100  # the default `ignore_index` of PyTorch's cross-entropy
LOGITS_AT_A_TIME = 2**24  # of the loss in training; 64 MB in float32


def summed_cross_entropy(layer: nn.Module, states: Tensor, targets: Tensor, at_a_time: int) -> Tensor | None:
    """Return the sum of cross-entropies over tokens, with logits of `at_a_time` tokens in memory at once.

    Args:
        layer: maps states to logits `[tokens, V]`, which are never held for all tokens.
        states: `[tokens, D]`.
        targets: `[tokens]`.
        at_a_time: tokens whose logits are held.

    Returns:
        A scalar; None where few tokens need no pieces, there is no gradient, or the layer does not only multiply.
    """
    pieces = math.ceil(len(targets) / at_a_time)
    if pieces < 2 or not torch.is_grad_enabled() or not is_plain_linear(layer, states):
        return None
    size = math.ceil(len(targets) / pieces)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=size, allow_retain_graph=True)
    weights: Any = {"linear_weight": layer.weight, "linear_bias": layer.bias}
    return linear_cross_entropy(states, target=targets, **weights, reduction="sum", options=options)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float, over_all: bool) -> Tensor:
    """Return the label-smoothed negative log-likelihood of targets `[tokens]` under logits `[tokens, V]`.

    With a smoothing s, return the divergence from the distribution of 1 - s at the target and s / (V - 1) elsewhere,
    or, with `over_all`, of 1 - s + s / V at the target and s / V elsewhere.
    """
    if not smoothing:
        return cross_entropy(logits, targets, reduction="none")
    # PyTorch spreads the smoothing over all words, the target included, and leaves out the entropy.
    others = logits.shape[-1] - 1
    share = smoothing if over_all else smoothing * (others + 1) / others
    other, target = share / (others + 1), 1 - share + share / (others + 1)
    entropy = -target * math.log(target) - others * other * math.log(other)
    return cross_entropy(logits, targets, reduction="none", label_smoothing=share) - entropy


def positions_of_targets(labels: Tensor) -> Tensor | slice:
    """Return the positions of target tokens in flattened labels; on a GPU all positions, which avoids a wait."""
    return (labels.flatten() != IGNORED_LABEL).nonzero()[:, 0] if labels.device.type == "cpu" else slice(None)


class CaptionLossMixin:
    """Loss of a captioner: negative log-likelihood of target tokens, plus the terms of an architecture.

    A class with this mixin has `config`, `model` and `lm_head`.
    """

    config: Any
    model: Any
    lm_head: nn.Module

    @property
    def loss_reads_attentions(self) -> bool:
        """True if `caption_loss` needs `cross_attentions`. Architectures may override this property."""
        return False

    @property
    def loss_reads_tokens(self) -> bool:
        """True if the loss needs the likelihood of each token, and not only the sum over tokens."""
        return bool(self.config.label_smoothing)

    def tokens_of_loss(self, labels: Tensor) -> Tensor | None:
        """Return the mask `[B * K, T]` of tokens up to the last target; None if the decoder runs all tokens."""
        if not self.model.decoder.skips_padding:
            return None
        real = labels != IGNORED_LABEL
        return real.flip(1).cumsum(1).flip(1) > 0

    def caption_loss(
        self, outputs: ModelOutput, labels: Tensor, logits: Tensor | None, num_items_in_batch: Tensor | int | None
    ) -> Tensor:
        """Compute the loss: the negative log-likelihood reduced by `config.loss_reduction`, plus `auxiliary_loss`.

        Args:
            outputs: outputs of the model with the last hidden state `[B * K, T, D]`.
            labels: `[B * K, T]`.
            logits: `[B * K, T, V]`; None: computed at the real target positions.
            num_items_in_batch: see `forward`.
        """
        hidden = outputs.last_hidden_state
        nll = None
        if logits is None and not self.loss_reads_tokens and labels.numel() > self.tokens_at_a_time:
            at = positions_of_targets(labels)
            states, targets = hidden.flatten(0, 1)[at], labels.flatten()[at]
            nll = summed_cross_entropy(self.lm_head, states, targets, self.tokens_at_a_time)
        if nll is None:
            nll = self.token_nll(hidden, labels, logits)
        loss = self.reduce_nll(nll, labels, num_items_in_batch)
        return loss + self.auxiliary_loss(outputs, nll, labels, num_items_in_batch)

    def auxiliary_loss(
        self, outputs: ModelOutput, nll: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None
    ) -> Tensor | float:
        """Return the loss terms that an architecture adds to the negative log-likelihood; default: 0.

        Args:
            outputs: outputs of the model, with `cross_attentions` if `loss_reads_attentions`.
            nll: `[B * K, T]`, see `token_nll`; without `loss_reads_tokens` possibly only their sum.
            labels: `[B * K, T]`.
            num_items_in_batch: see `forward`.
        """
        return 0.0

    def token_nll(self, hidden: Tensor, labels: Tensor, logits: Tensor | None) -> Tensor:
        """Return the negative log-likelihood of each target token in float32, `[B * K, T]`; 0 without a target.

        Without `logits` they are computed at the targets only, at most `LOGITS_AT_A_TIME` of them at a time; each of
        several pieces is computed again for its gradient.
        """
        at = positions_of_targets(labels)
        targets = labels.flatten()[at]  # [tokens]
        if logits is not None:
            nll = self.nll_of(at_least_float32(logits.flatten(0, 1)[at]), targets)
        else:
            size = self.tokens_at_a_time
            pieces = [*zip(hidden.flatten(0, 1)[at].split(size), targets.split(size), strict=True)]
            again = len(pieces) > 1 and torch.is_grad_enabled()
            run = partial(checkpoint, self._nll_of_states, use_reentrant=False) if again else self._nll_of_states
            nll = torch.cat([run(*piece) for piece in pieces])
        nll_of_all = torch.zeros_like(labels, dtype=nll.dtype).flatten()
        nll_of_all[at] = nll.masked_fill(targets == IGNORED_LABEL, 0.0)
        return nll_of_all.view_as(labels)

    @property
    def tokens_at_a_time(self) -> int:
        """Number of tokens whose logits are in memory at once."""
        return max(1, LOGITS_AT_A_TIME // self.config.vocab_size)

    def _nll_of_states(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of targets `[tokens]` from last hidden states `[tokens, D]`."""
        return self.nll_of(at_least_float32(self.lm_head(states)), targets)

    def nll_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target `[tokens]` under its logits `[tokens, V]`."""
        over_all = self.config.label_smoothing_over == "all_words"
        return smoothed_cross_entropy(logits, targets, self.config.label_smoothing, over_all)

    def reduce_nll(self, nll: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Reduce negative log-likelihoods `[B * K, T]` to the loss by `config.loss_reduction`."""
        if self.config.loss_reduction == "sum":
            return nll.sum()
        count = (labels != IGNORED_LABEL).sum() if self.config.loss_reduction == "token_mean" else len(labels)
        return nll.sum() / count * self.share_of_step(labels, num_items_in_batch)

    @staticmethod
    def share_of_step(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
        """Return the share of this batch in the target tokens of an optimisation step; 1 without accumulation."""
        if num_items_in_batch is None:
            return 1.0
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(labels.device)
        return (labels != IGNORED_LABEL).sum() / num_items_in_batch
