"""The refining encoder of AoANet: self-attention over regions, and what an attention LSTM reads of them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .inputs_captioning import RegionFeatures
from .layers_attention import AttentionOnAttention, FeedForward, Residual, mean_of_visible
from .layers_recurrent import AttentionLSTMPreTrainedModel
from .layers_regions import UnbiasedLayerNorm
from .modeling_captioning import CaptioningEncoder, CaptioningEncoderOutput


class RefiningStep(NamedTuple):
    """Inputs of all refining layers beside the regions.

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
    """Pre-norm self-attention over regions, with attention on attention or a projection after it (AoANet).

    `x + dropout(f(LN(x)))`, and `x + dropout(FF(LN(x)))` if `inner_size` is given.

    Args:
        hidden_size: D.
        attention: called with the normalised regions as queries and as memory, and with what `read` returns; returns
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
        """Return what the attention reads beside the regions."""
        return (step.attention_mask,)

    def forward(self, regions: Tensor, step: RefiningStep) -> tuple[Any, ...]:
        """Return refined regions `[B, R, D]`, attention weights, and what the attention records, or else the gate.

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
    """Base of the encoders of AoANet and Image Transformer: refined regions, and what an attention LSTM reads of them.

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
        """Add the modules of the vector of the image, by `config.global_vector`."""
        sizes = {"projected": config.region_feature_size, "given": config.global_feature_size}
        found = sizes.get(config.global_vector)
        self.global_projection = nn.Linear(found, config.hidden_size) if found else None
        self.dropout = nn.Dropout(config.dropout)

    def global_state(self, regions: RegionFeatures, refined: Tensor, given: Tensor | None) -> Tensor:
        """Return the vector `[B, D]` of each image that the LSTM reads, by `config.global_vector`.

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
        """Run the layers on projected regions.

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
