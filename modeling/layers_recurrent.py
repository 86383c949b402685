"""Layers of recurrent decoders: an LSTM cell with word and context inputs, and a cache of its state."""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class LSTMState(NamedTuple):
    """State of an LSTM layer: hidden state h and memory c, each `[B * K, n]`."""

    hidden: Tensor
    memory: Tensor


class LSTMGates(NamedTuple):
    """Gates of an LSTM layer: input i, forget f and output o, each `[..., n]`, in (0, 1)."""

    input: Tensor
    forget: Tensor
    output: Tensor


class LSTMCell(nn.Module):
    """LSTM cell with a word and a context as input (Hochreiter & Schmidhuber, 1997; Show, Attend and Tell, Eq. 12-14).

    All words of a caption are known before the first step and are projected together; the context is computed in each
    step. The four blocks of every projection are i, f, g, o, as in PyTorch.

    Args:
        word_size: width of the words.
        context_size: width of the context.
        hidden_size: n.
    """

    def __init__(self, word_size: int, context_size: int, hidden_size: int) -> None:
        super().__init__()
        self.word_projection = nn.Linear(word_size, 4 * hidden_size)
        self.context_projection = nn.Linear(context_size, 4 * hidden_size, bias=False)
        self.hidden_projection = nn.Linear(hidden_size, 4 * hidden_size, bias=False)

    def forward(self, projected_word: Tensor, context: Tensor, state: LSTMState) -> tuple[LSTMState, LSTMGates]:
        """Run one step.

        Args:
            projected_word: `[B * K, 4 n]`, output of `word_projection`.
            context: `[B * K, context_size]`.
            state: state before the step.

        Returns:
            The state after the step, and the gates `[B * K, n]`.
        """
        # Eq. 12, [B * K, 4 n]
        summed = projected_word + self.context_projection(context) + self.hidden_projection(state.hidden)
        i, f, g, o = summed.chunk(4, dim=-1)  # each [B * K, n]
        gates = LSTMGates(i.sigmoid(), f.sigmoid(), o.sigmoid())
        memory = gates.forget * state.memory + gates.input * g.tanh()  # Eq. 13
        return LSTMState(gates.output * memory.tanh(), memory), gates  # Eq. 14


def keep_state(mask: Tensor | None, new: LSTMState, old: LSTMState) -> LSTMState:
    """Return the new state where `mask` `[B * K]` is True, and the old state elsewhere."""
    if mask is None:
        return new
    return LSTMState(*(torch.where(mask[:, None], one, other) for one, other in zip(new, old, strict=True)))
