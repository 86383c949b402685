"""Layers of recurrent captioners: cache, LSTM cell, AoANet's attention LSTM, and its refining encoder."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers import initialization as init
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import can_return_tuple

from .inputs_captioning import RegionFeatures
from .layers_attention import AttentionOnAttention, FeedForward, JoinedWeights, Residual
from .layers_regions import UnbiasedLayerNorm, mean_of_visible, rows_of_images
from .modeling_captioning import (
    CaptioningDecoderOutput,
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningLMOutput,
    CaptioningPreTrainedModel,
)

# States of an attention LSTM decoder between tokens, by their names in the cache; a "memory" is the cell state.
STATES = ("hidden", "memory", "context", "context_memory")


class RecurrentCacheLayer(CacheLayerMixin):
    """Cache of one recurrent layer: its named states after the last token, such as `hidden` `[rows, D]`."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.cumulative_length = 0
        self.states: dict[str, Tensor] = {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Record device and type; the tensors come with the first update."""
        self.device, self.dtype, self.is_initialized = key_states.device, key_states.dtype, True

    def update(self, num_tokens: int, states: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Replace the states by the new ones, after `num_tokens` more tokens."""
        first = next(iter(states.values()))
        self.lazy_initialization(first, first)
        self.states = dict(states)
        self.cumulative_length += num_tokens

    def get_seq_length(self) -> int:
        """Return the number of tokens read so far."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length of a mask over past and new tokens, and its offset 0."""
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the length of captions is not limited."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Accept a crop of 0 tokens; recurrent states cannot forget tokens.

        Raises:
            ValueError: there are some, and states cannot forget a token.
        """
        if tokens_to_remove and self.states:
            raise ValueError("A recurrent state cannot be cropped: caption anew from the begin token.")

    def reset(self) -> None:
        """Clear the states."""
        self.states, self.cumulative_length = {}, 0

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        self.states = {name: change(values) for name, values in self.states.items()}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder rows after a beam search step: row i continues row `beam_idx[i]`."""
        self._change_rows(lambda values: values.index_select(0, beam_idx.to(values.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times."""
        self._change_rows(lambda values: values.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        self._change_rows(lambda values: values[indices])


class RecurrentCache(Cache):
    """Cache of recurrent states for `generate()`, `[rows, ...]` each; states of images stay in the encoder's outputs.

    What belongs to images, such as projected attention keys, is in the encoder's outputs.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RecurrentCacheLayer)

    def layer(self, layer_idx: int) -> RecurrentCacheLayer:
        """Return the cache of layer `layer_idx`; create it if it is missing."""
        while len(self.layers) <= layer_idx:
            self.layers.append(RecurrentCacheLayer())
        return self.layers[layer_idx]

    def state(self, layer_idx: int) -> dict[str, Tensor] | None:
        """Return the named states of a layer; None before its first token."""
        layer = self.layer(layer_idx)
        return layer.states if layer.get_seq_length() else None

    def update(self, layer_idx: int, num_tokens: int, **states: Tensor) -> None:  # type: ignore[override]
        """Replace the states of a layer by the new ones, after `num_tokens` more tokens."""
        self.layer(layer_idx).update(num_tokens, states)

    @staticmethod
    def require(cache: Any) -> "RecurrentCache":
        """Return `cache` unchanged if it is a `RecurrentCache`; otherwise raise an error.

        Raises:
            TypeError: it is a cache of another type.
        """
        if not isinstance(cache, RecurrentCache):
            raise TypeError(
                f"`cache` is a {type(cache).__name__}, a recurrent decoder needs a `RecurrentCache`; "
                "omit it to create one."
            )
        return cache


class LSTMState(NamedTuple):
    """State of an LSTM layer: hidden state h and cell state c (`memory`), each `[B * K, n]`."""

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
        """Compute one time step.

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
        cell = gates.forget * state.memory + gates.input * g.tanh()  # Eq. 13
        return LSTMState(gates.output * cell.tanh(), cell), gates  # Eq. 14


def keep_state(mask: Tensor | None, new: LSTMState, old: LSTMState) -> LSTMState:
    """Select the new LSTM state where `mask` `[B * K]` is True, the old one elsewhere; entries may be None."""
    if mask is None:
        return new
    pairs = zip(new, old, strict=True)
    return LSTMState(
        *(None if new_part is None else torch.where(mask[:, None], new_part, old_part) for new_part, old_part in pairs)
    )


def read_lengths(token_mask: Tensor | None) -> Tensor | None:
    """Return the number of tokens of each row, `[B * K]`; None if there is no padding, or not only at the ends.

    On a GPU None too: to wait for the numbers costs more than the steps that they save.

    Args:
        token_mask: `[B * K, T]`, True = a real token.
    """
    if token_mask is None or token_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    if not bool(token_mask.any()) or bool(token_mask.all()):
        return None
    padding_first = token_mask[:, 1:] & ~token_mask[:, :-1]
    return None if bool(padding_first.any()) else token_mask.sum(1)


class RunningRows:
    """Rows of a batch whose captions have not ended at a step: a recurrent layer skips the others in training.

    Images are sorted by their longest caption, so that the rows of every step are the first ones.

    Args:
        lengths: `[B * K]`, see `read_lengths`.
        images: B.
        steps: T.
    """

    def __init__(self, lengths: Tensor, images: int, steps: int) -> None:
        longest = lengths.unflatten(0, (images, -1)).amax(1)  # [B]
        self.order = longest.argsort(descending=True, stable=True)  # [B]
        after = torch.arange(steps, device=lengths.device)[:, None]
        # Number of images at each step that has any
        self.counts = [count for count in (longest > after).sum(1).tolist() if count]
        self.steps, self.images, self.rows_of_image = steps, images, len(lengths) // images

    def sort(self, *values: Tensor | None) -> tuple[Any, ...]:
        """Sort tensors `[B, ...]` or `[B * K, ...]` by the longest caption of each image, longest first."""
        parts = (None if tensor is None else tensor.unflatten(0, (self.images, -1)) for tensor in values)
        return tuple(None if part is None else part.index_select(0, self.order).flatten(0, 1) for part in parts)

    def cut(self, step: int, *values: Tensor | None) -> tuple[Any, ...]:
        """Cut tensors of the previous step to the images whose captions have not ended at this step."""
        before, now = self.counts[step - 1] if step else self.images, self.counts[step]
        if before == now:
            return values
        return tuple(None if tensor is None else tensor[: len(tensor) // before * now] for tensor in values)

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        """Stack the outputs `[rows, ...]` of all steps to `[B * K, T, ...]` in the original order; 0 after the end."""
        each = torch.arange(self.rows_of_image, device=self.order.device)
        rows = (self.order[:, None] * self.rows_of_image + each).flatten()  # [B * K], places of the sorted rows
        places = torch.cat([rows[: len(part)] * self.steps + step for step, part in enumerate(parts)])
        joined = torch.cat(tuple(parts))
        full = joined.new_zeros(len(rows) * self.steps, *joined.shape[1:])
        return full.index_copy(0, places, joined).unflatten(0, (len(rows), self.steps))


def stack_steps(steps: Sequence[tuple[Any, ...]], running: RunningRows | None) -> tuple[Any, ...]:
    """Stack tuples of outputs `[rows, ...]` (or None) of all steps to `[B * K, T, ...]` each."""
    stack = stacking(running)
    return tuple(None if parts[0] is None else stack(parts) for parts in zip(*steps, strict=True))


def stacking(running: RunningRows | None) -> Callable[[Sequence[Tensor]], Tensor]:
    """Return the function that stacks tensors `[rows, ...]` of every step to `[B * K, T, ...]`."""
    return running.stack if running is not None else lambda parts: torch.stack(tuple(parts), 1)


def join_step_weights(parts: Sequence[Tensor | None], running: RunningRows | None) -> Tensor | None:
    """Join the attention weights `[rows, ..., R]` of all steps to `[B * K, ..., T, R]`, see `JoinedWeights`."""
    if parts[0] is None:
        return None
    stack = stacking(running)
    return JoinedWeights.of(parts, lambda values: stack(values).movedim(1, -2))  # [B * K, T, ..., R] before


def initialize_as_torch(module: nn.Module) -> None:
    """Initialise linear layers, LSTM cells and word embeddings of a module as PyTorch does, for `_init_weights`.

    Linear maps are uniform in +-1 / sqrt(inputs), LSTM cells in +-1 / sqrt(n), embeddings normal with deviation 1.
    """
    for child in module.modules():
        if isinstance(child, nn.Embedding):
            init.normal_(child.weight)
        elif isinstance(child, nn.Linear):
            bound = 1 / math.sqrt(child.in_features)
            init.uniform_(child.weight, -bound, bound)
            if child.bias is not None:
                init.uniform_(child.bias, -bound, bound)
    for cell in (child for child in module.modules() if isinstance(child, LSTMCell)):  # after their linear maps
        bound = 1 / math.sqrt(cell.hidden_projection.in_features)
        for parameter in cell.parameters():
            init.uniform_(parameter, -bound, bound)


class AttendedContext(nn.Module):
    """Context vector of one step, from the attended vector and the hidden state of the attention LSTM.

    Args:
        kind: `"aoa"`: attention on attention; `"lstm"`: a second LSTM, whose hidden state is the context; `"base"`: a
            rectified linear map.
        attended_size: W.
        hidden_size: D of state and context.
    """

    def __init__(self, kind: str, attended_size: int, hidden_size: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "aoa":
            self.aoa = AttentionOnAttention(hidden_size, first_size=attended_size)
        elif kind == "lstm":
            self.lstm = LSTMCell(attended_size, hidden_size, hidden_size)
        else:
            self.projection = nn.Linear(attended_size + hidden_size, hidden_size)

    @property
    def has_memory(self) -> bool:
        """True if the context comes from an LSTM, whose cell state is carried from step to step."""
        return self.kind == "lstm"

    def forward(self, attended: Tensor, hidden: Tensor, state: LSTMState) -> tuple[LSTMState, Tensor | None]:
        """Return the context `[B * K, D]` with its cell state or None, and the gate `[B * K, D]` of `"aoa"`.

        Args:
            attended: `[B * K, W]`.
            hidden: `[B * K, D]`, of the attention LSTM.
            state: the context and its cell state before the step.
        """
        if self.kind == "aoa":
            context, gate = self.aoa.with_gate(attended, hidden)
            return LSTMState(context, None), gate
        if self.kind == "lstm":
            return self.lstm(self.lstm.word_projection(attended), hidden, state)[0], None
        return LSTMState(self.projection(torch.cat((attended, hidden), dim=-1)).relu(), None), None


class AttentionLSTMGates(NamedTuple):
    """Gates of an attention LSTM decoder over all tokens.

    Args:
        context: gate of attention on attention, `[B * K, T, D]`; None for other contexts.
        attention: gates among several attentions, `[B * K, T, M]`; None where there are none.
    """

    context: Tensor | None
    attention: Tensor | None


class AttentionLSTMLayer(GradientCheckpointingLayer):
    """Attention LSTM with attention and context, over all tokens of a batch of captions (AoANet, section 3.2.2).

    The LSTM reads the word, and the sum of a global vector of the image and the previous context; its state is the
    query of the attention.

    Args:
        word_size: E.
        hidden_size: D of state, global vector and context.
        attention: called with states `[B * K, D]` and what its `prepare` returns; returns attended vectors
            `[B * K, W]`, weights `[B * K, ..., R]` or None, and gates or None.
        context: see `AttendedContext`.
        context_dropout: rate on the previous context.
        output_residual: whether the output is the sum of context and state instead of the context alone.
    """

    def __init__(
        self,
        word_size: int,
        hidden_size: int,
        attention: nn.Module,
        context: AttendedContext,
        context_dropout: float = 0.0,
        output_residual: bool = False,
    ) -> None:
        super().__init__()
        self.lstm = LSTMCell(word_size, hidden_size, hidden_size)
        self.attention = attention
        self.context = context
        self.context_dropout = nn.Dropout(context_dropout)
        self.output_residual = output_residual

    def forward(
        self,
        words: Tensor,
        global_state: Tensor,
        token_mask: Tensor | None,
        lengths: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
        context: Tensor,
        context_cell: Tensor | None,
        *prepared: Any,
    ) -> tuple[Tensor | None, ...]:
        """Compute all time steps of a batch of captions.

        Args:
            words: `[B * K, T, E]`.
            global_state: `[B * K, D]`, the vector of the image.
            token_mask: `[B * K, T]`, True = a real token; other tokens do not change the states.
            lengths: `[B * K]`, tokens of each row that are run (see `RunningRows`) instead of all; the states after
                the last step are then those of the longest captions.
            hidden, cell: hidden and cell state of the attention LSTM before the first step, `[B * K, D]`.
            context, context_cell: context before the first step, `[B * K, D]`, and its cell state or None.
            prepared: what the attention reads of the images.

        Returns:
            Outputs `[B * K, T, D]`, attention weights `[B * K, ..., T, R]` or None, context gates `[B * K, T, D]` or
            None, attention gates `[B * K, T, M]` or None; then the four states after the last step. One flat tuple,
            which gradient checkpointing requires.
        """
        running = None if lengths is None else RunningRows(lengths, len(prepared[0]), words.shape[1])
        if running is not None:
            words, global_state, hidden, cell, context, context_cell, *prepared = running.sort(
                words, global_state, hidden, cell, context, context_cell, *prepared
            )
            token_mask = None  # padding follows the tokens, and is not run
        state, read = LSTMState(hidden, cell), LSTMState(context, context_cell)
        steps, step_weights = [], []
        projected = self.lstm.word_projection(words)  # [B * K, T, 4 D]
        for step in range(words.shape[1] if running is None else len(running.counts)):
            if running is not None:
                global_state, *both = running.cut(step, global_state, *state, *read, *prepared)
                state, read, prepared = LSTMState(*both[:2]), LSTMState(*both[2:4]), both[4:]
            image = global_state + self.context_dropout(read.hidden)  # [B * K, D]
            new, _ = self.lstm(projected[: image.shape[0], step], image, state)
            attended, weights, attention_gates = self.attention(new.hidden, *prepared)
            new_context, gate = self.context(attended, new.hidden, read)
            mask = None if token_mask is None else token_mask[:, step]
            state, read = keep_state(mask, new, state), keep_state(mask, new_context, read)
            output = state.hidden + read.hidden if self.output_residual else read.hidden
            steps.append((output, gate, attention_gates))
            step_weights.append(weights)
        outputs, gates, attention_gates = stack_steps(steps, running)
        return outputs, join_step_weights(step_weights, running), gates, attention_gates, *state, *read


class AttentionLSTMPreTrainedModel(CaptioningPreTrainedModel):
    """Base class of captioners with a refining encoder and an attention LSTM."""

    _no_split_modules = ["RefiningLayer", "AttentionLSTMLayer", "VisionBackbone"]
    _is_stateful = True
    cache_class = RecurrentCache

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as PyTorch does, on which the released codes rely."""
        super()._init_weights(module)
        if isinstance(module, (CaptioningEncoder, CaptioningForConditionalGeneration)):
            for name, child in module.named_children():
                if name not in ("vision", "model"):
                    initialize_as_torch(child)
        elif isinstance(module, AttentionLSTMDecoder):
            initialize_as_torch(module)

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the gate of attention on attention for each token `[B * K, T]`, averaged over features."""
        context = outputs.gates[-1].context if outputs.gates else None
        return {} if context is None else {"attention gate": context.mean(-1)}


class AttentionLSTMDecoder(AttentionLSTMPreTrainedModel):
    """Base class of attention LSTM decoders: word embeddings, states, cache and outputs around the layer.

    A subclass sets the modules below.

    Attributes:
        embedding: table of the words, rectified before use.
        layer: the layer.
        dropout: on words and on the output.
    """

    main_input_name = "input_ids"
    gradient_checkpointing = False
    _input_embed_layer = "embedding"
    skips_padding = True

    embedding: nn.Embedding
    layer: AttentionLSTMLayer
    dropout: nn.Dropout

    def initial_states(self, encoder_outputs: CaptioningEncoderOutput, rows: int) -> list[dict[str, Tensor]]:
        """Return the states `[B * K, D]` of the layer before the first token: zeros."""
        global_state = encoder_outputs.global_state
        zeros = global_state.new_zeros(rows, global_state.shape[-1])
        names = STATES if self.layer.context.has_memory else STATES[:-1]
        return [dict.fromkeys(names, zeros)]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        encoder_outputs: CaptioningEncoderOutput,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        output_gates: bool = False,
    ) -> CaptioningDecoderOutput:
        """Decode text rows `[B * K, T]` with the encoder outputs of B images, among them `global_state` `[B, D]`.

        Returns:
            `CaptioningDecoderOutput`; `hidden_states` are the words, the outputs of the layer, and these after
            dropout; `cross_attentions` are `([B * K, ..., T, R],)`, `gates` are `(AttentionLSTMGates,)`.
        """
        if self.gradient_checkpointing and self.training:
            use_cache, cache = False, None  # the backward pass runs layers again, and would update it twice
        if cache is None and use_cache:
            cache = RecurrentCache()
        cache = None if cache is None else RecurrentCache.require(cache)
        rows, length = input_ids.shape
        token_mask = None if attention_mask is None else attention_mask[:, -length:].bool()  # [B * K, T]
        words = self.embedding(input_ids)  # [B * K, T, E]
        vectors = rows_of_images(encoder_outputs.global_state, rows)  # [B, D] to [B * K, D]
        first = None if cache is None else cache.state(0)
        first = self.initial_states(encoder_outputs, rows)[0] if first is None else first
        prepared = self.layer.attention.prepare(encoder_outputs, rows)
        inputs = self.dropout(words.relu())
        can_skip = self.training and cache is None and self.skips_padding
        # Rows cannot be cut from a mask of flex attention.
        can_skip = can_skip and all(value is None or isinstance(value, Tensor) for value in prepared)
        lengths = read_lengths(token_mask) if can_skip else None
        outputs, weights, context_gates, attention_gates, *last = self.layer(
            inputs, vectors, token_mask, lengths, *(first.get(name) for name in STATES), *prepared
        )
        if cache is not None:
            kept = {name: state for name, state in zip(STATES, last, strict=True) if state is not None}
            cache.update(0, length, **kept)
        hidden = self.dropout(outputs)
        return CaptioningDecoderOutput(
            last_hidden_state=hidden,
            cache=cache if use_cache else None,
            hidden_states=(words, outputs, hidden) if output_hidden_states else None,
            cross_attentions=(weights,) if output_attentions else None,
            gates=(AttentionLSTMGates(context_gates, attention_gates),) if output_gates else None,
        )


class RefiningStep(NamedTuple):
    """Masks, relations and shared modules that every refining layer reads beside the regions.

    Args:
        attention_mask: of the regions, in the form that attentions without a graph take.
        region_mask: `[B, R]`, True = visible; None: all are.
        relations: `[B, R, R]` between regions, for layers with a graph.
        shared: attention and output of the layers that have none of their own.
    """

    attention_mask: Any
    region_mask: Tensor | None = None
    relations: Tensor | None = None
    shared: tuple[nn.Module, nn.Module] | None = None


class RefiningLayer(GradientCheckpointingLayer):
    """Encoder layer of AoANet: pre-norm self-attention over regions, then attention on attention or a projection.

    `x + dropout(f(LN(x)))`, and `x + dropout(FF(LN(x)))` if `inner_size` is given.

    Args:
        hidden_size: D.
        attention: called with the normalised regions as queries and as keys, and with what `read` returns; returns
            the joined heads `[B, R, W]`, attention weights or None, and what else it records.
        output: `AttentionOnAttention` of joined heads and normalised regions, or `nn.Linear(W, D)` of the heads.
            Both are None in layers that share those of `RefiningStep`.
        inner_size: width inside of the feed-forward layer; None: there is none.
        dropout: rate on the outputs of both sub-layers and inside of the feed-forward layer.
    """

    def __init__(
        self,
        hidden_size: int,
        attention: nn.Module | None,
        output: nn.Module | None,
        inner_size: int | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        around: dict[str, Any] = {"norm_first": True, "dropout": dropout, "norm": UnbiasedLayerNorm, "eps": 1e-6}
        self.self_attn = attention
        self.output = output
        self.self_attn_residual = Residual(hidden_size, **around)
        self.feed_forward = FeedForward(hidden_size, inner_size, dropout=dropout) if inner_size else None
        self.feed_forward_residual = Residual(hidden_size, **around) if inner_size else None

    def read(self, step: RefiningStep) -> tuple[Any, ...]:
        """Return the arguments of the attention beside queries and keys: the mask."""
        return (step.attention_mask,)

    def forward(self, regions: Tensor, step: RefiningStep) -> tuple[Any, ...]:
        """Return refined regions `[B, R, D]`, attention weights, and the gate or the records of the attention.

        The gate of attention on attention is `[B, R, D]`; None for a projection.
        """
        attention, output = (self.self_attn, self.output) if self.self_attn is not None else step.shared
        normed = self.self_attn_residual.before(regions)
        attended, weights, *records = attention(normed, normed, *self.read(step))
        gate = None
        if isinstance(output, AttentionOnAttention):
            refined, gate = output.with_gate(attended, normed)
        else:
            refined = output(attended)
        regions = self.self_attn_residual.after(regions, refined)
        if self.feed_forward is not None:
            inner = self.feed_forward(self.feed_forward_residual.before(regions))
            regions = self.feed_forward_residual.after(regions, inner)
        return regions, weights, *(records or (gate,))


class RefiningEncoder(AttentionLSTMPreTrainedModel, CaptioningEncoder):
    """Base of the encoders of AoANet and Image Transformer: refining layers, then keys and values for the decoder.

    A subclass sets the modules below.

    Attributes:
        layers: refining layers, see `RefiningLayer`.
        norm: applied after the last layer.
        key_projection, value_projection: keys and values of the decoder's attention; without values it reads regions.
        global_projection: of the vector of the image; None: the decoder reads the mean of the refined regions.
        dropout: on the projected vector of the image.
    """

    layers: nn.ModuleList
    norm: nn.Module
    key_projection: nn.Linear
    value_projection: nn.Linear | None
    global_projection: nn.Linear | None
    dropout: nn.Dropout

    def add_global_vector(self, config: Any) -> None:
        """Create the projection of the global image vector that `config.global_vector` needs."""
        sizes = {"projected": config.region_feature_size, "given": config.global_feature_size}
        vector_size = sizes.get(config.global_vector)
        self.global_projection = nn.Linear(vector_size, config.hidden_size) if vector_size else None
        self.dropout = nn.Dropout(config.dropout)

    def global_state(self, regions: RegionFeatures, refined: Tensor, given: Tensor | None) -> Tensor:
        """Return the global vector `[B, D]` of each image that the LSTM reads, by `config.global_vector`.

        Raises:
            ValueError: `global_features` are missing, not read, or of another width.
        """
        rule, mask = self.config.global_vector, regions.region_mask
        if given is not None and rule != "given":
            raise ValueError(
                f"`global_features` are given, but `config.global_vector` is {rule!r}: omit them, or build the model "
                'with `global_vector="given"`.'
            )
        if rule == "mean":
            return mean_of_visible(refined, mask)
        if rule == "projected":
            vectors = mean_of_visible(regions.region_features, mask)
        elif given is None:
            raise ValueError(
                "`global_features` are missing: this captioner reads a vector of each image "
                f"[images, {self.config.global_feature_size}] (`config.global_vector` is 'given')."
            )
        elif given.shape[1:] != (self.config.global_feature_size,):
            raise ValueError(
                f"`global_features` has the shape {tuple(given.shape)}, expected "
                f"({len(refined)}, {self.config.global_feature_size}) (images, `config.global_feature_size`)."
            )
        else:
            vectors = given.to(refined.dtype)
        return self.dropout(self.global_projection(vectors).relu())

    def refine(
        self,
        regions: RegionFeatures,
        projected: Tensor,
        step: RefiningStep,
        global_features: Tensor | None,
        output_attentions: bool,
        output_hidden_states: bool,
        output_gates: bool,
    ) -> CaptioningEncoderOutput:
        """Run the refining layers on projected regions, and project keys and values for the decoder.

        Args:
            regions: the regions as they came in.
            projected: `[B, R, D]`.
            step: what the layers read beside the regions.
            global_features: `[B, G]` or None.

        Returns:
            `CaptioningEncoderOutput` with keys and values of the decoder's attention in `level_states` `[B, 2, R, W]`
            (keys alone, `[B, 1, R, A]`, where it reads the regions), `global_state` `[B, D]`, and the gates
            `[B, R, D]` of the layers, on request.
        """
        hidden, states, weights, gates = projected, [projected], [], []
        for layer in self.layers:
            hidden, layer_weights, layer_gate = layer(hidden, step)
            states.append(hidden)
            weights.append(layer_weights)
            gates.append(layer_gate)
        states[-1] = refined = self.norm(hidden)
        prepared = [self.key_projection(refined)]
        if self.value_projection is not None:
            prepared.append(self.value_projection(refined))
        return CaptioningEncoderOutput(
            last_hidden_state=refined,
            level_states=torch.stack(prepared, dim=1),
            region_mask=regions.region_mask,
            global_state=self.global_state(regions, refined, global_features),
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(weights) if output_attentions else None,
            gates=tuple(gates) if output_gates else None,
        )
