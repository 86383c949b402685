"""Layers of recurrent decoders: an LSTM cell with word and context inputs, and a cache of its state."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


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


class RecurrentLayer(CacheLayerMixin):
    """Cached state of one recurrent layer: two tensors with one row per text row, and the number of tokens read.

    The inherited methods reorder the rows of `keys` (h) and `values` (c).
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Set device and dtype; nothing is allocated."""
        self.device, self.dtype, self.is_initialized = key_states.device, key_states.dtype, True

    def update(  # type: ignore[override]
        self, key_states: Tensor, value_states: Tensor, num_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Replace the state by the one after `num_tokens` more tokens."""
        self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        self.cumulative_length += num_tokens
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Return the number of tokens read."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length of a mask over all tokens, and its offset."""
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the length is not limited."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to crop: a recurrent state cannot remove its last tokens.

        Raises:
            ValueError: always.
        """
        raise ValueError("A recurrent state cannot be cropped: generate again from the begin token.")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        if self.is_initialized:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        if self.is_initialized:
            self.keys, self.values = self.keys[indices], self.values[indices]


class RecurrentCache(Cache):
    """Cache of recurrent states for `generate()`.

    It holds only tensors that change with the step, so that beams reorder nothing else. Tensors of the images, such as
    attention keys, are part of the encoder's outputs.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RecurrentLayer)

    def state(self, layer_idx: int) -> LSTMState | None:
        """Return the state of a layer; None before its first token."""
        if layer_idx >= len(self.layers) or not self.layers[layer_idx].get_seq_length():
            return None
        return LSTMState(self.layers[layer_idx].keys, self.layers[layer_idx].values)

    @staticmethod
    def require(cache: Any) -> "RecurrentCache":
        """Return `cache` if it is a `RecurrentCache`.

        Raises:
            TypeError: if it is a different cache.
        """
        if not isinstance(cache, RecurrentCache):
            raise TypeError(
                f"`past_key_values` is a {type(cache).__name__}, a recurrent decoder needs a `RecurrentCache`; "
                "omit it to create one."
            )
        return cache
