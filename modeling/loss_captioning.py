"""Cross-entropy of captions at their target tokens, some at a time, so that logits of all are never held."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear_cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

IGNORED_LABEL = -100  # the default `ignore_index` of PyTorch's cross-entropy
LOGITS_AT_A_TIME = 2**24  # 64 MB in float32


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32, or in float64 where they have it."""
    return values if values.dtype == torch.float64 else values.float()


def is_plain_linear(layer: nn.Module, states: Tensor) -> bool:
    """Whether a layer only multiplies float32 states by its weight, so that a loss may read the weight itself.

    It may not under autocast or compilation, nor where a hook or another library (adapters, sharded weights) takes
    part in the call.
    """
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward or "forward" in vars(layer):
        return False
    weight = layer.weight
    ordinary = type(weight) is nn.Parameter and type(weight.data) is Tensor
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    of_others = any(hooks) or torch.is_autocast_enabled(states.device.type) or torch.compiler.is_compiling()
    return ordinary and weight.dtype == states.dtype == torch.float32 and not of_others


class CaptionLossMixin:
    """Loss of captioners with a language-modelling head."""

    config: Any
    model: Any
    lm_head: nn.Module

    @property
    def loss_reads_attentions(self) -> bool:
        """Whether `caption_loss` needs `cross_attentions`. Architectures may override this property."""
        return False

    @property
    def loss_reads_tokens(self) -> bool:
        """Whether the loss needs the negative log-likelihood of each token, and not only their sum.

        Architectures override this property if their `nll_of` is no cross-entropy or their `auxiliary_loss` reads
        tokens.
        """
        return bool(self.config.label_smoothing)

    def tokens_of_loss(self, labels: Tensor) -> Tensor | None:
        """Return the mask `[B * K, T]` of the tokens up to the last target, for a decoder that skips the others."""
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
        nll = self.summed_nll(hidden, labels) if logits is None and not self.loss_reads_tokens else None
        if nll is None:
            nll = self.token_nll(hidden, labels, logits)
        loss = self.reduce_nll(nll, labels, num_items_in_batch)
        return loss + self.auxiliary_loss(outputs, nll, labels, num_items_in_batch)

    def auxiliary_loss(
        self, outputs: ModelOutput, nll: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None
    ) -> Tensor | float:
        """Return the terms that an architecture adds to the negative log-likelihood; default: none.

        Args:
            outputs: outputs of the model, with `cross_attentions` if `loss_reads_attentions`.
            nll: `[B * K, T]`, see `token_nll`; without `loss_reads_tokens` possibly only their sum.
            labels: `[B * K, T]`.
            num_items_in_batch: see `forward`.
        """
        return 0.0

    def summed_nll(self, hidden: Tensor, labels: Tensor) -> Tensor | None:
        """Return the sum of `token_nll` over several pieces whose gradients are computed with them.

        Unlike in `token_nll`, no piece is computed twice.

        Returns:
            A scalar; None where there is one piece, no gradient, or `lm_head` is no plain linear layer.
        """
        real = labels != IGNORED_LABEL
        pieces = math.ceil(int(real.sum()) / self.tokens_at_a_time)
        if pieces < 2 or not torch.is_grad_enabled() or not is_plain_linear(self.lm_head, hidden):
            return None
        targets = labels[real]  # [tokens]
        size = math.ceil(len(targets) / pieces)
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=size, allow_retain_graph=True)
        weights: Any = {"linear_weight": self.lm_head.weight, "linear_bias": self.lm_head.bias}
        return linear_cross_entropy(hidden[real], target=targets, **weights, reduction="sum", options=options)

    def token_nll(self, hidden: Tensor, labels: Tensor, logits: Tensor | None) -> Tensor:
        """Return the negative log-likelihood of each target token in float32, `[B * K, T]`; 0 without a target.

        Without `logits` they are computed at the targets only, at most `LOGITS_AT_A_TIME` of them at a time; each of
        several pieces is computed again for its gradient.
        """
        real = labels != IGNORED_LABEL  # [B * K, T]
        targets = labels[real]  # [tokens]
        if logits is not None:
            nll = self.nll_of(at_least_float32(logits[real]), targets)
        else:
            size = self.tokens_at_a_time
            pieces = [*zip(hidden[real].split(size), targets.split(size), strict=True)]
            if len(pieces) > 1 and torch.is_grad_enabled():
                found = [checkpoint(self._nll_of_states, *piece, use_reentrant=False) for piece in pieces]
            else:
                found = [self._nll_of_states(*piece) for piece in pieces]
            nll = torch.cat(found)
        return torch.zeros_like(labels, dtype=nll.dtype).masked_scatter(real, nll)  # [tokens] to [B * K, T]

    @property
    def tokens_at_a_time(self) -> int:
        """Number of tokens whose logits are held at a time."""
        return max(1, LOGITS_AT_A_TIME // self.config.vocab_size)

    def _nll_of_states(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return `nll_of` the logits of last hidden states `[tokens, D]`."""
        return self.nll_of(at_least_float32(self.lm_head(states)), targets)

    def nll_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target `[tokens]` under its logits `[tokens, V]`.

        With label smoothing s, return the divergence from the distribution of 1 - s at the target and s / (V - 1)
        elsewhere.
        """
        smoothing, others = self.config.label_smoothing, logits.shape[-1] - 1
        if not smoothing:
            return cross_entropy(logits, targets, reduction="none")
        # PyTorch spreads the smoothing over all words, the target included, and leaves out the entropy.
        over_all = self.config.label_smoothing_over == "all_words"
        share = smoothing if over_all else smoothing * (others + 1) / others
        other, target = share / (others + 1), 1 - share + share / (others + 1)
        entropy = -target * math.log(target) - others * other * math.log(other)
        return cross_entropy(logits, targets, reduction="none", label_smoothing=share) - entropy

    def reduce_nll(self, nll: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Reduce the negative log-likelihoods `[B * K, T]` to the loss."""
        if self.config.loss_reduction == "sum":
            return nll.sum()
        count = (labels != IGNORED_LABEL).sum() if self.config.loss_reduction == "token_mean" else len(labels)
        return nll.sum() / count * self.share_of_step(labels, num_items_in_batch)

    @staticmethod
    def share_of_step(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
        """Return this batch's share of the target tokens of an optimisation step; 1 without accumulation."""
        if num_items_in_batch is None:
            return 1.0
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(labels.device)
        return (labels != IGNORED_LABEL).sum() / num_items_in_batch
