"""Log-probabilities of caption tokens, computed in chunks to limit the memory of logits.

The output layer of a captioner is called for some tokens at a time, inside the forward pass of the captioner, so that
wrappers of several processes see the whole graph. Each of several pieces is computed again for its gradient.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_captioners.modeling.losses_captioning import LOGITS_AT_A_TIME

from .loss import chosen_logprobs, token_divergence, token_entropy

# Logit of tokens that are never sampled: probability zero, and finite in every precision.
SUPPRESSED_LOGIT = -1e4


class TokenScores(NamedTuple):
    """Scores of the tokens of N captions, 0 after the end token.

    Args:
        logprobs: `[N, T]`, log-probability of each token.
        entropies: `[N, T]`, entropy in nats of the distribution of each token; None if it was not asked for.
        divergences: `[N, T]`, Kullback-Leibler divergence in nats from a reference; None without a reference.
    """

    logprobs: Tensor
    entropies: Tensor | None
    divergences: Tensor | None


class TokenScoring:
    """Computation of token scores from the hidden states before the output layer.

    Args:
        suppressed: ids of tokens with probability zero.
        temperature: the logits are divided by it.
        with_entropy: compute entropies too.
    """

    def __init__(self, suppressed: list[int], temperature: float = 1.0, with_entropy: bool = False) -> None:
        self.suppressed, self.temperature, self.with_entropy = suppressed, temperature, with_entropy

    def adjusted(self, logits: Tensor) -> Tensor:
        """Return logits `[..., V]` with the restrictions of sampling, but without its temperature."""
        if not self.suppressed:
            return logits
        return logits.index_fill(-1, torch.tensor(self.suppressed, device=logits.device), SUPPRESSED_LOGIT)

    def of_logits(self, logits: Tensor, tokens: Tensor, reference: Tensor | None = None) -> Tensor:
        """Return the scores `[tokens, 1 to 3]` of `tokens` `[tokens]` from logits `[tokens, V]`.

        Args:
            logits: as the captioner computes them.
            tokens: the tokens.
            reference: `[tokens, V]`, logits of a reference, without a graph.
        """
        logits = self.adjusted(logits) / self.temperature
        columns = [chosen_logprobs(logits, tokens)]
        if self.with_entropy:
            columns.append(token_entropy(logits))
        if reference is not None:
            columns.append(token_divergence(logits, self.adjusted(reference) / self.temperature))
        return torch.stack(columns, -1)

    def of_states(
        self,
        layer: Callable[[Tensor], Tensor],
        states: Tensor,
        tokens: Tensor,
        reference: "tuple[Callable[[Tensor], Tensor], Tensor] | None" = None,
    ) -> Tensor:
        """Return the scores `[tokens, 1 to 3]` of `tokens` `[tokens]` from hidden states, in chunks.

        Args:
            layer: maps states `[tokens, D]` to logits `[tokens, V]`.
            states: `[tokens, D]`.
            tokens: the tokens.
            reference: layer and states of a reference.
        """

        def score(states: Tensor, tokens: Tensor, *others: Tensor) -> Tensor:
            compared = None
            if reference is not None:
                with torch.no_grad():
                    compared = reference[0](others[0])
            return self.of_logits(layer(states), tokens, compared)

        inputs = (states, tokens) if reference is None else (states, tokens, reference[1])
        size = self.tokens_at_a_time(layer)
        if len(tokens) <= size:
            return score(*inputs)
        size = math.ceil(len(tokens) / math.ceil(len(tokens) / size))
        run = partial(checkpoint, score, use_reentrant=False) if torch.is_grad_enabled() else score
        return torch.cat([run(*piece) for piece in zip(*(values.split(size) for values in inputs), strict=True)])

    @staticmethod
    def tokens_at_a_time(layer: Any) -> int:
        """Return the number of tokens per chunk of logits."""
        owner = getattr(layer, "__self__", layer)  # a bound `forward`
        weight = getattr(getattr(owner, "base_layer", owner), "weight", None)
        return max(1, LOGITS_AT_A_TIME // (50_000 if weight is None else len(weight)))

    def split(self, scores: Tensor) -> TokenScores:
        """Split scores `[N, T, 1 to 3]` into named arrays."""
        columns = list(scores.unbind(-1))
        logprobs = columns.pop(0)
        entropies = columns.pop(0) if self.with_entropy else None
        return TokenScores(logprobs, entropies, columns.pop(0) if columns else None)


def placed(values: Tensor, at: Tensor, shape: torch.Size) -> Tensor:
    """Scatter values `[tokens, F]` to positions `at` of an array `[N, T, F]` of zeros."""
    rows = values.new_zeros(shape.numel(), values.shape[-1])
    return rows.index_copy(0, at, values).view(*shape, -1)


def output_layer(model: Any) -> nn.Module:
    """Return the layer of a captioner that computes logits."""
    layer = model.get_output_embeddings()
    return model.text_decoder.get_output_embeddings() if layer is None else layer  # BLIP names none


@contextmanager
def output_layer_reads(
    layer: nn.Module, read: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
) -> Iterator[None]:
    """Context manager that replaces a layer's forward function in this thread only; reward threads are unaffected.

    Args:
        layer: the layer.
        read: function of the layer's own `forward` and its input.
    """
    original, patched, thread = layer.forward, vars(layer).get("forward"), get_ident()

    def forward(states: Tensor) -> Tensor:
        return read(original, states) if get_ident() == thread else original(states)

    layer.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        if patched is None:
            del layer.forward
        else:
            layer.forward = patched  # type: ignore[method-assign]
