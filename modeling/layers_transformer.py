"""Layers of Transformer captioners: multi-level region encoder, level gates, cached self-attention, text decoder."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import can_return_tuple

from .inputs_captioning import RegionFeatures, visible_tokens
from .layers_attention import (
    BeamFoldingCrossAttention,
    CaptionCache,
    MultiHeadAttention,
    Residual,
    ResidualRule,
    create_region_mask,
)
from .modeling_captioning import (
    CaptioningDecoderOutput,
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningPreTrainedModel,
)

# Stream `[B * K, T, D]`, self-attention weights, cross-attention weights and gates, as a decoder layer returns them.
LayerOutput = tuple[Tensor, Tensor | None, Tensor | None, Any]


class TransformerPreTrainedModel(CaptioningPreTrainedModel):
    """Base class of Transformer captioners without pretrained parts: initialisation by Xavier."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise matrices by Xavier's uniform law, as the released codes; biases are 0."""
        super()._init_weights(module)
        if isinstance(module, nn.Embedding):
            self._init_words(module.weight)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, PositionTable):
            module.reset()

    def _init_words(self, weight: Tensor) -> None:
        """Initialise the word embedding `[V, D]`."""
        init.xavier_uniform_(weight)


class EncoderLayer(GradientCheckpointingLayer):
    """Base of encoder layers: self-attention over regions and a feed-forward layer, with residual connections.

    A subclass has the attention `self_attn`, which returns the attended regions and what else it records, the layer
    `feed_forward`, and their connections `self_attn_residual` and `feed_forward_residual`.
    """

    def forward(self, regions: Tensor, mask: Any) -> tuple[Any, ...]:
        """Return encoded regions `[B, R, D]`, then what the attention records: its weights `[B, H, R, R]` first."""
        states = self.self_attn_residual.before(regions)
        attended, *records = self.self_attn(states, states, mask)
        regions = self.self_attn_residual.after(regions, attended)
        branch = self.feed_forward(self.feed_forward_residual.before(regions))
        return self.feed_forward_residual.after(regions, branch), *records


class TransformerEncoderLayer(EncoderLayer):
    """Encoder layer built from an attention, a feed-forward layer and residual connections.

    Args:
        self_attn: called with queries, key-value states and mask.
        feed_forward: position-wise layer, such as `FeedForward`.
        residual: makes a `Residual` for each of the two, which decides on the place of the norm.
    """

    def __init__(self, self_attn: nn.Module, feed_forward: nn.Module, residual: Callable[[], Residual]) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()


@dataclass(frozen=True)
class ActivatedResidual(ResidualRule):
    """Residual connection that uses a layer's norm and dropout, with a ReLU after a pre-norm sub-layer."""

    norm: nn.Module
    dropout: nn.Module
    norm_first: bool

    def after(self, states: Tensor, output: Tensor) -> Tensor:
        """Add the sub-layer's output, after a ReLU if pre-norm, to the residual stream `[..., D]`."""
        return super().after(states, output.relu() if self.norm_first else output)


class RegionEncoderLayer(EncoderLayer):
    """Encoder layer of M2 and VisualGPT, with the weight names of their checkpoints.

    Args:
        config: selects the attention implementation.
        hidden_size: D.
        num_heads: H.
        inner_size: width inside of the feed-forward layer.
        key_dim, value_dim: widths per head; default D / H.
        dropout: rate on the outputs of both sub-layers and inside of the feed-forward layer.
        memory_slots: learned keys and values beside the regions (M2, Eq. 2).
        reordered: norm before the sub-layers and an activation after them ("identity map reordering" of the M2 code).
    """

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        num_heads: int,
        inner_size: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        memory_slots: int = 0,
        reordered: bool = False,
    ) -> None:
        super().__init__()
        self.reordered = reordered
        self.self_attn = MultiHeadAttention(
            config, hidden_size, num_heads, key_dim, value_dim, memory_slots=memory_slots
        )
        self.self_attn_norm = nn.LayerNorm(hidden_size, eps=1e-5)
        self.fc1 = nn.Linear(hidden_size, inner_size)
        self.fc2 = nn.Linear(inner_size, hidden_size)
        self.ffn_norm = nn.LayerNorm(hidden_size, eps=1e-5)
        self.dropout = nn.Dropout(dropout)

    self_attn_residual = property(lambda self: ActivatedResidual(self.self_attn_norm, self.dropout, self.reordered))
    feed_forward_residual = property(lambda self: ActivatedResidual(self.ffn_norm, self.dropout, self.reordered))

    def feed_forward(self, regions: Tensor) -> Tensor:
        """Apply the feed-forward layer `W_2 relu(W_1 x)` to regions `[B, R, D]`."""
        return self.fc2(self.dropout(self.fc1(regions).relu()))


def visible_regions(config: Any, projected: Tensor, region_mask: Tensor | None) -> Tensor | None:
    """Return the mask `[B, R]` of regions that attention reads, by `config.region_mask_rule`; None: all.

    Args:
        config: read is `region_mask_rule`.
        projected: `[B, R, D]`, the projected and normalised regions.
        region_mask: `[B, R]`, the explicit mask.
    """
    return projected.sum(-1) != 0 if config.region_mask_rule == "zero_projected_sum" else region_mask


def encode_levels(
    config: Any,
    layers: Iterable[nn.Module],
    hidden: Tensor,
    visible: Tensor | None,
    output_attentions: bool,
    output_hidden_states: bool,
    final_norm: nn.Module | None = None,
    output_gates: bool = False,
) -> CaptioningEncoderOutput:
    """Run encoder layers on projected regions; stack their outputs as levels (without layers, the regions).

    Args:
        config: selects the attention implementation.
        layers: called with regions `[B, R, D]` and the mask; they return regions, attention weights and, if they have
            any, gates.
        hidden: `[B, R, D]`, the projected regions.
        visible: `[B, R]`, True = a region to attend to; None: all.
        final_norm: applied to the last level (pre-norm layers).
    """
    mask = create_region_mask(config, hidden, hidden, visible)
    states, weights, gates = [hidden], [], []
    for layer in layers:
        hidden, layer_weights, *layer_gates = layer(hidden, mask)
        states.append(hidden)
        weights.append(layer_weights)
        gates += layer_gates
    if final_norm is not None:
        hidden = states[-1] = final_norm(hidden)
    return CaptioningEncoderOutput(
        last_hidden_state=hidden,
        level_states=torch.stack(states[1:] or states, dim=1),  # [B, N, R, D]
        region_mask=visible,
        hidden_states=tuple(states) if output_hidden_states else None,
        attentions=tuple(weights) if output_attentions else None,
        gates=tuple(gates) if output_gates and gates else None,
    )


class MultiLevelEncoder(CaptioningEncoder):
    """Encoder of M2 and VisualGPT: `LN(dropout(f(W x)))` of the regions, then layers whose outputs are all levels.

    The configuration has `hidden_size`, `encoder_layers`, `cross_levels`, `encoder_dropout` and `region_mask_rule`. A
    subclass sets `activation` and `make_layer`. Layers above the levels that the decoder reads are not built.

    Attributes:
        activation: f.
        make_layer: returns a new layer, which is called with regions `[B, R, D]` and their mask.
    """

    activation: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(torch.relu)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.input_projection = nn.Linear(config.region_feature_size, config.hidden_size)
        self.input_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.dropout = nn.Dropout(config.encoder_dropout)
        read = max(config.cross_levels) + 1
        self.layers = nn.ModuleList([self.make_layer(config) for _ in range(read)])
        # Checkpoints of earlier versions have weights of the layers above, which nothing has ever read.
        above = [rf"encoder\.layers\.{index}\." for index in range(read, config.encoder_layers)]
        self._keys_to_ignore_on_load_unexpected = above
        self.gradient_checkpointing = False
        self.post_init()

    @staticmethod
    def make_layer(config: Any) -> nn.Module:
        """Build an encoder layer; implemented by the architecture."""
        raise NotImplementedError

    def linear(self, regions: RegionFeatures) -> Tensor:
        """Project region features `[B, R, D_in]` to `[B, R, D]`, before activation and norm."""
        return self.input_projection(regions.region_features)

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Encode regions `[B, R, D_in]`; return the output of every layer."""
        hidden = self.input_norm(self.dropout(self.activation(self.linear(regions))))
        visible = visible_regions(self.config, hidden, regions.region_mask)
        return encode_levels(self.config, self.layers, hidden, visible, output_attentions, output_hidden_states)


class LevelGates(nn.Module):
    """Learned gates between the decoder's hidden states and the attended vector of each encoder level.

    Args:
        hidden_size: D.
        num_levels: N.
        activation: `"sigmoid"`, or `"softmax"` over the levels.
    """

    def __init__(self, hidden_size: int, num_levels: int, activation: str = "sigmoid") -> None:
        super().__init__()
        self.activation = activation
        self.levels = nn.ModuleList([nn.Linear(2 * hidden_size, hidden_size) for _ in range(num_levels)])

    def forward(self, stream: Tensor, attended: Tensor) -> Tensor:
        """Return gates `[B, T, N, D]` from hidden states `[B, T, D]` and attended vectors `[B, T, N, D]`."""
        gates = [gate(torch.cat((stream, attended[:, :, level]), dim=-1)) for level, gate in enumerate(self.levels)]
        stacked = torch.stack(gates, dim=2)
        return stacked.softmax(2) if self.activation == "softmax" else stacked.sigmoid()


def gates_by_level(gates: Tensor | None) -> dict[str, Tensor]:
    """Average gates `[B, T, N, D]` over features: `[B, T]` by the name of the encoder level; none for None."""
    levels = () if gates is None else gates.mean(-1).unbind(-1)
    return {f"gate of level {index}": gate for index, gate in enumerate(levels, start=1)}


def meshed_sum(gates: Tensor, attended: Tensor) -> Tensor:
    """Sum attended levels `[B, T, N, D]`, weighted by gates, to `[B, T, D]`, divided by sqrt(N) (M2, Eq. 7)."""
    return (gates * attended).sum(2) / math.sqrt(attended.shape[2])


class CachedSelfAttention(MultiHeadAttention):
    """Causal self-attention over text rows, with cached keys and values.

    Args:
        config, hidden_size, num_heads, key_dim, value_dim, dropout: see `MultiHeadAttention`.
        layer_idx: number of the layer in the cache.
    """

    is_causal = True

    def __init__(self, *args: Any, layer_idx: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer_idx = layer_idx

    def forward(  # type: ignore[override]
        self, hidden: Tensor, mask: Any = None, cache: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `hidden` `[B * K, T, D]` to all tokens so far; return `[B * K, T, D]` and the weights.

        Args:
            mask: causal mask, as `create_causal_mask` of transformers returns it.
            cache: a `CaptionCache`, or None.
        """
        query = self.split_heads(self.q_proj(hidden))
        key, value = self.split_heads(self.k_proj(hidden)), self.split_heads(self.v_proj(hidden))
        if cache is not None:
            key, value = cache.self_attention_cache.update(key, value, self.layer_idx)
        attended, weights = self.attend(query, key, value, mask)
        return self.o_proj(attended.flatten(2)), weights  # [B * K, T, H * d_v] to [B * K, T, D]


def sinusoids(num_positions: int, hidden_size: int) -> Tensor:
    """Return sinusoidal position embeddings `[P, D]` (Vaswani et al., 2017, section 3.5)."""
    positions = torch.arange(num_positions, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, hidden_size, 2, dtype=torch.float32) * (-math.log(10000.0) / hidden_size))
    table = torch.zeros(num_positions, hidden_size)
    table[:, 0::2] = torch.sin(positions * rates)
    table[:, 1::2] = torch.cos(positions * rates[: hidden_size // 2])
    return table


class PositionTable(nn.Module):
    """Position embeddings `[P, D]`, fixed or learned, saved with the model.

    Args:
        num_positions: P.
        hidden_size: D.
        kind: `"sinusoidal"`: fixed sinusoids; `"noise"`: fixed values that are drawn once, as the M2 code leaves them,
            whose initialisation overwrites its sinusoids; `"learned"`: trained, from the same values.
    """

    KINDS = ("sinusoidal", "noise", "learned")

    def __init__(self, num_positions: int, hidden_size: int, kind: str = "sinusoidal") -> None:
        super().__init__()
        self.num_embeddings, self.kind = num_positions, kind
        table = torch.zeros(num_positions, hidden_size)
        if kind == "learned":
            self.weight = nn.Parameter(table)
        else:
            self.register_buffer("weight", table)
        self.reset()

    def reset(self) -> None:
        """Initialise the embeddings: sinusoids, or Xavier's uniform law."""
        if self.kind == "sinusoidal":
            init.copy_(self.weight, sinusoids(*self.weight.shape))
        else:
            init.xavier_uniform_(self.weight)

    def forward(self, positions: Tensor) -> Tensor:
        """Return the embeddings `[..., D]` of positions `[...]`."""
        return nn.functional.embedding(positions, self.weight)


class DecoderStep(NamedTuple):
    """Encoder outputs, masks and cache that all layers of a text decoder read beside the hidden states.

    Args:
        encoder_outputs: of B images.
        causal_mask: mask of self-attention, in the form of the attention implementation.
        memory_masks: masks of cross-attention by the name of its encoder states (`"region"`), in the form of the
            attention implementation.
        token_mask: `[B * K, T, 1]`, 1 = a real token, 0 = hidden; None: all are real.
        zeroes_hidden: whether the stream is zeroed at hidden tokens (the rule `"pad_id"` of released code).
        cache: a `CaptionCache`, or None.
    """

    encoder_outputs: CaptioningEncoderOutput
    causal_mask: Any
    memory_masks: dict[str, Any]
    token_mask: Tensor | None
    zeroes_hidden: bool
    cache: Any

    def without_hidden(self, stream: Tensor) -> Tensor:
        """Set hidden states `[B * K, T, D]` to 0 at hidden tokens, with the token mask rule "pad_id"."""
        return stream * self.token_mask if self.zeroes_hidden and self.token_mask is not None else stream


class TransformerDecoderLayer(GradientCheckpointingLayer):
    """Transformer decoder layer: self-attention, cross-attention to the last encoder level, and feed-forward layer.

    Args:
        self_attn: called with the stream, the causal mask and the cache, such as `CachedSelfAttention`.
        cross_attn: called as `BeamFoldingCrossAttention`.
        feed_forward: position-wise layer, such as `FeedForward`.
        residual: makes a `Residual` for each of the three, which decides on the place of the norm.
    """

    def __init__(
        self,
        self_attn: nn.Module,
        cross_attn: BeamFoldingCrossAttention,
        feed_forward: nn.Module,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_residual = residual()
        self.cross_attn = cross_attn
        self.cross_attn_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def attend_regions(
        self, stream: Tensor, levels: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Add the cross-attention to the last encoder level to the hidden states `[B * K, T, D]`.

        Returns:
            The stream, the weights `[B * K, 1, H, T, R]` and gates (here none).
        """
        query = self.cross_attn_residual.before(stream)
        attended, weights = self.cross_attn(query, lambda: levels[:, -1:], 1, step.memory_masks["region"], step.cache)
        return self.cross_attn_residual.after(stream, attended[:, :, 0]), weights, None

    def forward(self, hidden: Tensor, levels: Tensor, step: DecoderStep) -> LayerOutput:
        """Run self-attention, cross-attention and the feed-forward layer.

        Args:
            hidden: `[B * K, T, D]`.
            levels: `[B, N, R, D]`, the encoder levels.
            step: masks and cache of this step.
        """
        branch, self_weights = self.self_attn(self.self_attn_residual.before(hidden), step.causal_mask, step.cache)
        stream = step.without_hidden(self.self_attn_residual.after(hidden, branch))
        stream, cross_weights, gates = self.attend_regions(stream, levels, step)
        stream = step.without_hidden(stream)
        branch = self.feed_forward(self.feed_forward_residual.before(stream))
        stream = step.without_hidden(self.feed_forward_residual.after(stream, branch))
        return stream, self_weights, cross_weights, gates


class TransformerTextDecoder(CaptioningPreTrainedModel):
    """Base class of Transformer decoders: masks, cache, positions and outputs around an architecture's layers.

    A subclass sets the modules below. Its layers are called with the stream, the encoder levels and a `DecoderStep`,
    unless it has a `run_layer` of its own.

    Attributes:
        token_embedding, position_embedding: tables of tokens and positions.
        embedding_scale: factor of token embeddings.
        dropout: applied to the sum of both; `nn.Identity` where an architecture has none.
        decoder_layers: the layers.
        final_norm: applied to the last state; `nn.Identity` where an architecture has none.
    """

    main_input_name = "input_ids"
    gradient_checkpointing = False
    _input_embed_layer = "token_embedding"
    # Position of the first token in the table of positions.
    first_position = 0
    embedding_scale: float = 1.0
    # Names of the encoder states that the decoder attends to, see `CaptioningEncoderOutput.memory`.
    memory_names: ClassVar[tuple[str, ...]] = ("region",)

    token_embedding: nn.Embedding
    position_embedding: nn.Embedding
    dropout: nn.Module
    decoder_layers: nn.ModuleList
    final_norm: nn.Module

    def run_layer(self, index: int, hidden: Tensor, step: DecoderStep) -> LayerOutput:
        """Run layer `index` on hidden states `[B * K, T, D]`; by default it reads all encoder levels."""
        return self.decoder_layers[index](hidden, step.encoder_outputs.level_states, step)

    @property
    def mask_config(self) -> Any:
        """Configuration of which transformers makes masks and caches."""
        return self.config

    def new_cache(self) -> CaptionCache:
        """Return an empty cache."""
        return CaptionCache(DynamicCache(config=self.mask_config))

    def positions(self, input_ids: Tensor, attention_mask: Tensor | None, past_length: Any) -> Tensor:
        """Return the position of each token, `[T]` or `[B * K, T]`; padding on the left is not counted.

        Raises:
            ValueError: if the caption is longer than the table.
        """
        length, table = input_ids.shape[1], self.position_embedding.num_embeddings
        if isinstance(past_length, int) and past_length + length + self.first_position > table:
            raise ValueError(
                f"The caption has {past_length + length} tokens, the decoder has {table - self.first_position} "
                "positions. Shorten the caption or the prompt, or lower `max_new_tokens`."
            )
        if attention_mask is None or attention_mask.ndim != 2 or self.config.token_mask_rule != "explicit":
            return torch.arange(length, device=input_ids.device) + past_length + self.first_position
        real = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
        return real + self.first_position

    def embed(self, input_ids: Tensor, attention_mask: Tensor | None, past_length: Any) -> Tensor:
        """Return token embeddings plus position embeddings `[B * K, T, D]`, after dropout."""
        positions = self.positions(input_ids, attention_mask, past_length)
        words = self.token_embedding(input_ids) * self.embedding_scale
        return self.dropout(words + self.position_embedding(positions))

    def hide_tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Return the token mask `[B * K, past + T]`: `attention_mask`, or by `config.token_mask_rule`."""
        return visible_tokens(self.config, input_ids) if attention_mask is None else attention_mask

    def memory_mask(self, hidden: Tensor, states: Tensor, mask: Tensor | None) -> Any:
        """Return the cross-attention mask of encoder states for K * T queries per image.

        Args:
            hidden: `[B * K, T, D]`.
            states: `[B, N, D]`, the encoder states.
            mask: `[B, N]`, True = visible; None: all.
        """
        # The mask function reads only the shape of its queries: [B, K * T], as cross-attention folds them.
        folded = hidden.new_empty(states.shape[0], hidden.shape[0] // states.shape[0] * hidden.shape[1], 0)
        return create_region_mask(self.config, folded, states, mask)

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
        """Decode text rows `[B * K, T]` with the encoder outputs of B images.

        Args:
            input_ids: `[B * K, T]`.
            encoder_outputs: of B images.
            attention_mask: `[B * K, past + T]`, 1 = a real token.
            cache: a cache.
            use_cache: return a cache.
        """
        if self.gradient_checkpointing and self.training:
            use_cache, cache = False, None  # the backward pass runs layers again, and would update it twice
        cache = None if cache is None else CaptionCache.of(cache)
        if cache is None and use_cache:
            cache = self.new_cache()
        attention_mask = self.hide_tokens(input_ids, attention_mask)
        hidden = self.embed(input_ids, attention_mask, 0 if cache is None else cache.get_seq_length())
        causal_mask = create_causal_mask(
            config=self.mask_config, inputs_embeds=hidden, attention_mask=attention_mask, cache=cache
        )
        encoder_states = {name: encoder_outputs.memory(name) for name in self.memory_names}
        memory_masks = {
            name: self.memory_mask(hidden, *states_and_mask) for name, states_and_mask in encoder_states.items()
        }
        token_mask = None
        if attention_mask is not None and attention_mask.ndim == 2:
            token_mask = attention_mask[:, -hidden.shape[1] :, None].to(hidden.dtype)  # [B * K, T, 1]
        zeroes_hidden = self.config.token_mask_rule == "pad_id"
        step = DecoderStep(encoder_outputs, causal_mask, memory_masks, token_mask, zeroes_hidden, cache)
        states, records = [hidden], []
        for index in range(len(self.decoder_layers)):
            hidden, *recorded = self.run_layer(index, hidden, step)
            states.append(hidden)
            records.append(recorded)
        hidden = states[-1] = self.final_norm(hidden)  # the last state is recorded after the final norm
        self_weights, cross_weights, gates = zip(*records, strict=True)
        return CaptioningDecoderOutput(
            last_hidden_state=hidden,
            cache=cache if use_cache else None,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=self_weights if output_attentions else None,
            cross_attentions=cross_weights if output_attentions else None,
            gates=gates if output_gates else None,
        )
